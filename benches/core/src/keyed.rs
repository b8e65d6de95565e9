//! A million live keys, asked about evenly at random: what decides is how often memory is waited for.

use crate::floor;
use crate::goal::Goal;
use crate::ours::{self, FIXED, REQUEST, SLIDING, TIDEGATE};
use crate::peers::governor::{self, GOVERNOR};
use crate::peers::{limitador, throttlecrab};
use crate::plan::Plan;
use crate::report::Section;
use crate::rounds::measure;

const NUMBER: &str = "u64";
const NUMBER_TWO: &str = "u64, 2 threads";
const TEXT: &str = "text";
const TEXT_TWO: &str = "text, 2 threads";

pub(crate) fn numbers(plan: &Plan) -> Section {
    let mut cases = floor::numbers(NUMBER, NUMBER_TWO);
    cases.extend(governor::numbers(NUMBER, NUMBER_TWO));
    cases.extend(ours::numbers(NUMBER, NUMBER_TWO));
    cases.extend(ours::windows(NUMBER));
    let title = "A million keys of 64 bits";
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for each decision on each thread. The floor is a flat table that never grows.",
        measured: measure(title, &cases, &plan.keyed),
        goals: vec![
            Goal::same(NUMBER, TIDEGATE, GOVERNOR, 0.5, 0.35),
            Goal::same(NUMBER_TWO, TIDEGATE, GOVERNOR, 0.5, 0.35),
            Goal::same(NUMBER, REQUEST, TIDEGATE, 1.1, 1.0),
            Goal::same(NUMBER, FIXED, TIDEGATE, 1.3, 1.1),
            Goal::same(NUMBER, SLIDING, TIDEGATE, 3.0, 2.0),
        ],
    }
}

pub(crate) fn texts(plan: &Plan) -> Section {
    let mut cases = floor::texts(TEXT, TEXT_TWO);
    cases.extend(governor::texts(TEXT, TEXT_TWO));
    cases.extend(ours::texts(TEXT, TEXT_TWO));
    let title = "A million keys of 16 bytes of text";
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for each decision on each thread. The floor keeps a fingerprint in place of the \
               text, and so does Tidegate.",
        measured: measure(title, &cases, &plan.keyed),
        goals: vec![
            Goal::same(TEXT, TIDEGATE, GOVERNOR, 0.4, 0.25),
            Goal::same(TEXT_TWO, TIDEGATE, GOVERNOR, 0.4, 0.25),
        ],
    }
}

/// Slow, large, and no goal is held against them: apart from the others, so as not to disturb them.
pub(crate) fn others(plan: &Plan) -> Section {
    let cases = [throttlecrab::texts(TEXT), limitador::texts(TEXT)];
    let title = "Other peers, a million keys of text";
    Section {
        title,
        unit: "ns",
        text: "For orientation, with few rounds. throttlecrab without the lock that several threads would need; \
               limitador with the context that each request needs.",
        measured: measure(title, &cases, &plan.others),
        goals: vec![],
    }
}
