//! # What this process holds of one key
//!
//! Lots that are being spent, a request for the next one, and the instant before which Redis need not be asked because there is
//! nothing. All of it is a state and steps; who sends and waits is elsewhere.
//!
//! How much to ask for follows the demand. If the last lot lasted for less than an eighth of its time, the next is twice as
//! large; if for longer than half of it, half as large:
//!
//! ```text
//!   asked    asked    asked        asked                        asked
//!     │ 1      │ 2      │ 4          │ 8                          │ 8
//!     └────────┴────────┴────────────┴────────────────────────────┴──►  t
//!        quick    quick     quick         slow enough
//! ```

use std::sync::Arc;

use tidegate::Micros;
use tokio::sync::Notify;

use super::lot::{Grant, Lot};
use super::purse::{Filling, Purse};

/// How a rule is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    /// How much may be out in all.
    pub(crate) stock: u32,
    /// The largest lot: a share less than there are nodes, so that there is always something left to refill.
    pub(crate) most: u32,
    /// The same where more is wanted than there is: then lots are granted of what comes in, and larger ones cost nobody anything.
    pub(crate) most_if_scarce: u32,
    /// For how many microseconds.
    pub(crate) ttl: u64,
    /// Windows give all that is left, and nothing in advance.
    pub(crate) is_window: bool,
}

#[derive(Debug)]
pub(crate) struct Account {
    lots: Vec<Lot>,
    is_asking: bool,
    /// There is nothing before then.
    shut_until: Micros,
    size: u32,
    /// Whether more is wanted than comes in.
    is_scarce: bool,
    /// How long it was between the last two orders.
    lasted: u64,
    asked_at: Micros,
    spent_at: Micros,
    /// When, as far as is known, the whole limit is there again.
    whole_at: Micros,
    /// What ended by its time since somebody last looked.
    expired: u32,
    /// Rung when a request has come to its end.
    pub(crate) bell: Arc<Notify>,
}

/// What came of asking for some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Spend {
    /// They were there, and so many still are. Whether it is time to ask for more.
    Spent { left: u32, ask: bool },
    /// There is nothing before then.
    NotBefore(Micros),
    /// Redis must be asked, by whoever hears this.
    Ask,
    /// Redis is being asked.
    Wait,
}

/// What to ask Redis for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) want: u32,
    /// What is left of each lot.
    pub(crate) older: Vec<([u8; 16], u32)>,
    pub(crate) sent: Micros,
}

impl Account {
    pub(crate) fn new(now: Micros) -> Self {
        Account {
            lots: Vec::new(),
            is_asking: false,
            shut_until: Micros::ZERO,
            size: 1,
            is_scarce: false,
            lasted: 0,
            asked_at: Micros::ZERO,
            spent_at: now,
            whole_at: now,
            expired: 0,
            bell: Arc::default(),
        }
    }

    /// Spends `cost` if it is there.
    pub(crate) fn spend(&mut self, cost: u32, now: Micros) -> Spend {
        self.spent_at = now;
        self.drop_what_is_over(now);
        let ready: u32 = self.lots.iter_mut().map(|lot| lot.ready(now)).sum();
        if ready >= cost {
            self.lots.iter_mut().fold(cost, |missing, lot| lot.spend(missing));
            let ask = self.runs_out() && !self.is_asking && now >= self.shut_until;
            self.is_asking |= ask;
            return Spend::Spent { left: ready - cost, ask };
        }
        if let Some(from) = self.enough_from(cost - ready) {
            return Spend::NotBefore(from);
        }
        if now < self.shut_until {
            return Spend::NotBefore(self.shut_until);
        }
        if std::mem::replace(&mut self.is_asking, true) { Spend::Wait } else { Spend::Ask }
    }

    /// How many would be left if `cost` were spent; nothing if they are not there.
    pub(crate) fn look(&self, cost: u32, now: Micros) -> Option<u32> {
        let lots = self.lots.iter().filter(|lot| !lot.is_over(now));
        lots.map(|lot| lot.ready_at(now)).sum::<u32>().checked_sub(cost)
    }

    fn drop_what_is_over(&mut self, now: Micros) {
        let expired = &mut self.expired;
        self.lots.retain(|lot| {
            let is_over = lot.is_over(now);
            *expired += if is_over { lot.left() } else { 0 };
            !is_over
        });
    }

    /// How many ended by their time, told once.
    pub(crate) fn take_expired(&mut self) -> u32 {
        std::mem::take(&mut self.expired)
    }

    /// Whether it is time to ask for the next lot.
    fn runs_out(&self) -> bool {
        self.spare() == 0
    }

    /// How many can be spent before it is time to ask for the next lot. Who asks for one at a time is in no hurry.
    fn spare(&self) -> u32 {
        if self.size >= 4 { self.left().saturating_sub(self.size / 4) } else { u32::MAX }
    }

    /// Takes everything out of the purse.
    pub(crate) fn collect(&mut self, purse: &Purse) {
        let left = purse.empty();
        self.spent_at = self.spent_at.max(Micros::new(purse.spent_at()));
        self.lots.iter_mut().for_each(|lot| lot.collect(left));
    }

    /// Puts into the purse what can be spent without anybody having to ask for more.
    pub(crate) fn lay_out(&mut self, purse: &Purse) {
        let most = if self.is_asking { u32::MAX } else { self.spare().saturating_sub(1) };
        let ready: u32 = self.lots.iter().map(Lot::is_ready).sum();
        let Some(lot) = self.lots.iter_mut().find(|lot| lot.is_ready() > 0) else { return };
        let (tokens, until) = lot.lay_out(most);
        let filling =
            Filling { tokens, until: until.get(), beside: ready - tokens, whole_at: self.whole_at.get() };
        purse.fill(filling);
    }

    /// When so much more will be ready, if it is already granted.
    fn enough_from(&self, mut missing: u32) -> Option<Micros> {
        let coming = self.lots.iter().filter(|lot| lot.later() > 0);
        let mut coming: Vec<(Micros, u32)> = coming.map(|lot| (lot.from(), lot.later())).collect();
        coming.sort_unstable();
        coming.into_iter().find_map(|(from, later)| {
            missing = missing.saturating_sub(later);
            (missing == 0).then_some(from)
        })
    }

    /// Takes back what nobody passed for, and tells what finds no room: for Redis that is spent already.
    pub(crate) fn put_back(&mut self, cost: u32, now: Micros) -> u32 {
        self.lots.iter_mut().filter(|lot| !lot.is_over(now)).fold(cost, |rest, lot| lot.put_back(rest))
    }

    /// There may be something again.
    pub(crate) fn ask_again(&mut self) {
        self.shut_until = Micros::ZERO;
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.is_asking
    }

    fn left(&self) -> u32 {
        self.lots.iter().map(Lot::left).sum()
    }

    /// How long, as far as is known, until the whole limit is there again.
    pub(crate) fn whole_in(&self, now: Micros) -> u64 {
        self.whole_at.get().saturating_sub(now.get())
    }

    /// What to ask for, by somebody who needs at least `cost`.
    pub(crate) fn order(&mut self, cost: u32, deal: &Deal, now: Micros) -> Order {
        let since = now.get().saturating_sub(self.asked_at.get());
        if since < deal.ttl / 8 {
            self.size = self.size.saturating_mul(2);
        } else if since > deal.ttl / 2 {
            self.size /= 2;
        }
        let most = if self.is_scarce { deal.most_if_scarce } else { deal.most };
        self.size = self.size.clamp(1, most.max(1));
        (self.asked_at, self.lasted) = (now, since);
        let older = self.lots.iter_mut().map(|lot| (lot.id, lot.tell())).collect();
        Order { want: self.size.max(cost), older, sent: now }
    }

    /// Redis has answered an order.
    pub(crate) fn granted(&mut self, grant: Grant, order: &Order, whole_in: u64, now: Micros) {
        self.is_asking = false;
        self.whole_at = now.plus(whole_in);
        // What is to come takes as long to come as the last lot took to be spent.
        self.is_scarce = grant.there < grant.amount && grant.wait >= self.lasted / 2;
        // Redis has heard that there is nothing left of them.
        self.lots.retain(|lot| lot.left() > 0 || !order.older.contains(&(lot.id, 0)));
        if grant.amount > 0 {
            self.lots.push(Lot::of(grant, order.sent, now));
        } else {
            self.shut_until = now.plus(grant.wait);
        }
    }

    /// Redis has not answered an order. What it may have granted ends by its time.
    pub(crate) fn failed(&mut self) {
        self.is_asking = false;
    }

    /// Everything that is held, if nobody has asked for any of it for so long; it is not spent any more.
    pub(crate) fn idle(&mut self, idle: u64, now: Micros) -> Vec<Lot> {
        self.drop_what_is_over(now);
        let is_idle = now.get().saturating_sub(self.spent_at.get()) >= idle && !self.is_asking;
        if is_idle { std::mem::take(&mut self.lots) } else { Vec::new() }
    }

    /// Everything that is held, to be given back.
    pub(crate) fn close(&mut self, now: Micros) -> Vec<Lot> {
        self.drop_what_is_over(now);
        std::mem::take(&mut self.lots)
    }

    /// Whether it holds nothing, and nobody has asked for so long that the size of its lots is not worth remembering.
    pub(crate) fn is_forgotten(&self, idle: u64, now: Micros) -> bool {
        let since = now.get().saturating_sub(self.spent_at.get());
        self.lots.is_empty() && !self.is_asking && now >= self.shut_until && since >= idle
    }
}
