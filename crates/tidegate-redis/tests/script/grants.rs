//! # Tokens that are spent elsewhere
//!
//! Several nodes take tokens ahead, spend them on their own clock, give some back, forget some and die, while requests and
//! replies are late, overtake each other or are lost. Whatever was spent, and whatever the script let pass itself, is
//! charged to a bucket of the core at that instant, and there it must always fit.

use std::collections::VecDeque;

use tidegate_core::{Algorithm, Micros, Rule};

use crate::clocked::Clocked;
use crate::walk::Random;
use crate::wire::{Ask, Told};

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

/// What a node may spend.
#[derive(Clone, Debug)]
struct Lot {
    id: [u8; 16],
    ready: u32,
    later: u32,
    /// From when on what comes later is there, and until when all of it is.
    from: Micros,
    until: Micros,
}

impl Lot {
    fn left(&self) -> u32 {
        self.ready + self.later
    }

    fn spend(&mut self, now: Micros) -> bool {
        if now >= self.from {
            self.ready += std::mem::take(&mut self.later);
        }
        let spends = self.ready > 0 && now < self.until;
        self.ready -= u32::from(spends);
        spends
    }
}

/// What is on its way.
#[derive(Clone, Debug)]
enum Message {
    Lease { node: usize, id: [u8; 16], sent: Micros, want: u32, older: Vec<u8> },
    Return { id: [u8; 16], unspent: u32 },
    Granted { node: usize, lot: Lot, wait: u64 },
}

fn small(number: u64) -> u32 {
    u32::try_from(number).expect("a small number")
}

struct Run {
    clocked: Clocked,
    random: Random,
    rule: Rule,
    /// How long a token takes, more or less.
    pace: u64,
    stock: u64,
    ttl: u64,
    now: Micros,
    right: Vec<u64>,
    lots: Vec<Vec<Lot>>,
    under_way: VecDeque<Message>,
    ids: u64,
    spent: usize,
}

impl Run {
    fn start() -> Self {
        let rule: Rule = RULES[0].parse().expect("a rule");
        Run {
            clocked: Clocked::start(),
            random: Random(3),
            rule,
            pace: 0,
            stock: 0,
            ttl: 0,
            now: NOON,
            right: vec![0; rule.words()],
            lots: Vec::new(),
            under_way: VecDeque::new(),
            ids: 0,
            spent: 0,
        }
    }

    fn begin(&mut self, rule: Rule) {
        let setting = rule.setting();
        let [p, q, burst] = setting.numbers() else { panic!("a bucket") };
        self.clocked.clear();
        self.pace = p / q + 1;
        self.stock = 1 + self.random.below(*burst);
        self.ttl = self.pace * self.random.one_of(&[1, 4, 9, 40]);
        (self.rule, self.now) = (rule, NOON.plus(self.random.below(self.pace)));
        self.right = vec![0; rule.words()];
        self.lots = vec![Vec::new(); NODES];
        self.under_way.clear();
    }

    fn ask(&mut self, verb: char, cost: String, id: Option<&[u8]>) -> (Told, Vec<u64>) {
        let ask = Ask { cost, ..Ask::new("key", 0, &self.rule) };
        self.clocked.numbers(self.now, verb, &[ask], id)
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=2 => self.now = self.now.plus(self.random.below(self.pace)),
            3 if self.random.below(4) == 0 => self.now = self.now.plus(self.random.below(self.ttl)),
            4 | 5 => self.wants(),
            6 => self.gives_back(),
            7 => self.asks_strictly(),
            8 if self.random.below(8) == 0 => self.dies(),
            9..=15 => self.arrives(),
            _ => self.spends(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.below(end as u64)).expect("a small number")
    }

    fn node(&mut self) -> usize {
        self.below(NODES)
    }

    fn wants(&mut self) {
        let node = self.node();
        self.ids += 1;
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.ids.to_be_bytes());
        let of_some = self.random.below(4);
        let older = self.lots[node].iter().filter(|lot| u64::from(lot.id[15]) % 4 <= of_some);
        let older: Vec<u8> =
            older.flat_map(|lot| [&lot.id[..], &lot.left().to_be_bytes()].concat()).collect();
        self.lots[node].retain(|lot| lot.left() > 0);
        let want = 1 + small(self.random.below(self.stock + 2));
        self.under_way.push_back(Message::Lease { node, id, sent: self.now, want, older });
    }

    fn gives_back(&mut self) {
        let node = self.node();
        if let Some(lot) = self.lots[node].pop() {
            self.under_way.push_back(Message::Return { id: lot.id, unspent: lot.left() });
        }
    }

    fn asks_strictly(&mut self) {
        let cost = self.random.one_of(&[1, 1, 2]);
        let (told, _) = self.ask('c', cost.to_string(), None);
        if told.outcome == 0 {
            self.is_right(cost);
        }
    }

    fn dies(&mut self) {
        let node = self.node();
        self.lots[node].clear();
    }

    /// Any of what is under way; or it is lost, or comes twice.
    fn arrives(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let which = self.below(self.under_way.len());
        let Some(message) = self.under_way.remove(which) else { return };
        match (self.random.below(10), &message) {
            (0, _) => return,
            (1, Message::Return { .. }) => self.under_way.push_back(message.clone()),
            _ => {}
        }
        match message {
            Message::Lease { node, id, sent, want, older } => {
                let cost = format!("{want} {} {}", self.stock, self.ttl);
                let (told, numbers) = self.ask('k', cost, Some(&[&id[..], &older].concat()));
                let [.., amount, ready] = numbers[..] else { panic!("{numbers:?}") };
                let until = sent.plus(told.wait).plus(self.ttl);
                let (ready, amount) = (small(ready), small(amount));
                assert!(ready <= amount && amount <= want && u64::from(amount) <= self.stock, "{numbers:?}");
                if amount > 0 {
                    let lot = Lot { id, ready, later: amount - ready, from: self.now, until };
                    self.under_way.push_back(Message::Granted { node, lot, wait: told.wait });
                }
            }
            Message::Return { id, unspent } => {
                self.ask('u', unspent.to_string(), Some(&id));
            }
            Message::Granted { node, lot, wait } => {
                self.lots[node].push(Lot { from: self.now.plus(wait), ..lot });
            }
        }
    }

    fn spends(&mut self) {
        let (node, now) = (self.node(), self.now);
        if self.lots[node].iter_mut().any(|lot| lot.spend(now)) {
            self.spent += 1;
            self.is_right(1);
        }
    }

    fn is_right(&mut self, cost: u32) {
        let decision = self.rule.decide(self.right.as_mut_slice(), self.now, cost);
        let (rule, now) = (&self.rule, self.now);
        assert!(
            decision.is_allowed(),
            "too many of {rule:?} at {now}, stock {}, time {}",
            self.stock,
            self.ttl
        );
    }

    /// When everybody has long gone, all is there again.
    fn ends(&mut self) {
        let rule = self.rule;
        let setting = rule.setting();
        let [p, q, burst] = setting.numbers() else { panic!("a bucket") };
        self.now = self.now.plus(2 * p * burst / q + 2 * self.ttl + 2);
        let (told, _) = self.ask('p', "0".into(), None);
        assert_eq!((told.remaining, told.reset), (*burst, 0), "{rule:?}: something stays taken");
    }
}

#[test]
fn what_is_spent_elsewhere_is_never_too_much_and_nothing_stays_taken() {
    let mut run = Run::start();
    for text in RULES {
        let before = run.spent;
        for _ in 0..60 {
            run.begin(text.parse().expect("a rule"));
            (0..300).for_each(|_| run.step());
            run.ends();
        }
        assert!(run.spent > before + 100, "{text}: only {} were spent", run.spent - before);
    }
}

struct Single {
    clocked: Clocked,
    rule: Rule,
}

impl Single {
    fn start(text: &str) -> Self {
        Single { clocked: Clocked::start(), rule: text.parse().expect("a rule") }
    }

    fn ask(&mut self, at: u64, verb: char, cost: &str, id: Option<u8>) -> Vec<u64> {
        let ask = Ask { cost: cost.into(), ..Ask::new("key", 0, &self.rule) };
        let id = id.map(|id| [id; 16]);
        self.clocked.numbers(NOON.plus(at), verb, &[ask], id.as_ref().map(|id| &id[..])).1[2..].to_vec()
    }
}

#[test]
fn a_grant_is_what_is_there_and_the_rest_when_it_has_come_in() {
    let mut one = Single::start("10/s burst 10");
    assert_eq!(one.ask(0, 'c', "7", None), [0, 3, 0, 700_000]);
    assert_eq!(one.ask(0, 'k', "5 10 1000000", Some(1)), [1, 0, 200_000, 1_700_000, 5, 3], "two are missing");
    assert_eq!(
        one.ask(0, 'k', "9 10 1000000", Some(2)),
        [1, 0, 700_000, 2_200_000, 5, 0],
        "no more than the stock"
    );
    assert_eq!(one.ask(0, 'k', "1 10 1000000", Some(3))[..3], [2, 0, 1_200_000], "until the first expires");
    assert_eq!(one.ask(700_000, 'c', "1", None)[..3], [2, 0, 600_000], "all is granted, and held until then");
    assert_eq!(one.ask(1_200_000, 'p', "0", None)[..2], [0, 0], "what expires does not come back at once");
    assert_eq!(one.ask(1_300_000, 'p', "0", None)[..2], [0, 1], "but the bucket refills again");
}

#[test]
fn what_comes_back_comes_back_once_and_only_while_it_is_known() {
    let mut one = Single::start("1/h burst 10");
    assert_eq!(one.ask(0, 'k', "6 10 1000000", Some(1))[4..], [6, 6]);
    assert_eq!(one.ask(10, 'u', "4", Some(2))[..2], [0, 4], "an id that nobody knows");
    assert_eq!(one.ask(20, 'u', "4", Some(1))[..2], [0, 8]);
    assert_eq!(one.ask(30, 'u', "4", Some(1))[..2], [0, 8], "twice");
    assert_eq!(one.ask(40, 'k', "6 10 1000000", Some(3))[4..], [6, 6]);
    assert_eq!(one.ask(50, 'u', "99", Some(3))[..2], [0, 8], "no more than was granted");
    assert_eq!(one.ask(60, 'k', "2 10 1000000", Some(4))[4..], [2, 2]);
    assert_eq!(one.ask(1_000_060, 'u', "2", Some(4))[..2], [0, 6], "its time is over");
}

#[test]
fn who_is_forgotten_still_owes_what_others_may_spend() {
    let mut one = Single::start("1/h burst 10");
    one.ask(0, 'c', "3", None);
    one.ask(0, 'k', "4 10 1000000", Some(1));
    assert_eq!(one.ask(1, 'x', "0", None)[..2], [0, 6]);
    assert_eq!(one.ask(2, 'r', "9", None)[..2], [0, 6], "nor is it given back by others");
    assert_eq!(one.ask(3, 'u', "4", Some(1))[..2], [0, 10]);
}

#[test]
fn what_is_said_of_older_grants_makes_room() {
    let mut one = Single::start("1000000/s burst 10");
    assert_eq!(one.ask(0, 'k', "10 10 1000000", Some(1))[4..], [10, 10]);
    assert_eq!(one.ask(100, 'k', "10 10 1000000", Some(2))[4..], [0, 0], "all of it may be unspent");
    let ask = Ask { cost: "10 10 1000000".into(), ..Ask::new("key", 0, &one.rule) };
    let id = [&[3; 16][..], &[1; 16], &3_u32.to_be_bytes()].concat();
    let numbers = one.clocked.numbers(NOON.plus(200), 'k', &[ask], Some(&id)).1;
    assert_eq!(numbers[6..], [7, 0], "what was used refills only from now on: until then it was held");
    assert_eq!(numbers[4], 7, "at the pace of the bucket");
}
