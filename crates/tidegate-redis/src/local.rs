//! # Local share of a limit, which starts empty
//!
//! While Redis is unreachable, each node may admit its share of a limit. The usage before the outage is unknown, so the
//! share assumes the worst: that everything was used up when the outage began. All nodes together then admit what
//! refills from that instant on, and no burst.
//!
//! ```text
//!   tokens ┤                      ┌──── burst of the share
//!          │                  ╱───┘
//!          │              ╱───
//!        0 ┼──────────┼───────────────► t
//!                    outage              a key not seen since then has what has refilled since then
//! ```
//!
//! A key that is evicted because it is idle is treated like a key never seen. The two are equivalent: by the time an
//! idle key is full again, a key that was empty at the beginning of the outage is full as well.

use tidegate_core::{Algorithm, ClockKind, Decision, Micros, Rule, Words, WordsMut};

/// A rule under which every key had used up everything at a given instant.
#[derive(Clone, Debug)]
pub(crate) struct EmptyAt {
    rule: Rule,
    outage: Micros,
    /// How many tokens there are to use up.
    limit: u64,
    /// The state of a key that has used up everything, if the state is a single word.
    empty_word: Option<u64>,
}

impl EmptyAt {
    pub(crate) fn new(rule: Rule, outage: Micros) -> Self {
        let limit = rule.peek(vec![0; rule.words()].as_slice(), outage, 0).limit();
        EmptyAt { rule, outage, limit, empty_word: None }.with_empty_word()
    }

    fn with_empty_word(self) -> Self {
        let empty_word = if self.words() == 1 { self.copy_of([0].as_slice()).first().copied() } else { None };
        EmptyAt { empty_word, ..self }
    }

    /// Returns a copy of the state, used up if it has never been written.
    fn copy_of<S: Words + ?Sized>(&self, state: &S) -> Vec<u64> {
        let mut copy: Vec<u64> = (0..self.rule.words()).map(|index| state.get(index)).collect();
        if copy.iter().all(|word| *word == 0) {
            self.use_up(&mut copy);
        }
        copy
    }

    /// Uses up everything, in several steps if needed, because a cost has only 32 bits.
    fn use_up(&self, state: &mut [u64]) {
        let mut left = self.limit;
        while left > 0 {
            let cost = u32::try_from(left).unwrap_or(u32::MAX);
            let _ = self.rule.force(state, self.outage, cost);
            left -= u64::from(cost);
        }
    }

    /// Applies `change` to a copy of the state, and writes the copy back if it changed.
    fn apply<S: WordsMut + ?Sized, R>(
        &self,
        state: &mut S,
        change: impl FnOnce(&Rule, &mut [u64]) -> R,
    ) -> R {
        let before = self.copy_of(state);
        let mut after = before.clone();
        let result = change(&self.rule, &mut after);
        if after != before {
            after.iter().enumerate().for_each(|(index, word)| state.set(index, *word));
        }
        result
    }
}

impl Algorithm for EmptyAt {
    fn words(&self) -> usize {
        self.rule.words()
    }

    fn for_clock(self, clock: ClockKind) -> Self {
        EmptyAt { rule: self.rule.for_clock(clock), ..self }.with_empty_word()
    }

    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        self.rule.peek(self.copy_of(state).as_slice(), now, cost)
    }

    fn decide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        self.apply(state, |rule, words| rule.decide(words, now, cost))
    }

    fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
        let from = if word == 0 { self.empty_word? } else { word };
        let (next, decision) = self.rule.decide_word(from, now, cost)?;
        Some((if next == from { word } else { next }, decision)) // a refusal writes nothing
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        self.apply(state, |rule, words| rule.force(words, now, cost))
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        self.apply(state, |rule, words| rule.refund(words, now, cost));
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        self.apply(state, |rule, words| rule.repair(words, now));
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.rule.idle_at(self.copy_of(state).as_slice())
    }

    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        self.rule.last_seen(state)
    }

    /// Copies the state: settings never change, because each outage has limits of its own.
    fn migrate_from<F, S>(&self, _: &Self, from: &F, state: &mut S, _: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        (0..self.words()).for_each(|index| state.set(index, from.get(index)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(rule: &str, outage: u64, instants: impl Iterator<Item = u64>) -> Vec<u64> {
        let rule = EmptyAt::new(rule.parse().expect("a rule"), Micros::new(outage));
        let mut state = vec![0; rule.words()];
        instants.filter(|now| rule.decide(state.as_mut_slice(), Micros::new(*now), 1).is_allowed()).collect()
    }

    #[test]
    fn a_share_starts_empty_and_admits_what_refills() {
        let outage = 7_000_000;
        let every_50ms = || (0..12).map(|n| outage + n * 50_000);
        assert_eq!(
            passes("10/s burst 5", outage, every_50ms()),
            (1..6).map(|n| outage + n * 100_000).collect::<Vec<_>>()
        );
        assert_eq!(
            passes("fixed_window 3/s", outage, every_50ms()),
            [],
            "the window in which the outage began is used up"
        );
        assert_eq!(
            passes("sliding_log 3/s", outage, (0..30).map(|n| outage + n * 100_000)).first(),
            Some(&8_000_000)
        );
    }

    #[test]
    fn a_late_request_finds_the_refill_but_no_more_than_a_burst() {
        let late = |after: u64| passes("10/s burst 5", 0, std::iter::repeat_n(after, 10)).len();
        assert_eq!([0, 99_999, 100_000, 300_000, 500_000, 9_000_000].map(late), [0, 0, 1, 3, 5, 5]);
    }

    #[test]
    fn the_fast_path_decides_as_the_slow_path() {
        let rule: Rule = "10/s burst 5".parse().expect("a rule");
        let rule = EmptyAt::new(rule, Micros::new(1_000_000)).for_clock(ClockKind::Monotonic);
        let mut state = [0];
        for now in (1_000_000..3_000_000).step_by(70_000).map(Micros::new) {
            let (next, decision) = rule.decide_word(state[0], now, 2).expect("one word");
            assert_eq!(rule.decide(state.as_mut_slice(), now, 2), decision);
            assert_eq!(state, [next]);
        }
        assert_ne!(state, [0]);
    }

    #[test]
    fn evicting_an_idle_key_changes_no_decision() {
        for text in ["10/s burst 5", "fixed_window 3/s", "sliding_log 3/s", "sliding_window 3/s cells 4"] {
            let rule = EmptyAt::new(text.parse().expect("a rule"), Micros::new(1_000_000));
            let mut state = vec![0; rule.words()];
            let later = Micros::new(20_000_000);
            assert!(rule.decide(state.as_mut_slice(), later, 2).is_allowed(), "{text}");
            let idle = rule.idle_at(state.as_slice());
            let evicted = vec![0; rule.words()];
            assert_eq!(
                rule.peek(state.as_slice(), idle, 0),
                rule.peek(evicted.as_slice(), idle, 0),
                "{text}"
            );
        }
    }
}
