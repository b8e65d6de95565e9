//! Limits hold when Redis's clock is set.

mod gates;
mod support;

use gates::{long_deadline, one};
use support::{Clocked, Kind, Server};
use tidegate::{Outcome, Rule, Source};
use tidegate_redis::RedisGate;

const NOON: i64 = 1_800_000_000_000_000;
const SECOND: i64 = 1_000_000;

/// Each has a burst of five, and none takes longer than ten seconds to be full again.
const RULES: [&str; 7] = [
    "1/s burst 5",
    "leaky_queue 1/s queue 4 nodelay",
    "stepped_bucket 5 per 5s",
    "fixed_window 5 per 10s",
    "fixed_window 5 per 10s from first hit",
    "sliding_log 5 per 10s",
    "sliding_window 5 per 5s cells 5",
];

struct Stage {
    server: Clocked,
    gates: Vec<RedisGate>,
}

impl Stage {
    fn set() -> Self {
        let server = Server::start_with_clock(Kind::Redis, &[]);
        let gate = |(n, text): (usize, &&str)| {
            let rule: Rule = text.parse().expect("a rule");
            long_deadline(RedisGate::builder(server.url()).rule(format!("r{n}"), rule))
        };
        let gates = RULES.iter().enumerate().map(gate).collect();
        Stage { server, gates }
    }

    /// How many of ten requests pass under each rule, now.
    async fn passed(&self) -> Vec<usize> {
        let mut all = Vec::new();
        for gate in &self.gates {
            let mut passed = 0;
            for _ in 0..10 {
                let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
                assert_eq!(decision.source, Source::Strict);
                passed += usize::from(decision.is_allowed());
            }
            all.push(passed);
        }
        all
    }

    /// The longest wait that one of the rules reports, in seconds.
    async fn longest_wait(&self) -> u64 {
        let mut longest = 0;
        for gate in &self.gates {
            let decision = gate.check_parts(&one("alice")).await.expect("a request").decision;
            if let Outcome::RetryAfter(wait) = decision.outcome {
                longest = longest.max(wait.as_secs_up());
            }
        }
        longest
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_an_hour_back_admits_nothing_and_blocks_no_key_for_long() {
    let mut stage = Stage::set();
    stage.server.hold_at(NOON);
    assert_eq!(stage.passed().await, [5; 7]);
    stage.server.hold_at(NOON - 3_600 * SECOND);
    assert_eq!(stage.passed().await, [0; 7], "no tokens are minted");
    assert!(stage.longest_wait().await <= 10, "no wait is longer than for a full quota");
    stage.server.hold_at(NOON - 3_590 * SECOND);
    assert_eq!(stage.passed().await, [5; 7], "and then the quota is full again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_an_hour_forward_admits_one_burst_and_back_again_none() {
    let mut stage = Stage::set();
    stage.server.hold_at(NOON);
    assert_eq!(stage.passed().await, [5; 7]);
    stage.server.hold_at(NOON + 3_600 * SECOND);
    assert_eq!(stage.passed().await, [5; 7], "one burst");
    stage.server.hold_at(NOON + SECOND / 2);
    assert_eq!(stage.passed().await, [0; 7]);
    assert!(stage.longest_wait().await <= 10);
    stage.server.hold_at(NOON + 10 * SECOND + SECOND / 2);
    assert_eq!(stage.passed().await, [5; 7]);
}

/// Fixed windows and stepped buckets start anew at an instant that comes again: each return admits their
/// limit, once. All others remember the instant before the step back.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_back_and_forth_adds_one_limit_per_return_to_windows_and_steps_only() {
    let mut stage = Stage::set();
    stage.server.hold_at(NOON);
    assert_eq!(stage.passed().await, [5; 7]);
    for _ in 0..3 {
        stage.server.hold_at(NOON - 3_600 * SECOND);
        assert_eq!(stage.passed().await, [0; 7]);
        stage.server.hold_at(NOON);
        assert_eq!(stage.passed().await, [0, 0, 5, 5, 5, 0, 0]);
    }
    stage.server.hold_at(NOON + 2 * SECOND);
    assert_eq!(stage.passed().await[..2], [2, 2], "only elapsed time refills");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_clock_steps_back_and_forth_create_no_tokens() {
    let mut stage = Stage::set();
    let amid = NOON + 3 * SECOND; // not at a window boundary: a step back would enter the previous window
    stage.server.hold_at(amid);
    assert_eq!(stage.passed().await, [5; 7]);
    for step in [-1, 0, -2, 0, -3, 0] {
        stage.server.hold_at(amid + step * SECOND / 10);
        assert_eq!(stage.passed().await, [0; 7], "{step}");
    }
}
