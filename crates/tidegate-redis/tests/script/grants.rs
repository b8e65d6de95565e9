//! # Grants: tokens that nodes spend without a round trip
//!
//! Several nodes take tokens in advance, spend them without a round trip, reserve and claim tokens that
//! refill later, return some, forget some and die, while requests and replies are late, overtake each other or
//! are lost. Every token spent, and every request the script itself allowed, is charged to a bucket of the
//! core at that instant, and must always fit.

use std::collections::VecDeque;

use tidegate_core::{Algorithm, Micros, Rule};

use crate::mock_clock::MockClockScript;
use crate::random_walk::Random;
use crate::wire::{RuleArgs, RuleReply};

const NOON: Micros = Micros::new(1_700_000_000_000_000);
const RULES: &[&str] = &[
    "61/s burst 20",
    "3/s burst 7",
    "1000/s burst 5",
    "7 per 3s burst 4",
    "1/s burst 1",
    "1000000/s burst 100",
];
const NODES: usize = 3;

/// Tokens that a node may spend; for a reservation, tokens that it may claim.
#[derive(Clone, Debug)]
struct Grant {
    id: [u8; 16],
    left: u32,
    until: Micros,
    is_reserved: bool,
}

impl Grant {
    fn spend(&mut self, now: Micros) -> bool {
        let spends = self.left > 0 && now < self.until && !self.is_reserved;
        self.left -= u32::from(spends);
        spends
    }
}

/// A message in flight.
#[derive(Clone, Debug)]
enum Message {
    Lease {
        node: usize,
        id: [u8; 16],
        sent: Micros,
        want: u32,
        ttl: u64,
        older: Vec<u8>,
        claim: Option<[u8; 16]>,
    },
    Return {
        id: [u8; 16],
        unspent: u32,
    },
    Granted {
        node: usize,
        grants: Vec<Grant>,
    },
}

fn small(number: u64) -> u32 {
    u32::try_from(number).expect("a small number")
}

struct Run {
    mock: MockClockScript,
    random: Random,
    rule: Rule,
    /// How long a token takes to refill, more or less.
    pace: u64,
    stock: u64,
    ttl: u64,
    now: Micros,
    expected: Vec<u64>,
    grants: Vec<Vec<Grant>>,
    in_flight: VecDeque<Message>,
    ids: u64,
    spent: usize,
    claimed: u64,
}

impl Run {
    fn start() -> Self {
        let rule: Rule = RULES[0].parse().expect("a rule");
        Run {
            mock: MockClockScript::start(),
            random: Random(3),
            rule,
            pace: 0,
            stock: 0,
            ttl: 0,
            now: NOON,
            expected: vec![0; rule.words()],
            grants: Vec::new(),
            in_flight: VecDeque::new(),
            ids: 0,
            spent: 0,
            claimed: 0,
        }
    }

    fn begin(&mut self, rule: Rule) {
        let encoded = rule.encode();
        let [p, q, burst] = encoded.numbers() else { panic!("a bucket") };
        self.mock.clear();
        self.pace = p / q + 1;
        self.stock = 1 + self.random.below(*burst);
        self.ttl = self.pace * self.random.one_of(&[1, 4, 9, 40]);
        (self.rule, self.now) = (rule, NOON.plus(self.random.below(self.pace)));
        self.expected = vec![0; rule.words()];
        self.grants = vec![Vec::new(); NODES];
        self.in_flight.clear();
    }

    fn call(&mut self, operation: &str, cost: String, id: Option<&[u8]>) -> (RuleReply, Vec<u64>) {
        let args = RuleArgs { cost, ..RuleArgs::rate("key", 0, &self.rule) };
        self.mock.numbers(self.now, operation, &[args], id)
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=2 => self.now = self.now.plus(self.random.below(self.pace)),
            3 if self.random.below(4) == 0 => self.now = self.now.plus(self.random.below(self.ttl)),
            4 | 5 => self.request_grant(),
            6 => self.return_grant(),
            7 => self.check_strictly(),
            8 if self.random.below(8) == 0 => self.crash(),
            9..=15 => self.deliver(),
            _ => self.spend(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.below(end as u64)).expect("a small number")
    }

    fn node(&mut self) -> usize {
        self.below(NODES)
    }

    fn request_grant(&mut self) {
        let node = self.node();
        self.ids += 1;
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.ids.to_be_bytes());
        let of_some = self.random.below(4);
        // One reservation is claimed at a time, so that the reply says what became of it.
        let claim = self.grants[node].iter().find(|grant| grant.is_reserved).map(|grant| grant.id);
        let older = self.grants[node].iter().filter(|grant| {
            if grant.is_reserved { Some(grant.id) == claim } else { u64::from(grant.id[15]) % 4 <= of_some }
        });
        let older: Vec<u8> =
            older.flat_map(|grant| [&grant.id[..], &grant.left.to_be_bytes()].concat()).collect();
        // A claimed reservation is gone until the reply gives it back.
        self.grants[node].retain(|grant| grant.left > 0 && !grant.is_reserved);
        let want = 1 + small(self.random.below(self.stock + 2));
        let ttl = 1 + self.random.below(self.ttl); // differs between nodes, and between requests of a node
        self.in_flight.push_back(Message::Lease { node, id, sent: self.now, want, ttl, older, claim });
    }

    fn return_grant(&mut self) {
        let node = self.node();
        if let Some(grant) = self.grants[node].pop() {
            self.in_flight.push_back(Message::Return { id: grant.id, unspent: grant.left });
        }
    }

    fn check_strictly(&mut self) {
        let cost = self.random.one_of(&[1, 1, 2]);
        let (reply, _) = self.call("check", cost.to_string(), None);
        if reply.outcome == 0 {
            self.assert_allowed(cost);
        }
    }

    fn crash(&mut self) {
        let node = self.node();
        self.grants[node].clear();
    }

    /// Delivers any message in flight, drops it, or delivers it twice.
    fn deliver(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let which = self.below(self.in_flight.len());
        let Some(message) = self.in_flight.remove(which) else { return };
        match (self.random.below(10), &message) {
            (0, _) => return,
            (1, Message::Return { .. }) => self.in_flight.push_back(message.clone()),
            _ => {}
        }
        match message {
            Message::Lease { node, id, sent, want, ttl, older, claim } => {
                let reserve = self.random.below(self.stock + 2);
                let cost = format!("{want} {} {ttl} {reserve}", self.stock);
                let (reply, numbers) = self.call("lease", cost, Some(&[&id[..], &older].concat()));
                let [.., granted, reserved, claimed] = numbers[..] else { panic!("{numbers:?}") };
                assert!(granted <= want.into() && granted <= self.stock, "{numbers:?}");
                assert!(reserved <= reserve && claimed <= self.stock, "{numbers:?}");
                self.claimed += claimed;
                let until = sent.plus(ttl);
                let grant =
                    |id, left, until, is_reserved| Grant { id, left: small(left), until, is_reserved };
                let mut grants =
                    vec![grant(id, granted, until, false), grant(id, reserved, until.plus(reply.wait), true)];
                grants.extend(claim.map(|id| grant(id, claimed, until, false)));
                grants.retain(|grant| grant.left > 0);
                self.in_flight.push_back(Message::Granted { node, grants });
            }
            Message::Return { id, unspent } => {
                self.call("return", unspent.to_string(), Some(&id));
            }
            Message::Granted { node, grants } => self.grants[node].extend(grants),
        }
    }

    fn spend(&mut self) {
        let (node, now) = (self.node(), self.now);
        if self.grants[node].iter_mut().any(|grant| grant.spend(now)) {
            self.spent += 1;
            self.assert_allowed(1);
        }
    }

    fn assert_allowed(&mut self, cost: u32) {
        let decision = self.rule.decide(self.expected.as_mut_slice(), self.now, cost);
        let (rule, now) = (&self.rule, self.now);
        assert!(
            decision.is_allowed(),
            "too many of {rule:?} at {now}, stock {}, time {}",
            self.stock,
            self.ttl
        );
    }

    /// Long after all grants have expired, the whole burst is available again.
    fn assert_all_refill(&mut self) {
        let rule = self.rule;
        let encoded = rule.encode();
        let [p, q, burst] = encoded.numbers() else { panic!("a bucket") };
        self.now = self.now.plus(2 * p * burst / q + 2 * self.ttl + 2);
        let (reply, _) = self.call("peek", "0".into(), None);
        assert_eq!((reply.remaining, reply.reset), (*burst, 0), "{rule:?}: some tokens never refill");
    }
}

#[test]
fn granted_tokens_never_exceed_the_bucket_and_all_of_them_refill() {
    let mut run = Run::start();
    for text in RULES {
        let before = run.spent;
        for _ in 0..60 {
            run.begin(text.parse().expect("a rule"));
            (0..300).for_each(|_| run.step());
            run.assert_all_refill();
        }
        assert!(run.spent > before + 100, "{text}: only {} were spent", run.spent - before);
    }
    assert!(run.claimed > 500, "only {} were reserved and claimed", run.claimed);
}

struct Single {
    mock: MockClockScript,
    rule: Rule,
}

impl Single {
    fn start(text: &str) -> Self {
        Single { mock: MockClockScript::start(), rule: text.parse().expect("a rule") }
    }

    fn call(&mut self, at: u64, operation: &str, cost: &str, id: Option<u8>) -> Vec<u64> {
        let args = RuleArgs { cost: cost.into(), ..RuleArgs::rate("key", 0, &self.rule) };
        let id = id.map(|id| [id; 16]);
        self.mock.numbers(NOON.plus(at), operation, &[args], id.as_ref().map(|id| &id[..])).1[2..].to_vec()
    }

    /// Claims an older reservation, and requests one token more.
    fn claim(&mut self, at: u64, id: u8, older: u8) -> Vec<u64> {
        let args = RuleArgs { cost: "1 8 1000000 0".into(), ..RuleArgs::rate("key", 0, &self.rule) };
        let id = [&[id; 16][..], &[older; 16], &99_u32.to_be_bytes()].concat();
        self.mock.numbers(NOON.plus(at), "lease", &[args], Some(&id)).1[2..].to_vec()
    }
}

#[test]
fn available_tokens_are_granted_and_the_next_ones_are_reserved() {
    let mut one = Single::start("10/s burst 10");
    assert_eq!(one.call(0, "check", "7", None), [0, 3, 0, 700_000]);
    let lease = "5 8 1000000 5";
    assert_eq!(one.call(0, "lease", lease, Some(1)), [0, 0, 0, 1_300_000, 3, 0, 0], "three are available");
    assert_eq!(one.call(0, "lease", lease, Some(2)), [1, 0, 500_000, 1_500_000, 0, 5, 0]);
    assert_eq!(
        one.call(0, "lease", lease, Some(3)),
        [1, 0, 800_000, 1_800_000, 0, 3, 0],
        "the stock is reserved"
    );
    assert_eq!(
        one.call(0, "lease", "5 8 1000000 0", Some(4)),
        [2, 0, 900_000, 1_800_000, 0, 0, 0],
        "the wait for one token"
    );
    assert_eq!(one.call(500_000, "check", "1", None)[..3], [2, 0, 400_000], "reserved tokens are charged");
    assert_eq!(
        one.claim(499_999, 5, 2)[4..],
        [0, 0, 4],
        "one has not come in yet, and is not charged any more"
    );
    assert_eq!(one.claim(800_000, 6, 3)[4..], [0, 0, 1], "no more than the stock may be unspent");
    assert_eq!(one.claim(800_000, 7, 9)[4..], [0, 0, 0], "an unknown reservation");
}

#[test]
fn a_reservation_claimed_late_has_lapsed_by_what_has_refilled() {
    let mut one = Single::start("10/s burst 10");
    assert_eq!(one.call(0, "check", "10", None)[..2], [0, 0]);
    assert_eq!(one.call(0, "lease", "4 8 900000 4", Some(1))[4..], [0, 4, 0]);
    assert_eq!(one.call(1_200_000, "peek", "0", None)[..2], [0, 8], "the charge refills like any other");
    assert_eq!(one.claim(1_200_000, 2, 1)[4..], [1, 0, 2], "two are still charged; one more is available");
    let mut one = Single::start("10/s burst 10");
    assert_eq!(one.call(0, "check", "10", None)[..2], [0, 0]);
    assert_eq!(one.call(0, "lease", "4 8 900000 4", Some(1))[4..], [0, 4, 0]);
    assert_eq!(one.claim(1_300_000, 2, 1)[4..], [1, 0, 0], "it has lapsed");
}

#[test]
fn a_short_lease_does_not_end_the_longer_ones_of_other_nodes() {
    let mut one = Single::start("1000/s burst 10");
    assert_eq!(one.call(0, "lease", "4 8 1000000 0", Some(1))[4..], [4, 0, 0]);
    assert_eq!(one.call(10, "lease", "1 8 1000 0", Some(2))[4..], [1, 0, 0]);
    assert_eq!(one.call(500_000, "peek", "0", None)[..2], [0, 6], "four may still be unspent");
    assert_eq!(one.call(1_100_000, "peek", "0", None)[..2], [0, 10]);
}

#[test]
fn a_returned_reservation_is_available_to_others() {
    let mut one = Single::start("10/s burst 10");
    assert_eq!(one.call(0, "check", "10", None)[..2], [0, 0]);
    assert_eq!(one.call(0, "lease", "4 8 900000 4", Some(1))[4..], [0, 4, 0]);
    assert_eq!(one.call(100_000, "return", "4", Some(1))[..2], [0, 1]);
}

#[test]
fn a_grant_is_returned_once_and_only_while_it_is_known() {
    let mut one = Single::start("1/h burst 10");
    assert_eq!(one.call(0, "lease", "6 10 1000000 0", Some(1))[4..], [6, 0, 0]);
    assert_eq!(one.call(10, "return", "4", Some(2))[..2], [0, 4], "an unknown id");
    assert_eq!(one.call(20, "return", "4", Some(1))[..2], [0, 8]);
    assert_eq!(one.call(30, "return", "4", Some(1))[..2], [0, 8], "twice");
    assert_eq!(one.call(40, "lease", "6 10 1000000 0", Some(3))[4..], [6, 0, 0]);
    assert_eq!(one.call(50, "return", "99", Some(3))[..2], [0, 8], "no more than was granted");
    assert_eq!(one.call(60, "lease", "2 10 1000000 0", Some(4))[4..], [2, 0, 0]);
    assert_eq!(one.call(1_000_060, "return", "2", Some(4))[..2], [0, 6], "it has expired");
}

#[test]
fn a_reset_key_still_owes_the_tokens_of_unspent_grants() {
    let mut one = Single::start("1/h burst 10");
    one.call(0, "check", "3", None);
    one.call(0, "lease", "4 10 1000000 0", Some(1));
    assert_eq!(one.call(1, "reset", "0", None)[..2], [0, 6]);
    assert_eq!(one.call(2, "refund", "9", None)[..2], [0, 6], "nor does a refund return them");
    assert_eq!(one.call(3, "return", "4", Some(1))[..2], [0, 10]);
}

#[test]
fn reporting_older_grants_as_spent_makes_room_for_new_ones() {
    let mut one = Single::start("1000000/s burst 10");
    assert_eq!(one.call(0, "lease", "10 10 1000000 0", Some(1))[4..], [10, 0, 0]);
    assert_eq!(one.call(100, "lease", "10 10 1000000 0", Some(2))[4..], [0, 0, 0], "all ten may be unspent");
    let args = RuleArgs { cost: "10 10 1000000 10".into(), ..RuleArgs::rate("key", 0, &one.rule) };
    let id = [&[3; 16][..], &[1; 16], &3_u32.to_be_bytes()].concat();
    let numbers = one.mock.numbers(NOON.plus(200), "lease", &[args], Some(&id)).1;
    assert_eq!(numbers[6..], [0, 10, 0], "spent tokens refill only from now on: until now they were held");
    assert_eq!(numbers[4], 10, "at the rate of the bucket");
}
