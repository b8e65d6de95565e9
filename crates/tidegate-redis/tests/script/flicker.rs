//! # A server's clock that steps back and comes again
//!
//! The script and the core side by side are in `walk.rs`; here is what must come of it, whoever decides.

use tidegate_core::{Micros, Rule};

use crate::clocked::Clocked;
use crate::reference::Reference;
use crate::walk::RULES;
use crate::wire::{Ask, Told};

const NOON: Micros = Micros::new(1_700_000_000_000_000);
const SECOND: u64 = 1_000_000;

fn is_bucket(rule: &Rule) -> bool {
    matches!(rule, Rule::TokenBucket(_) | Rule::LeakyQueue(_))
}

fn ask(clocked: &mut Clocked, at: Micros, verb: char, cost: &str, rule: &Rule, id: Option<&[u8]>) -> Told {
    let asks = [Ask { cost: cost.to_owned(), ..Ask::new("key", 1, rule) }];
    clocked.numbers(at, verb, &asks, id).0
}

fn length(clocked: &mut Clocked) -> u64 {
    redis::cmd("STRLEN").arg("key").query(&mut clocked.connection).expect("an answer")
}

#[test]
fn a_clock_that_flickers_mints_nothing_from_buckets_and_queues() {
    let mut clocked = Clocked::start();
    clocked.forget(true);
    for text in RULES {
        let rule: Rule = text.parse().expect("a rule");
        if !is_bucket(&rule) {
            continue;
        }
        let all = ask(&mut clocked, NOON, 'x', "0", &rule, None).remaining.to_string();
        assert!(ask(&mut clocked, NOON, 'c', &all, &rule, None).outcome < 2, "{text}");
        for _ in 0..3 {
            for at in [NOON.minus(100_000 * SECOND), NOON] {
                let told = ask(&mut clocked, at, 'c', "1", &rule, None);
                assert_eq!((told.outcome, told.remaining), (2, 0), "{text} at {at}");
            }
        }
    }
}

#[test]
fn several_buckets_at_once_mint_nothing_either() {
    let mut clocked = Clocked::start();
    let rules: [Rule; 3] =
        ["10/s burst 4", "7/s burst 5", "3/s burst 9"].map(|text| text.parse().expect("a rule"));
    let mut core = Reference::new(&rules, false);
    let asks = |cost| [0, 1, 2].map(|n: usize| Ask::new(&n.to_string(), cost, &rules[n]));
    for (at, cost) in [(10, 4), (0, 1), (10, 1), (0, 1), (1, 2), (10, 1), (11, 4)] {
        let at = NOON.plus(at * SECOND);
        let want = core.ask(at, 'c', &[cost; 3]);
        assert_eq!(clocked.ask(at, 'c', &asks(cost), None), want, "{cost} at {at}");
    }
}

#[test]
fn a_value_is_longer_only_while_the_clock_is_behind() {
    let (mut clocked, rule) = (Clocked::start(), "10/s burst 4".parse().expect("a rule"));
    let mut visit = |at: Micros, cost: &str| {
        ask(&mut clocked, at, 'c', cost, &rule, None);
        length(&mut clocked)
    };
    assert_eq!(visit(NOON, "4"), 12);
    assert_eq!(visit(NOON.minus(10 * SECOND), "1"), 35);
    assert_eq!(visit(NOON.minus(9 * SECOND), "1"), 35);
    assert_eq!(visit(NOON, "1"), 12);
}

/// Two of four are lent for a second, and two are taken.
#[test]
fn what_is_lent_is_not_minted_either() {
    let (mut clocked, rule) = (Clocked::start(), "10/s burst 4".parse().expect("a rule"));
    let lent = ask(&mut clocked, NOON, 'k', "2 2 1000000 0", &rule, Some(&[7; 16]));
    assert_eq!((lent.outcome, lent.remaining), (0, 2));
    assert_eq!(ask(&mut clocked, NOON, 'c', "2", &rule, None).outcome, 0);
    for _ in 0..3 {
        for at in [NOON.minus(10 * SECOND), NOON] {
            assert_eq!(ask(&mut clocked, at, 'c', "1", &rule, None).outcome, 2, "at {at}");
        }
    }
    assert_eq!(length(&mut clocked), 21 + 27, "with the grant behind it");
    ask(&mut clocked, NOON.minus(10 * SECOND), 'c', "1", &rule, None);
    assert_eq!(length(&mut clocked), 35 + 27);
    let back = ask(&mut clocked, NOON, 'u', "2", &rule, Some(&[7; 16]));
    assert_eq!((back.remaining, length(&mut clocked)), (2, 12));
}
