//! # Requesting and returning grants
//!
//! Each request runs in a task of its own, so that a caller that stops waiting for a grant does not cancel it for the
//! other waiters.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::Clock;
use tidegate_core::{Decision, Outcome};
use tokio::sync::Notify;

use super::account::{Closed, LeaseTerms, Order};
use super::accounts::{Accounts, Swept};
use super::clock::BootClock;
use super::grant::{Grant, GrantReply};
use super::striped::Striped;
use crate::error::Error;
use crate::gate::RedisGate;
use crate::wire::{Line, Reply, Terms, Verb};

/// The state that all clones of a leased gate share.
#[derive(Debug)]
pub(crate) struct Refill {
    pub(crate) gate: RedisGate,
    pub(crate) deals: Box<[Option<LeaseTerms>]>,
    pub(crate) accounts: Accounts,
    pub(crate) clock: BootClock,
    /// Whether no rule is leased.
    pub(crate) is_strict: bool,
    /// The number of requests for grants in flight.
    pub(crate) asking: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) spent: Striped,
    pub(crate) refused: Striped,
    pub(crate) asked: AtomicU64,
    pub(crate) granted: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) stranded: AtomicU64,
}

/// After Redis granted nothing, a node asks again after at most `ttl / PAUSE`.
const PAUSE: u64 = 8;

impl Refill {
    /// Requests a grant on behalf of a caller that needs `cost`, and notifies waiters at the end.
    pub(crate) fn ask(self: &Arc<Self>, rule: usize, key: &[u8], cost: u32) {
        let (refill, key): (_, Box<[u8]>) = (self.clone(), key.into());
        let runtime = self.gate.shared.runtime.clone();
        self.asking.fetch_add(1, Ordering::Relaxed);
        runtime.spawn(async move {
            refill.fetch(rule, &key, cost).await;
            refill.asking.fetch_sub(1, Ordering::Relaxed);
        });
    }

    async fn fetch(&self, rule: usize, key: &[u8], cost: u32) {
        let Some(terms) = self.deals[rule] else { return };
        let now = self.clock.now();
        let Some(order) = self
            .accounts
            .with_open(self.accounts.name(rule, key), |account| account.order(cost, &terms, now))
        else {
            return;
        };
        let id: [u8; 16] = self.gate.shared.ids.next().try_into().unwrap_or_default();
        let answer = self.send(rule, key, &terms, &order, id).await;
        add(&self.counts().asked, 1);
        let bell = match &answer {
            Ok(reply) => self.received(rule, key, granted(reply, &terms, order.ttl, id), &order, reply).await,
            Err(error) => {
                if *error != Error::NotAsked {
                    add(&self.counts().stranded, order.want);
                }
                self.accounts.with_open(self.accounts.name(rule, key), |account| {
                    account.failed();
                    account.bell.clone()
                })
            }
        };
        if let Some(bell) = bell {
            bell.notify_waiters();
        }
    }

    /// Adds a grant to the account that requested it.
    ///
    /// If the account was closed meanwhile, the grant goes back to Redis immediately.
    async fn received(
        &self,
        rule: usize,
        key: &[u8],
        grant: GrantReply,
        order: &Order,
        reply: &Reply,
    ) -> Option<Arc<Notify>> {
        add(&self.counts().granted, grant.amount + grant.claimed);
        let (now, whole_in) = (self.clock.now(), reply.decisions[0].reset_after().as_micros());
        let bell = self.accounts.with_open(self.accounts.name(rule, key), |account| {
            account.granted(grant, order, whole_in, now);
            account.bell.clone()
        });
        if bell.is_none() {
            let claimed = order.claim.and_then(|claim| grant.claimed_grant(claim.id, order.sent));
            let grants = grant.grant(order.sent).into_iter().chain(claimed).collect();
            self.give_back_closed(
                rule,
                key,
                Closed { grants, reservation: grant.reservation(order.sent, now) },
            )
            .await;
        }
        bell
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.gate.shared.counts.numbers.leases
    }

    async fn send(
        &self,
        rule: usize,
        key: &[u8],
        terms: &LeaseTerms,
        order: &Order,
        id: [u8; 16],
    ) -> Result<Reply, Error> {
        let (shared, cost) = (&self.gate.shared, order.want);
        if terms.is_window {
            let line = [self.line(rule, key, cost, Terms::Plain)];
            return shared.ask(Verb::Take, &line, None, shared.deadline).await;
        }
        let terms = Terms::Lease { stock: terms.stock, ttl: order.ttl, ahead: cost };
        let line = [self.line(rule, key, cost, terms)];
        let claim = order.claim.map(|claim| (claim.id, claim.amount));
        let older = order.older.iter().chain(&claim);
        let older = older.flat_map(|(id, left)| [&id[..], &left.to_be_bytes()].concat());
        let ids: Vec<u8> = id.into_iter().chain(older).collect();
        shared.ask(Verb::Lease, &line, Some(&ids), shared.deadline).await
    }

    fn line(&self, rule: usize, key: &[u8], cost: u32, terms: Terms) -> Line<'_> {
        let spec = &self.gate.shared.rules[rule];
        Line { key: self.gate.shared.keys.name(&spec.name, key), cost, terms, rule: &spec.described }
    }

    /// Returns grants that are not spent any more. Tokens in lost commands expire.
    pub(crate) async fn give_back(&self, swept: Swept) {
        self.counts().expired.fetch_add(swept.expired, Ordering::Relaxed);
        for (rule, key, closed) in swept.back {
            self.give_back_closed(rule, &key, closed).await;
        }
    }

    async fn give_back_closed(&self, rule: usize, key: &[u8], closed: Closed) {
        for grant in closed.grants {
            self.give_back_one(rule, key, &grant).await;
        }
        if let Some(reservation) = closed.reservation {
            let line = [self.line(rule, key, reservation.amount, Terms::Plain)];
            let shared = &self.gate.shared;
            // Without a reply, the reservation expires.
            let _ = shared.ask(Verb::Return, &line, Some(&reservation.id), shared.deadline).await;
            add(&self.counts().asked, 1);
        }
    }

    async fn give_back_one(&self, rule: usize, key: &[u8], grant: &Grant) {
        let (shared, left) = (&self.gate.shared, grant.left());
        let is_window = self.deals[rule].is_some_and(|terms| terms.is_window);
        let answer = if is_window {
            let line = [self.line(rule, key, left, Terms::Til(grant.ends))];
            shared.ask(Verb::GiveBack, &line, None, shared.deadline).await
        } else {
            let line = [self.line(rule, key, left, Terms::Plain)];
            shared.ask(Verb::Return, &line, Some(&grant.id), shared.deadline).await
        };
        add(&self.counts().asked, 1);
        let count = if answer.is_ok() { &self.counts().returned } else { &self.counts().stranded };
        add(count, left);
    }

    /// Returns idle tokens periodically, until the gate is dropped.
    pub(crate) async fn sweep(refill: Weak<Refill>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let Some(refill) = refill.upgrade() else { return };
            let swept = refill.accounts.idle(&refill.deals, refill.clock.now());
            refill.give_back(swept).await;
        }
    }
}

pub(crate) fn add(count: &AtomicU64, number: u32) {
    count.fetch_add(number.into(), Ordering::Relaxed);
}

/// Extracts the grant from a reply.
pub(crate) fn granted(reply: &Reply, terms: &LeaseTerms, ttl: u64, id: [u8; 16]) -> GrantReply {
    let (told, amount) = (reply.decisions[0], reply.taken.unwrap_or(0));
    let reset = told.reset_after().as_micros();
    let ends = told.at().plus(reset);
    if terms.is_window {
        let wait = if amount == 0 { reset } else { 0 };
        return GrantReply { id, amount, wait, lasts: terms.ttl.min(reset), ends, ..GrantReply::default() };
    }
    let (reserved, claimed) = (reply.reserved, reply.claimed);
    let is_out_of_stock = amount + reserved + claimed == 0 && told.remaining() > 0;
    // Another node may return tokens earlier.
    let longest = match reserved {
        0 if is_out_of_stock => terms.ttl / (4 * PAUSE),
        0 => terms.ttl / PAUSE,
        _ => u64::MAX,
    };
    GrantReply {
        id,
        amount,
        reserved,
        claimed,
        is_out_of_stock,
        wait: waits(&told).min(longest),
        lasts: ttl,
        ends,
    }
}

fn waits(told: &Decision) -> u64 {
    match told.outcome {
        Outcome::AllowedAfter(wait) | Outcome::RetryAfter(wait) => wait.as_micros(),
        _ => 0,
    }
}
