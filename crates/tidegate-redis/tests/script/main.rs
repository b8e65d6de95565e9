//! # The script decides as the core does
//!
//! `src/script.lua` implements the core again, in another language and with other numbers. Here both are
//! compared on a real server: every row of the vector files, and a long walk of random requests on which
//! every number of every reply must be equal. The rest covers what only the script has: values with an
//! expiry, arguments that may be wrong, rules that change under a state that stays, and permits. The second
//! script, for ad-hoc limits, is compared with the server's arithmetic in the same way.
//!
//! Time is set by the test: code before the script's text replies to `TIME` from a key (`mock_clock.rs`).
//! The script itself is the one that ships.

mod adhoc;
mod clock_steps;
mod expiry;
mod fast_path;
mod grants;
mod invalid_calls;
mod large_numbers;
mod mock_clock;
mod permits;
mod random_walk;
mod reference;
mod refunds;
mod rule_changes;
mod script_files;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod vectors;
mod versions;
mod wire;
mod wire_examples;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the arithmetic that the server has in memory; the rest is tested there"
)]
#[path = "../../../tidegate-server/src/engine/throttle.rs"]
mod throttle;

#[expect(dead_code, reason = "the script takes numbers, not the text of a rule")]
#[path = "../../../tidegate/examples/conformance/format.rs"]
mod format;
#[path = "../../../tidegate/examples/conformance/line.rs"]
mod line;
#[path = "../../../tidegate/examples/conformance/mistake.rs"]
mod mistake;
#[path = "../../../tidegate/examples/conformance/pace.rs"]
mod pace;
#[path = "../../../tidegate/examples/conformance/pacers.rs"]
mod pacers;
#[expect(dead_code, reason = "a test has no last line to print")]
#[path = "../../../tidegate/examples/conformance/report.rs"]
mod report;
#[path = "../../../tidegate/examples/conformance/row.rs"]
mod row;
#[path = "../../../tidegate/examples/conformance/run.rs"]
mod run;
#[path = "../../../tidegate/examples/conformance/scripted.rs"]
mod scripted;
#[expect(dead_code, reason = "the other subjects are tested where they live")]
#[path = "../../../tidegate/examples/conformance/subject.rs"]
mod subject;
#[path = "../../../tidegate/examples/conformance/table.rs"]
mod table;
#[path = "../../../tidegate/examples/conformance/time.rs"]
mod time;
