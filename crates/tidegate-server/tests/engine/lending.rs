//! Tokens that clients spend on their own, of limits in memory. Whatever is spent, and whatever passes, is charged to a
//! limit of the core at that instant, and there it must always fit.

use std::time::Duration;

use tidegate::Rule;
use tidegate::algorithm::Algorithm;
use tidegate::clock::{Clock, Micros};
use tidegate_server::engine::{Fault, GrantId, Lent, Verdict};

use crate::support::Asked;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What a client holds.
struct Lot {
    id: GrantId,
    left: u32,
    until: Micros,
}

struct Walk {
    asked: Asked,
    random: Random,
    rule: Rule,
    /// In which the whole limit comes in, in microseconds, and how much that is.
    fills: u64,
    limit: u64,
    right: Vec<u64>,
    lots: Vec<Lot>,
    spent: u32,
    given_back: u32,
}

impl Walk {
    fn of(quota: &str, seed: u64) -> Self {
        let asked =
            Asked::new(&format!("rules: [{{name: user, key: user, missing: shared, quota: {quota}}}]"));
        let rule: Rule = quota.parse().expect("a rule");
        let setting = rule.encode();
        let (fills, limit) = match (setting.letter(), setting.numbers()) {
            (b'b', [p, q, burst]) => (p * burst / q, *burst),
            (_, [limit, period, ..]) => (*period, *limit),
            _ => panic!("{quota}"),
        };
        let right = vec![0; rule.words()];
        let (random, lots) = (Random(seed * 2 + 1), Vec::new());
        Walk { asked, random, rule, fills, limit, right, lots, spent: 0, given_back: 0 }
    }

    fn lend(&mut self, amount: u64, ttl: u64) -> Lent {
        let rules = self.asked.engine.in_force();
        let question = rules.ask().rule(0, [b"alice".as_slice()].into_iter(), None);
        let amount = u32::try_from(amount).expect("a small number");
        let lent =
            question.lend(amount, Some(Duration::from_micros(ttl))).now().expect("in memory").expect("lent");
        assert!(lent.loan.amount <= amount && lent.loan.ready == lent.loan.amount);
        lent
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=3 => self.pass(self.fills / self.limit + 1),
            4 => self.pass(self.fills / 6),
            5..=7 => self.takes(),
            8 => self.returns(),
            9 => self.checks(),
            _ => self.spends(),
        }
    }

    fn pass(&mut self, most: u64) {
        let micros = self.random.below(most);
        self.asked.clock.advance(Duration::from_micros(micros));
    }

    fn takes(&mut self) {
        let (amount, ttl) = (1 + self.random.below(self.limit), 20_000 + self.random.below(self.fills));
        let now = self.asked.clock.now();
        let Lent { loan, .. } = self.lend(amount, ttl);
        let lasts = u64::try_from(loan.lasts.as_micros()).expect("a short time");
        if let Some(id) = loan.id {
            self.lots.push(Lot { id, left: loan.amount, until: now.plus(lasts) });
        }
    }

    fn one(&mut self) -> Option<usize> {
        let lots = self.lots.len() as u64;
        (lots > 0).then(|| usize::try_from(self.random.below(lots)).expect("a small number"))
    }

    fn returns(&mut self) {
        let Some(which) = self.one() else { return };
        let Lot { id, left, .. } = self.lots.swap_remove(which);
        let rules = self.asked.engine.in_force();
        for _ in 0..2 {
            let question = rules.ask().rule(0, [b"alice".as_slice()].into_iter(), None);
            let _ = question.take_back(id, left).now().expect("in memory").expect("done");
        }
        self.given_back += left;
    }

    fn checks(&mut self) {
        if self.asked.check(&[("user", "alice")]).is_allowed() {
            self.is_right();
        }
    }

    /// Late, if it can be: that is when it hurts.
    fn spends(&mut self) {
        let now = self.asked.clock.now();
        self.lots.retain(|lot| now < lot.until && lot.left > 0);
        let Some(which) = self.one() else { return };
        let all = self.random.below(3) == 0;
        let count = if all { self.lots[which].left } else { 1 };
        self.lots[which].left -= count;
        for _ in 0..count {
            self.spent += 1;
            self.is_right();
        }
    }

    fn is_right(&mut self) {
        let now = self.asked.clock.now();
        let decision = self.rule.decide(self.right.as_mut_slice(), now, 1);
        assert!(decision.is_allowed(), "too many of {:?} at {now}", self.rule);
    }
}

const QUOTAS: [&str; 6] = [
    "61/s burst 20",
    "10/s burst 10",
    "1000/s burst 100",
    "100/h burst 8",
    "fixed_window 20/min",
    "fixed_window 9 per 10s offset 3s",
];

#[test]
fn what_is_spent_elsewhere_is_never_too_much_and_nothing_stays_taken() {
    for quota in QUOTAS {
        let (mut spent, mut given_back) = (0, 0);
        for seed in 0..40 {
            let mut walk = Walk::of(quota, seed);
            (0..400).for_each(|_| walk.step());
            (spent, given_back) = (spent + walk.spent, given_back + walk.given_back);
            walk.asked.clock.advance(Duration::from_micros(2 * walk.fills));
            assert_eq!(walk.asked.left("user", "alice"), walk.limit, "{quota}: something stays taken");
        }
        assert!(spent > 500 && given_back > 50, "{quota}: {spent} spent, {given_back} given back");
    }
}

/// The attack that charging alone does not survive: a whole lot is kept until the bucket would be full again.
#[test]
fn who_spends_late_does_not_get_two_bursts() {
    let mut walk = Walk::of("100/s burst 100", 1);
    let now = walk.asked.clock.now();
    let loan = walk.lend(100, 3_600_000_000).loan;
    assert!((50..100).contains(&loan.amount), "{loan:?}");
    assert!(loan.lasts < Duration::from_millis(250), "no longer than a quarter of a second: {loan:?}");
    let last = loan.lasts - Duration::from_micros(1);
    walk.asked.clock.advance(last);
    (0..loan.amount).for_each(|_| walk.is_right());
    let passed = (0..200).filter(|_| walk.asked.passes(&[("user", "alice")])).count();
    assert!(passed > 0 && walk.asked.clock.now() > now);
    (0..passed).for_each(|_| walk.is_right());
}

#[test]
fn lists_rules_that_only_watch_and_several_quotas() {
    let asked = Asked::new(
        "rules:
  - {name: a, key: user, missing: shared, quota: 100/h, allow: {user: root}, deny: {user: mallory}, cost: 5}
  - {name: b, key: user, missing: shared, quota: [100/h, 1000/day]}
  - {name: c, key: user, missing: shared, quota: 100/h, shadow: true}
  - {name: d, key: user, missing: shared, quota: 100/h, overrides: [{key: gold, quota: 400/h}]}",
    );
    let rules = asked.engine.in_force();
    let lend = |rule: &str, user: &str| {
        let number = rules.rule(rule.as_bytes()).expect("a rule");
        let question = rules.ask().rule(number, [user.as_bytes()].into_iter(), Some(40));
        question.lend(40, None).now().expect("in memory")
    };
    let amount = |rule, user| lend(rule, user).map(|lent| (lent.loan.amount, lent.loan.id.is_some()));
    assert_eq!(amount("a", "alice"), Ok((40, true)), "tokens, whatever a request costs");
    assert_eq!((amount("a", "root"), amount("a", "mallory")), (Ok((40, false)), Ok((0, false))));
    let denied = lend("a", "mallory").expect("an answer").decided;
    assert!(matches!(denied.verdict, Verdict::Refused { .. }), "{denied:?}");
    assert_eq!(amount("c", "alice"), Ok((40, false)), "it refuses nobody");
    assert_eq!(amount("b", "alice"), Err(Fault::SeveralLimits { rule: "b".into(), limits: 2 }));
    assert_eq!(amount("d", "gold"), Ok((40, true)));
    let seen = lend("d", "gold").expect("an answer").decided.decision().map(|decision| decision.limit());
    assert_eq!(seen, Some(400), "its own quota");
}
