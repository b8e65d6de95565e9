//! Everything that can happen to a small bucket whose tokens are leased.
//!
//! The rules of `WIRE.md` once more, in the smallest words: a token comes in with every tick, two nodes take tokens ahead, spend
//! them, say what is left, give them back; messages arrive in any order, late, twice or never; a node that does nothing any more
//! may have died. All of it is tried, and each
//! token spent must fit into a bucket that knows of nothing but what is spent. Then each rule is broken in turn, and it must
//! show: a rule that can be broken unseen is none, or this page does not look hard enough.

use std::collections::HashSet;

const BURST: u8 = 3;
/// Long: a short one hides mistakes.
const TTL: u8 = 4;
const NODES: u8 = 2;
const ORDERS: u8 = 2;
const END: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The bucket refills although grants may be unspent.
    RefillsBeyondGrants,
    /// A grant that ends gives its tokens back.
    EndRefunds,
    /// A grant that is not there is credited all the same.
    CreditsUnknown,
    /// A node counts the end of a lot from the answer.
    EndFromAnswer,
    /// A node counts what comes later from the question.
    LaterFromQuestion,
    /// A node goes on spending what it gives back.
    SpendsWhatItGivesBack,
    /// A node tells what is left of a lot, and then puts more back into it.
    TellsLessThanThereIs,
    /// What is not there is granted for now.
    GrantsTheFuture,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Grant {
    id: u8,
    amount: u8,
    expires: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lot {
    node: u8,
    id: u8,
    ready: u8,
    later: u8,
    from: u8,
    until: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Lease { node: u8, id: u8, want: u8, sent: u8, older: Vec<(u8, u8)> },
    Granted { lot: Lot, wait: u8 },
    Return { id: u8, unspent: u8, again: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    /// In Redis.
    used: u8,
    grants: Vec<Grant>,
    lots: Vec<Lot>,
    under_way: Vec<Message>,
    orders: u8,
    /// What a bucket holds that knows of nothing but what is spent.
    right: u8,
}

impl World {
    fn new() -> Self {
        World { now: 0, used: 0, grants: vec![], lots: vec![], under_way: vec![], orders: 0, right: 0 }
    }

    fn live(&self) -> u8 {
        self.grants.iter().map(|grant| grant.amount).sum()
    }

    fn with(&self, change: impl FnOnce(&mut World)) -> World {
        let mut world = self.clone();
        change(&mut world);
        world.lots.retain(|lot| world.now < lot.until);
        world.grants.sort_unstable();
        world.lots.sort_unstable();
        world.under_way.sort_unstable();
        world
    }

    /// Everything that can happen next; nothing if a token was spent that is not there.
    fn next(&self, broken: Broken) -> Option<Vec<World>> {
        let mut next = Vec::new();
        if self.now < END {
            next.push(self.with(|world| world.tick(broken)));
        }
        self.orders(broken, &mut next);
        self.arrivals(broken, &mut next);
        for index in 0..self.lots.len() {
            let lot = &self.lots[index];
            let ready = lot.ready + if self.now >= lot.from { lot.later } else { 0 };
            if ready > 0 {
                if self.right == BURST {
                    return None;
                }
                next.push(self.with(|world| world.spend(index)));
            }
            next.push(self.with(|world| world.give_back(index, broken)));
        }
        Some(next)
    }

    fn tick(&mut self, broken: Broken) {
        self.now += 1;
        self.right = self.right.saturating_sub(1);
        let floor = if broken == Broken::RefillsBeyondGrants { 0 } else { self.live() };
        self.used = self.used.max(floor).saturating_sub(1).max(floor);
        let ended: u8 = self.grants.iter().filter(|it| it.expires <= self.now).map(|it| it.amount).sum();
        self.grants.retain(|grant| grant.expires > self.now);
        if broken == Broken::EndRefunds {
            self.used = self.used.saturating_sub(ended);
        }
    }

    fn orders(&self, broken: Broken, next: &mut Vec<World>) {
        if self.orders == ORDERS {
            return;
        }
        for node in 0..NODES {
            for want in [1, BURST] {
                next.push(self.with(|world| {
                    world.orders += 1;
                    let own = world.lots.iter().filter(|lot| lot.node == node);
                    let less = u8::from(broken == Broken::TellsLessThanThereIs);
                    let left = |lot: &Lot| (lot.id, (lot.ready + lot.later).saturating_sub(less));
                    let older = own.map(left).collect();
                    let (id, sent) = (world.orders, world.now);
                    world.under_way.push(Message::Lease { node, id, want, sent, older });
                }));
            }
        }
    }

    fn arrivals(&self, broken: Broken, next: &mut Vec<World>) {
        for index in 0..self.under_way.len() {
            let message = &self.under_way[index];
            next.push(self.with(|world| {
                world.under_way.remove(index);
                world.arrive(message.clone(), broken);
            }));
        }
    }

    fn arrive(&mut self, message: Message, broken: Broken) {
        match message {
            Message::Lease { node, id, want, sent, older } => {
                self.lease(node, id, want, sent, &older, broken)
            }
            Message::Granted { mut lot, wait } => {
                if broken != Broken::LaterFromQuestion {
                    lot.from = self.now + wait;
                }
                if broken == Broken::EndFromAnswer {
                    lot.until = self.now + wait + TTL;
                }
                self.lots.push(lot);
            }
            Message::Return { id, unspent, again } => {
                if !again {
                    self.under_way.push(Message::Return { id, unspent, again: true });
                }
                let credit = match self.grants.iter().position(|grant| grant.id == id) {
                    Some(at) => unspent.min(self.grants.remove(at).amount),
                    None if broken == Broken::CreditsUnknown => unspent,
                    None => 0,
                };
                self.used = self.used.saturating_sub(credit).max(self.live());
            }
        }
    }

    fn lease(&mut self, node: u8, id: u8, want: u8, sent: u8, older: &[(u8, u8)], broken: Broken) {
        for (id, left) in older {
            if let Some(grant) = self.grants.iter_mut().find(|grant| grant.id == *id) {
                grant.amount = grant.amount.min(*left);
            }
        }
        self.grants.retain(|grant| grant.amount > 0);
        let amount = want.min(BURST.saturating_sub(self.live()));
        if amount == 0 {
            return;
        }
        let there = amount.min(BURST.saturating_sub(self.used));
        self.used += amount;
        let wait = self.used.saturating_sub(BURST);
        self.grants.push(Grant { id, amount, expires: self.now + wait + TTL });
        let ready = if broken == Broken::GrantsTheFuture { amount } else { there };
        let (from, until) = (sent + wait, sent + wait + TTL);
        let lot = Lot { node, id, ready, later: amount - ready, from, until };
        self.under_way.push(Message::Granted { lot, wait });
    }

    fn spend(&mut self, index: usize) {
        self.right += 1;
        let lot = &mut self.lots[index];
        if self.now >= lot.from {
            lot.ready += std::mem::take(&mut lot.later);
        }
        lot.ready -= 1;
    }

    fn give_back(&mut self, index: usize, broken: Broken) {
        let lot = self.lots[index].clone();
        self.under_way.push(Message::Return { id: lot.id, unspent: lot.ready + lot.later, again: false });
        if broken != Broken::SpendsWhatItGivesBack || self.under_way.len() > usize::from(ORDERS) {
            self.lots.remove(index);
        }
    }

    /// Nothing is held for ever: once all are gone, all is there again.
    fn leaks(&self) -> bool {
        let mut world = World { lots: vec![], under_way: vec![], ..self.clone() };
        for _ in 0..TTL + 3 * BURST + END {
            world.now = world.now.min(100);
            world.tick(Broken::Nothing);
        }
        world.used > 0 || !world.grants.is_empty()
    }
}

/// Whether too many can pass, and how many worlds there are.
fn search(broken: Broken, enough: usize) -> (bool, usize) {
    let mut seen = HashSet::from([World::new()]);
    let mut open = vec![World::new()];
    while let Some(world) = open.pop() {
        let Some(next) = world.next(broken) else { return (true, seen.len()) };
        for world in next {
            assert!(broken != Broken::Nothing || !world.leaks(), "something stays taken: {world:?}");
            if seen.insert(world.clone()) {
                open.push(world);
            }
        }
        if seen.len() > enough {
            break;
        }
    }
    (false, seen.len())
}

#[test]
fn no_order_of_events_lets_too_many_pass_or_keeps_anything_for_ever() {
    let (too_many, worlds) = search(Broken::Nothing, usize::MAX);
    assert!(!too_many);
    assert!(worlds > 100_000, "only {worlds} worlds");
    println!("{worlds} worlds");
}

#[test]
fn every_rule_is_needed() {
    use Broken::{
        CreditsUnknown, EndFromAnswer, EndRefunds, GrantsTheFuture, LaterFromQuestion, RefillsBeyondGrants,
        SpendsWhatItGivesBack, TellsLessThanThereIs,
    };
    for broken in [
        RefillsBeyondGrants,
        EndRefunds,
        CreditsUnknown,
        EndFromAnswer,
        LaterFromQuestion,
        SpendsWhatItGivesBack,
        TellsLessThanThereIs,
        GrantsTheFuture,
    ] {
        assert!(search(broken, usize::MAX).0, "{broken:?} is not seen");
    }
}
