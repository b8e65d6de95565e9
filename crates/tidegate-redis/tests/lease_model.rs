//! An exhaustive search of the lease protocol on a small bucket.
//!
//! The model has one store, two nodes and one bucket that gains a token per tick. Nodes take grants, spend
//! them, report what is left, return them, reserve tokens that are still to come and claim them later.
//! Messages arrive in any order, late, twice or never. A node that stops acting is a node that died. The
//! store can become unreachable, come back and lose all its data; while it is unreachable each node can spend
//! its local share.
//!
//! Two oracles judge every token spent. The first counts the tokens that came from the store: at most a
//! bucket's worth, plus one burst each time the store loses its data. The second counts all tokens, local
//! shares included, from the start until the store comes back: during an outage everything together stays
//! within the same bucket.
//!
//! Then each rule of the protocol is broken in turn, and the search must find a violation. A rule that can be
//! broken unnoticed is not needed, or the search is too shallow.

use std::collections::HashSet;

const NODES: usize = 2;
/// A local share is counted in tokens ÷ `NODES`, and gains one of these per tick.
const TOKEN: u8 = 2;

/// How large a search is.
#[derive(Clone, Copy, Debug)]
struct Size {
    burst: u8,
    /// How many granted tokens may be unspent at a time. The rest of the burst is what local shares may hold.
    stock: u8,
    /// Long, because a short one hides mistakes.
    ttl: u8,
    orders: u8,
    /// How many strict requests are allowed.
    strict: u8,
    end: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The bucket refills although grants may be unspent.
    RefillsBeyondGrants,
    /// A grant that expires gives its tokens back.
    ExpiryRefunds,
    /// A return of an unknown grant is credited.
    CreditsUnknown,
    /// A node counts the end of a grant from the reply.
    EndFromReply,
    /// A node goes on spending what it returns.
    SpendsWhatItReturns,
    /// A node reports less than it holds.
    ReportsLessThanItHolds,
    /// More is granted than is there.
    GrantsWhatIsNotThere,
    /// More may be unspent than the stock.
    GrantsBeyondStock,
    /// A node spends a reservation without claiming it.
    SpendsReservations,
    /// A reservation can be claimed before its tokens have come in.
    ClaimsBeyondBurst,
    /// A reservation stays after its charge has been refilled.
    NeverLapses,
    /// A local share starts full.
    ShareStartsFull,
    /// A local share may hold a part of the whole burst.
    ShareOfTheWholeBurst,
}

/// Which faults of the store a search tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    None,
    Outage,
    DataLoss,
}

/// What a search tries.
#[derive(Clone, Copy, Debug)]
struct Search {
    faults: Faults,
    broken: Broken,
    size: Size,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Grant {
    id: u8,
    amount: u8,
    expires: u8,
    is_reserved: bool,
}

/// What a node may spend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Held {
    node: usize,
    id: u8,
    amount: u8,
    until: u8,
    is_reserved: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Lease { node: usize, id: u8, want: u8, sent: u8, older: Vec<(u8, u8)> },
    Granted { held: Vec<Held> },
    Return { id: u8, unspent: u8, again: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    used: u8,
    grants: Vec<Grant>,
    held: Vec<Held>,
    under_way: Vec<Message>,
    orders: u8,
    strict: u8,
    is_unreachable: bool,
    faults_left: u8,
    /// The local share of each node that has noticed the outage.
    shares: [Option<u8>; NODES],
    /// What an exact bucket has used, counting only tokens of the store.
    from_store: u8,
    /// The same by all tokens; not counted any more once the store is back.
    in_all: Option<u8>,
    capacity: u8,
}

/// A token was spent that an exact bucket does not have.
struct TooMany;

impl World {
    fn new(search: &Search) -> Self {
        World {
            now: 0,
            used: 0,
            grants: vec![],
            held: vec![],
            under_way: vec![],
            orders: 0,
            strict: 0,
            is_unreachable: false,
            faults_left: u8::from(search.faults != Faults::None),
            shares: [None; NODES],
            from_store: 0,
            in_all: Some(0),
            capacity: search.size.burst,
        }
    }

    fn granted(&self, is_reserved: bool) -> u8 {
        self.grants.iter().filter(|it| it.is_reserved == is_reserved).map(|it| it.amount).sum()
    }

    fn ready(&self) -> u8 {
        self.granted(false)
    }

    fn reserved(&self) -> u8 {
        self.granted(true)
    }

    fn with(&self, change: impl FnOnce(&mut World)) -> World {
        let mut world = self.clone();
        change(&mut world);
        world.held.retain(|held| world.now < held.until);
        world.grants.sort_unstable();
        world.held.sort_unstable();
        world.under_way.sort_unstable();
        world
    }

    /// Everything that can happen next.
    fn next(&self, search: &Search) -> Result<Vec<World>, TooMany> {
        let (mut next, Search { broken, size, .. }) = (Vec::new(), *search);
        if self.now < size.end {
            next.push(self.with(|world| world.tick(search)));
        }
        self.orders(search, &mut next);
        self.arrivals(search, &mut next);
        self.faults(search, &mut next);
        if !self.is_unreachable && self.strict < size.strict && self.used < size.burst {
            let mut world = self.clone();
            world.strict += 1;
            world.used += 1;
            world.spend_from_store()?;
            next.push(world);
        }
        for index in 0..self.held.len() {
            if self.held[index].amount > 0
                && (!self.held[index].is_reserved || broken == Broken::SpendsReservations)
            {
                let mut world = self.clone();
                world.held[index].amount -= 1;
                world.spend_from_store()?;
                next.push(world);
            }
            if self.held[index].amount > 0 {
                next.push(self.with(|world| world.return_grant(index, broken)));
            }
        }
        for node in 0..NODES {
            if self.shares[node].is_some_and(|share| share >= TOKEN) {
                let mut world = self.clone();
                world.shares[node] = world.shares[node].map(|share| share - TOKEN);
                world.spend()?;
                next.push(world);
            }
        }
        Ok(next)
    }

    fn spend_from_store(&mut self) -> Result<(), TooMany> {
        if self.from_store == self.capacity {
            return Err(TooMany);
        }
        self.from_store += 1;
        self.spend()
    }

    fn spend(&mut self) -> Result<(), TooMany> {
        if self.in_all == Some(self.capacity) {
            return Err(TooMany);
        }
        self.in_all = self.in_all.map(|used| used + 1);
        Ok(())
    }

    fn tick(&mut self, search: &Search) {
        let Search { broken, size, .. } = *search;
        self.now += 1;
        self.from_store = self.from_store.saturating_sub(1);
        self.in_all = self.in_all.map(|used| used.saturating_sub(1));
        let full = if broken == Broken::ShareOfTheWholeBurst { size.burst } else { size.burst - size.stock };
        self.shares = self.shares.map(|share| share.map(|share| full.min(share + 1)));
        let floor = if broken == Broken::RefillsBeyondGrants { 0 } else { self.ready() };
        self.used = self.used.max(floor).saturating_sub(1).max(floor);
        self.lapse(broken);
        let ended = self.grants.iter().filter(|it| it.expires <= self.now && !it.is_reserved);
        let ended: u8 = ended.map(|it| it.amount).sum();
        self.grants.retain(|grant| grant.expires > self.now);
        if broken == Broken::ExpiryRefunds {
            self.used = self.used.saturating_sub(ended);
        }
    }

    /// Cuts reservations, the oldest first, to what is charged and not granted.
    fn lapse(&mut self, broken: Broken) {
        let mut cut = self.reserved().saturating_sub(self.used.saturating_sub(self.ready()));
        if broken == Broken::NeverLapses {
            return;
        }
        let mut reservations: Vec<&mut Grant> = self.grants.iter_mut().filter(|it| it.is_reserved).collect();
        reservations.sort_unstable_by_key(|it| it.id);
        for reservation in reservations {
            let less = cut.min(reservation.amount);
            (reservation.amount, cut) = (reservation.amount - less, cut - less);
        }
        self.grants.retain(|grant| grant.amount > 0);
    }

    /// The store becomes unreachable, a node notices, the store comes back; or it loses all its data.
    fn faults(&self, search: &Search, next: &mut Vec<World>) {
        let Search { faults, broken, size } = *search;
        if self.faults_left > 0 {
            next.push(self.with(|world| {
                world.faults_left -= 1;
                match faults {
                    Faults::DataLoss => {
                        world.used = 0;
                        world.grants.clear();
                        world.capacity += size.burst;
                    }
                    _ => world.is_unreachable = true,
                }
            }));
        }
        if self.is_unreachable {
            next.push(self.with(|world| {
                // From here on the shares of nodes that have not noticed yet come on top, so only the first
                // oracle judges.
                world.is_unreachable = false;
                world.in_all = None;
                world.shares = [None; NODES];
            }));
        }
        for node in 0..NODES {
            if self.is_unreachable && self.shares[node].is_none() {
                let starts_with = if broken == Broken::ShareStartsFull { size.burst - size.stock } else { 0 };
                next.push(self.with(|world| world.shares[node] = Some(starts_with)));
            }
        }
    }

    fn orders(&self, search: &Search, next: &mut Vec<World>) {
        let Search { broken, size, .. } = *search;
        if self.orders == size.orders {
            return;
        }
        // The nodes are alike, so the first order is the first node's.
        for node in 0..NODES.min(usize::from(self.orders) + 1) {
            for want in 1..=size.stock {
                next.push(self.with(|world| {
                    world.orders += 1;
                    let less = u8::from(broken == Broken::ReportsLessThanItHolds);
                    let own = world.held.iter().filter(|held| held.node == node);
                    let older = own.map(|held| (held.id, held.amount.saturating_sub(less))).collect();
                    // What is claimed is gone until the reply gives it back.
                    world.held.retain(|held| held.node != node || !held.is_reserved);
                    let (id, sent) = (world.orders, world.now);
                    world.under_way.push(Message::Lease { node, id, want, sent, older });
                }));
            }
        }
    }

    fn arrivals(&self, search: &Search, next: &mut Vec<World>) {
        for index in 0..self.under_way.len() {
            let message = &self.under_way[index];
            if self.is_unreachable && !matches!(message, Message::Granted { .. }) {
                continue;
            }
            next.push(self.with(|world| {
                world.under_way.remove(index);
                world.arrive(message.clone(), search);
            }));
        }
    }

    fn arrive(&mut self, message: Message, search: &Search) {
        let broken = search.broken;
        match message {
            Message::Lease { node, id, want, sent, older } => {
                let mut held = self.apply_reports(node, sent, &older, search);
                held.extend(self.grant(node, id, want, sent, search));
                self.under_way.push(Message::Granted { held });
            }
            Message::Granted { mut held } => {
                if broken == Broken::EndFromReply {
                    held.iter_mut().for_each(|held| held.until = held.until.max(self.now + search.size.ttl));
                }
                self.held.extend(held);
            }
            Message::Return { id, unspent, again } => {
                // A return can arrive twice, but one such case is enough.
                let is_first = !self.under_way.iter().any(|it| matches!(it, Message::Return { .. }));
                if !again && is_first {
                    self.under_way.push(Message::Return { id, unspent, again: true });
                }
                let credit = match self.grants.iter().position(|grant| grant.id == id) {
                    Some(at) => unspent.min(self.grants.remove(at).amount),
                    None if broken == Broken::CreditsUnknown => unspent,
                    None => 0,
                };
                self.used = self.used.saturating_sub(credit).max(self.ready());
            }
        }
    }

    /// Takes note of what is left of older grants, and turns a reservation into a grant.
    fn apply_reports(&mut self, node: usize, sent: u8, older: &[(u8, u8)], search: &Search) -> Vec<Held> {
        let Search { broken, size, .. } = *search;
        let mut claimed = Vec::new();
        for (id, left) in older {
            let Some(at) = self.grants.iter().position(|grant| grant.id == *id) else { continue };
            if !self.grants[at].is_reserved {
                self.grants[at].amount = self.grants[at].amount.min(*left);
                continue;
            }
            let (ready, reserved) = (self.ready(), self.reserved());
            let Grant { amount, .. } = self.grants.remove(at);
            let come_in = match broken {
                Broken::ClaimsBeyondBurst => amount,
                _ => (size.burst + reserved).saturating_sub(self.used),
            };
            let stock =
                if broken == Broken::GrantsBeyondStock { amount } else { size.stock.saturating_sub(ready) };
            let got = amount.min(come_in).min(stock);
            self.used = self.used.saturating_sub(amount - got);
            self.grants.push(Grant {
                id: *id,
                amount: got,
                expires: self.now + size.ttl,
                is_reserved: false,
            });
            claimed.push(Held { node, id: *id, amount: got, until: sent + size.ttl, is_reserved: false });
        }
        self.grants.retain(|grant| grant.amount > 0);
        claimed
    }

    /// Grants the tokens that are available; if there are none, reserves the next ones.
    fn grant(&mut self, node: usize, id: u8, want: u8, sent: u8, search: &Search) -> Option<Held> {
        let Search { broken, size, .. } = *search;
        let there = match broken {
            Broken::GrantsWhatIsNotThere => size.burst,
            _ => size.burst.saturating_sub(self.used),
        };
        let is_reserved = there == 0;
        let amount = if is_reserved {
            want.min(size.stock.saturating_sub(self.reserved()))
        } else {
            let stock = if broken == Broken::GrantsBeyondStock { size.burst } else { size.stock };
            want.min(there).min(stock.saturating_sub(self.ready()))
        };
        if amount == 0 {
            return None;
        }
        self.used += amount;
        let wait = self.used.saturating_sub(size.burst);
        self.grants.push(Grant { id, amount, expires: self.now + wait + size.ttl, is_reserved });
        Some(Held { node, id, amount, until: sent + wait + size.ttl, is_reserved })
    }

    fn return_grant(&mut self, index: usize, broken: Broken) {
        let held = self.held[index].clone();
        self.under_way.push(Message::Return { id: held.id, unspent: held.amount, again: false });
        if broken != Broken::SpendsWhatItReturns || self.under_way.len() > 2 {
            self.held.remove(index);
        }
    }

    /// No token is held forever: once every node is gone, the bucket fills up again.
    fn leaks(&self, search: &Search) -> bool {
        let mut world = World { held: vec![], under_way: vec![], ..self.clone() };
        for _ in 0..search.size.ttl + 3 * search.size.burst + search.size.end {
            world.tick(search);
        }
        world.used > 0 || !world.grants.is_empty()
    }
}

impl Search {
    /// Whether too many tokens can be spent, and how many states there are.
    fn run(&self) -> (bool, usize) {
        let mut seen = HashSet::from([World::new(self)]);
        let mut open = vec![World::new(self)];
        while let Some(world) = open.pop() {
            let Ok(next) = world.next(self) else { return (true, seen.len()) };
            for world in next {
                if seen.insert(world.clone()) {
                    assert!(
                        self.broken != Broken::Nothing || !world.leaks(self),
                        "tokens stay taken: {world:?}"
                    );
                    open.push(world);
                }
            }
        }
        (false, seen.len())
    }
}

const NO_FAULTS: (Faults, Size) =
    (Faults::None, Size { burst: 1, stock: 1, ttl: 4, orders: 3, strict: 1, end: 5 });
const OUTAGE: (Faults, Size) =
    (Faults::Outage, Size { burst: 3, stock: 1, ttl: 4, orders: 2, strict: 3, end: 5 });
const DATA_LOSS: (Faults, Size) =
    (Faults::DataLoss, Size { burst: 2, stock: 2, ttl: 3, orders: 2, strict: 2, end: 5 });

fn no_order_of_events_admits_too_many((faults, size): (Faults, Size)) {
    let (too_many, worlds) = Search { faults, broken: Broken::Nothing, size }.run();
    println!("{faults:?}: {worlds} states");
    assert!(!too_many, "{faults:?}");
    assert!(worlds > 50_000, "only {worlds} states");
}

#[test]
fn no_order_of_messages_admits_too_many_or_leaks_tokens() {
    no_order_of_events_admits_too_many(NO_FAULTS);
}

#[test]
fn grants_and_local_shares_together_stay_within_the_limit_in_an_outage() {
    no_order_of_events_admits_too_many(OUTAGE);
}

#[test]
fn a_store_that_loses_its_data_admits_at_most_one_burst_more() {
    no_order_of_events_admits_too_many(DATA_LOSS);
}

#[test]
fn every_rule_of_the_protocol_is_needed() {
    use Broken::{
        ClaimsBeyondBurst, CreditsUnknown, EndFromReply, ExpiryRefunds, GrantsBeyondStock,
        GrantsWhatIsNotThere, NeverLapses, RefillsBeyondGrants, ReportsLessThanItHolds, ShareOfTheWholeBurst,
        ShareStartsFull, SpendsReservations, SpendsWhatItReturns,
    };
    for (broken, (faults, size)) in [
        (RefillsBeyondGrants, NO_FAULTS),
        (ExpiryRefunds, OUTAGE),
        (CreditsUnknown, NO_FAULTS),
        (EndFromReply, NO_FAULTS),
        (SpendsWhatItReturns, NO_FAULTS),
        (ReportsLessThanItHolds, NO_FAULTS),
        (GrantsWhatIsNotThere, NO_FAULTS),
        (GrantsBeyondStock, OUTAGE),
        (SpendsReservations, OUTAGE),
        (SpendsReservations, DATA_LOSS),
        (ClaimsBeyondBurst, NO_FAULTS),
        (NeverLapses, NO_FAULTS),
        (ShareStartsFull, OUTAGE),
        (ShareOfTheWholeBurst, OUTAGE),
    ] {
        assert!(Search { faults, broken, size }.run().0, "{broken:?} is not noticed ({faults:?})");
    }
}
