//! Redis's clock is set, and limits hold.

mod gates;
mod support;

use gates::{one, patient};
use support::{Clocked, Kind, Server};
use tidegate::{Outcome, Rule, Source};
use tidegate_redis::RedisGate;

const NOON: i64 = 1_800_000_000_000_000;
const SECOND: i64 = 1_000_000;

/// Each lets five pass at once, and none takes longer than ten seconds to be whole again.
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
            patient(RedisGate::builder(server.url()).rule(format!("r{n}"), rule))
        };
        let gates = RULES.iter().enumerate().map(gate).collect();
        Stage { server, gates }
    }

    /// How many of ten pass under each rule, now.
    async fn passed(&self) -> Vec<usize> {
        let mut all = Vec::new();
        for gate in &self.gates {
            let mut passed = 0;
            for _ in 0..10 {
                let decision = gate.check(&one("alice")).await.expect("a request").decision;
                assert_eq!(decision.source, Source::Strict);
                passed += usize::from(decision.is_allowed());
            }
            all.push(passed);
        }
        all
    }

    /// The longest that one of the rules says to wait, in seconds.
    async fn longest_wait(&self) -> u64 {
        let mut longest = 0;
        for gate in &self.gates {
            let decision = gate.check(&one("alice")).await.expect("a request").decision;
            if let Outcome::RetryAfter(wait) = decision.outcome {
                longest = longest.max(wait.as_secs_up());
            }
        }
        longest
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_back_lets_nothing_pass_and_locks_nobody_out() {
    let mut stage = Stage::set();
    stage.server.hold_at(NOON);
    assert_eq!(stage.passed().await, [5; 7]);
    stage.server.hold_at(NOON - 3_600 * SECOND);
    assert_eq!(stage.passed().await, [0; 7], "nothing is minted");
    assert!(stage.longest_wait().await <= 10, "nobody waits longer than for a whole limit");
    stage.server.hold_at(NOON - 3_590 * SECOND);
    assert_eq!(stage.passed().await, [5; 7], "and then everything is there again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_forward_hands_out_one_burst_and_back_again_none() {
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

/// Fixed windows and stepped buckets start anew where the clock comes again: each return hands out their limit, once. All others
/// remember where it stepped back from.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_flickers_mints_nothing_and_a_limit_a_return_from_windows_and_steps() {
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
    assert_eq!(stage.passed().await[..2], [2, 2], "what comes after is time");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_steps_to_and_fro_mint_nothing() {
    let mut stage = Stage::set();
    let amid = NOON + 3 * SECOND; // and not where windows meet: who goes back into one leaves it again
    stage.server.hold_at(amid);
    assert_eq!(stage.passed().await, [5; 7]);
    for step in [-1, 0, -2, 0, -3, 0] {
        stage.server.hold_at(amid + step * SECOND / 10);
        assert_eq!(stage.passed().await, [0; 7], "{step}");
    }
}
