//! # Asking for lots, and giving them back
//!
//! Tasks of their own: who gives up waiting for a lot does not take it from the others who wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::Clock;
use tidegate_core::{Decision, Outcome};
use tokio::sync::Notify;

use super::account::{Account, Deal, Order};
use super::accounts::{Accounts, Back};
use super::clock::BootClock;
use super::lot::{Grant, Lot};
use crate::gate::RedisGate;
use crate::trouble::Trouble;
use crate::wire::{Line, Reply, Terms, Verb};

/// What all clones of a leased gate share.
#[derive(Debug)]
pub(crate) struct Office {
    pub(crate) gate: RedisGate,
    pub(crate) deals: Box<[Option<Deal>]>,
    pub(crate) accounts: Accounts,
    pub(crate) clock: BootClock,
    pub(crate) counts: Counts,
}

/// Everybody writes them, so they have cache lines of their own: what stands beside is read by everybody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    pub(crate) spent: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) asked: AtomicU64,
    pub(crate) granted: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) stranded: AtomicU64,
}

/// Who asks for nothing for so long is not asked again at once.
const PAUSE: u64 = 8;

impl Office {
    /// Asks for a lot, for somebody who needs `cost` of it, and rings the bell when that has come to its end.
    pub(crate) fn ask(self: &Arc<Self>, rule: usize, key: &[u8], cost: u32) {
        let (office, key): (_, Box<[u8]>) = (self.clone(), key.into());
        let runtime = self.gate.shared.runtime.clone();
        runtime.spawn(async move { office.fetch(rule, &key, cost).await });
    }

    async fn fetch(&self, rule: usize, key: &[u8], cost: u32) {
        let Some(deal) = self.deals[rule] else { return };
        let now = self.clock.now();
        let begin = |account: &mut Account| (account.order(cost, &deal, now), account.bell.clone());
        let Some((order, bell)) = self.accounts.with_open(self.accounts.name(rule, key), begin) else {
            return;
        };
        let id: [u8; 16] = self.gate.shared.ids.next().try_into().unwrap_or_default();
        let answer = self.send(rule, key, &deal, &order, id).await;
        add(&self.counts.asked, 1);
        let answer =
            answer.map(|reply| (granted(&reply, &deal, id), reply.decisions[0].reset_after().as_micros()));
        match &answer {
            Ok((grant, _)) => add(&self.counts.granted, grant.amount),
            Err(_) => add(&self.counts.stranded, order.want),
        }
        if let Some(lot) = self.settle(rule, key, answer.ok(), &order, &bell) {
            self.give_back_one(rule, key, &lot).await;
        }
        bell.notify_waiters();
    }

    /// Tells an account what came of its order. If it has been closed meanwhile, nobody is there to spend the lot.
    fn settle(
        &self,
        rule: usize,
        key: &[u8],
        answer: Option<(Grant, u64)>,
        order: &Order,
        bell: &Arc<Notify>,
    ) -> Option<Lot> {
        let now = self.clock.now();
        let told = self.accounts.with_open(self.accounts.name(rule, key), |account| {
            let is_the_same = Arc::ptr_eq(&account.bell, bell);
            match answer {
                _ if !is_the_same => {}
                Some((grant, whole_in)) => account.granted(grant, order, whole_in, now),
                None => account.failed(),
            }
            is_the_same
        });
        let (grant, _) = answer.filter(|(grant, _)| told != Some(true) && grant.amount > 0)?;
        Some(Lot::of(grant, order.sent, now))
    }

    async fn send(
        &self,
        rule: usize,
        key: &[u8],
        deal: &Deal,
        order: &Order,
        id: [u8; 16],
    ) -> Result<Reply, Trouble> {
        let (shared, cost) = (&self.gate.shared, order.want);
        if deal.is_window {
            let line = [self.line(rule, key, cost, Terms::Plain)];
            return shared.ask(Verb::Take, &line, None, shared.deadline).await;
        }
        let line = [self.line(rule, key, cost, Terms::Lease { stock: deal.stock, ttl: deal.ttl })];
        let older = order.older.iter().flat_map(|(id, left)| [&id[..], &left.to_be_bytes()].concat());
        let ids: Vec<u8> = id.into_iter().chain(older).collect();
        shared.ask(Verb::Lease, &line, Some(&ids), shared.deadline).await
    }

    fn line(&self, rule: usize, key: &[u8], cost: u32, terms: Terms) -> Line<'_> {
        let shape = &self.gate.shared.rules[rule];
        Line { key: self.gate.shared.keys.name(&shape.name, key), cost, terms, rule: &shape.described }
    }

    /// Closes all accounts, and ends when everything that was granted is back, or was lost on its way.
    pub(crate) async fn close(&self) {
        let closed = self.accounts.close();
        self.give_back(closed.back).await;
        for bell in closed.asking {
            bell.await;
        }
    }

    /// Gives lots back that are not spent any more. What does not arrive ends by its time.
    pub(crate) async fn give_back(&self, back: Vec<Back>) {
        for (rule, key, lots) in back {
            for lot in lots {
                self.give_back_one(rule, &key, &lot).await;
            }
        }
    }

    async fn give_back_one(&self, rule: usize, key: &[u8], lot: &Lot) {
        let (shared, left) = (&self.gate.shared, lot.left());
        let is_window = self.deals[rule].is_some_and(|deal| deal.is_window);
        let answer = if is_window {
            let line = [self.line(rule, key, left, Terms::Til(lot.ends))];
            shared.ask(Verb::GiveBack, &line, None, shared.deadline).await
        } else {
            let line = [self.line(rule, key, left, Terms::Plain)];
            shared.ask(Verb::Return, &line, Some(&lot.id), shared.deadline).await
        };
        add(&self.counts.asked, 1);
        let count = if answer.is_ok() { &self.counts.returned } else { &self.counts.stranded };
        add(count, left);
    }

    /// Gives back what is idle, again and again, until the gate is gone.
    pub(crate) async fn sweep(office: Weak<Office>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let Some(office) = office.upgrade() else { return };
            let back = office.accounts.idle(&office.deals, office.clock.now());
            office.give_back(back).await;
        }
    }
}

pub(crate) fn add(count: &AtomicU64, number: u32) {
    count.fetch_add(number.into(), Ordering::Relaxed);
}

/// What a reply grants.
fn granted(reply: &Reply, deal: &Deal, id: [u8; 16]) -> Grant {
    let (told, amount) = (reply.decisions[0], reply.taken.unwrap_or(0));
    let reset = told.reset_after().as_micros();
    let ends = told.at().plus(reset);
    if deal.is_window {
        let wait = if amount == 0 { reset } else { 0 };
        return Grant { id, amount, there: amount, wait, lasts: deal.ttl.min(reset), ends };
    }
    // Somebody may give some back before.
    let wait = if amount == 0 { waits(&told).min(deal.ttl / PAUSE) } else { waits(&told) };
    Grant { id, amount, there: reply.there.unwrap_or(0), wait, lasts: deal.ttl, ends }
}

fn waits(told: &Decision) -> u64 {
    match told.outcome {
        Outcome::AllowedAfter(wait) | Outcome::RetryAfter(wait) => wait.as_micros(),
        _ => 0,
    }
}
