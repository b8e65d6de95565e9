//! The encoding of rules for other programs, and local shares of rules.

use tidegate_core::{Algorithm, Micros, Rule};

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_algorithm_has_its_letter_and_its_numbers() {
    let table: [(&str, u8, &[u64]); 11] = [
        ("100/s", b'b', &[10_000, 1, 100]),
        ("3/s burst 7", b'b', &[1_000_000, 3, 7]),
        ("leaky_queue 3/s queue 5", b'q', &[1_000_000, 3, 6_000_000, 1_000_000]),
        ("leaky_queue 10/s queue 5 delay 2", b'q', &[100_000, 1, 600_000, 300_000]),
        ("leaky_queue 10/s queue 5 max_wait 150ms", b'q', &[100_000, 1, 250_000, 100_000]),
        ("leaky_queue 30/min queue 2 delay 1 nginx", b'g', &[500, 2_000, 1_000]),
        ("stepped_bucket 20/min burst 50 offset 10s", b's', &[20, 60_000_000, 10_000_000, 50]),
        ("fixed_window 5/min offset 70s", b'w', &[5, 60_000_000, 10_000_000]),
        ("fixed_window 5/min from first hit", b'h', &[5, 60_000_000]),
        ("sliding_log 5/min", b'l', &[5, 60_000_000]),
        ("sliding_window 5/s cells 10 plain", b'c', &[5, 1_000_000, 10, 2]),
    ];
    for (text, letter, numbers) in table {
        let encoded_rule = rule(text).encode();
        assert_eq!((encoded_rule.letter(), encoded_rule.numbers()), (letter, numbers), "{text}");
    }
    let oldest = |kind: &str| rule(&format!("sliding_window 5/s cells 10 {kind}")).encode().numbers()[3];
    assert_eq!(["strict", "interpolated", "plain"].map(oldest), [0, 1, 2]);
}

#[test]
fn a_share_is_the_rule_divided_by_the_number_of_nodes() {
    let table = [
        ("100/s burst 10", 4, Some("25/s burst 2")),
        ("3/s burst 7", 2, Some("3 per 2s burst 3")),
        ("3/s burst 9", 3, Some("1/s burst 3")),
        ("10/s burst 1", 2, None),
        ("leaky_queue 10/s queue 5 delay 2", 2, Some("leaky_queue 5/s queue 2 delay 1")),
        ("leaky_queue 10/s queue 5 max_wait 150ms", 2, Some("leaky_queue 5/s queue 2 max_wait 150ms")),
        ("leaky_queue 10/s queue 1", 3, None),
        ("leaky_queue 30/min queue 3 delay 2 nginx", 2, Some("leaky_queue 15/min queue 1 delay 1 nginx")),
        ("stepped_bucket 20/min burst 50 offset 10s", 3, Some("20 per 3min burst 16")),
        ("stepped_bucket 2/min burst 50", 3, None),
        ("fixed_window 5/min offset 10s", 2, Some("5 per 2min burst 2")),
        ("fixed_window 5/min from first hit", 5, Some("1/min")),
        ("fixed_window 10000/day", 2, Some("5000/day")),
        ("sliding_log 5/min", 6, None),
        ("sliding_window 50/s cells 10", 3, Some("50 per 3s burst 16")),
    ];
    for (text, nodes, share) in table {
        // The encodings are compared, because a share may have more room than the same rule from its text.
        let encoded_rule = |rule: Rule| rule.encode();
        assert_eq!(
            rule(text).share(nodes).map(encoded_rule),
            share.map(rule).map(encoded_rule),
            "{text} / {nodes}"
        );
    }
    assert_eq!(rule("10/s").share(0), Some(rule("10/s")), "0 nodes count as one");
}

/// How much passes in ten seconds of requests with a cost of 1.
fn passed(rule: &Rule) -> u64 {
    let mut state = vec![0; rule.words()];
    let instants = (0..10_000u64).map(|step| Micros::new(1_000_000_000 + step * 1_000));
    instants
        .map(|now| (0..20).filter(|_| rule.decide(&mut state[..], now, 1).is_allowed()).count() as u64)
        .sum()
}

#[test]
fn all_shares_together_admit_no_more_than_the_rule() {
    let texts = [
        "100/s burst 10",
        "7/s burst 30",
        "leaky_queue 50/s queue 9 delay 3",
        "stepped_bucket 20/s burst 50",
        "fixed_window 50/s",
        "fixed_window 50/s from first hit",
        "sliding_log 50/s",
        "sliding_window 50/s cells 10",
        "sliding_window 50/s cells 10 interpolated",
    ];
    for (text, nodes) in texts.iter().flat_map(|text| [1, 2, 3, 7].map(|nodes| (text, nodes))) {
        let whole = passed(&rule(text));
        let shared = rule(text).share(nodes).map_or(0, |share| passed(&share)) * u64::from(nodes);
        // Shares of windows are buckets, which start with a burst here; in an outage they start empty.
        let burst =
            if text.contains("window") || text.contains("log") || text.contains("stepped") { 50 } else { 0 };
        assert!(shared <= whole + burst, "{text}: {shared} by {nodes} nodes, {whole} by one");
        assert!(nodes > 3 || shared > whole / 2, "{text}: only {shared} of {whole} by {nodes} nodes");
    }
}
