//! # Account: the tokens of one key in this process
//!
//! An account has grants that are being spent, a reservation of the tokens that refill next, the request for more that
//! is in flight, and the instant before which a request is pointless. This module has only state and transitions;
//! sending and waiting is done elsewhere.
//!
//! The size of a request follows the demand. If the last grant lasted for less than an eighth of its lifetime, the next
//! is twice as large; if it lasted for more than half of it, half as large:
//!
//! ```text
//!   asked    asked    asked        asked                        asked
//!     │ 1      │ 2      │ 4          │ 8                          │ 8
//!     └────────┴────────┴────────────┴────────────────────────────┴──►  t
//!        quick    quick     quick         slow enough
//! ```
//!
//! Where demand exceeds the limit, a grant is claimed whenever its tokens have refilled. Redis cannot know that it was
//! spent before the next claim reports it, so one more grant than there are nodes has to fit into the stock. Where a
//! grant is spent in half of the time between two claims, it is granted for only two thirds of that time, and can be
//! larger.

use std::sync::Arc;

use tidegate::Micros;
use tokio::sync::Notify;

use super::grant::{Grant, GrantReply, Reservation};
use super::token_cache::{Refilling, TokenCache};

/// The terms of a leased rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    /// How many granted tokens may be unspent, on all nodes together.
    pub(crate) stock: u32,
    /// The largest grant.
    ///
    /// Less than the stock divided by the nodes, so that there is always something left to refill.
    pub(crate) most: u32,
    /// The largest grant where demand is far above the limit.
    ///
    /// That is where grants are spent in half of the time between them.
    pub(crate) most_if_quick: u32,
    /// The lifetime of a grant in microseconds.
    pub(crate) ttl: u64,
    /// Whether the rule is a window, which grants what is left in it and reserves nothing.
    pub(crate) is_window: bool,
}

#[derive(Debug)]
pub(crate) struct Account {
    grants: Vec<Grant>,
    reservation: Option<Reservation>,
    is_asking: bool,
    /// A request for a grant is pointless before this instant.
    shut_until: Micros,
    /// Whether Redis decides each request until `shut_until`.
    ///
    /// So it is if tokens are left, but other nodes hold the whole stock.
    is_out_of_stock: bool,
    size: u32,
    asked_at: Micros,
    /// When the grants ran out, since the last order.
    empty_at: Option<Micros>,
    spent_at: Micros,
    /// When, as far as is known, the whole limit is available again.
    whole_at: Micros,
    /// How many tokens have expired since this was last read.
    expired: u32,
    /// Notified when a request to Redis has ended.
    pub(crate) bell: Arc<Notify>,
}

/// The result of trying to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Spend {
    /// Spent. `left` tokens remain; if `ask` is set, the caller must ask for more.
    Spent { left: u32, ask: bool },
    /// Nothing is available before this instant.
    NotBefore(Micros),
    /// The caller must ask Redis.
    Ask,
    /// A request to Redis is in flight.
    Wait,
    /// Redis decides this request.
    Strict,
}

/// A request to Redis for more tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) want: u32,
    /// For how many microseconds a grant may be spent.
    pub(crate) ttl: u64,
    /// For each grant, its id and how many tokens are left.
    pub(crate) older: Vec<([u8; 16], u32)>,
    /// The reservation that is claimed.
    pub(crate) claim: Option<Reservation>,
    pub(crate) sent: Micros,
}

/// The tokens that are returned to Redis.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    pub(crate) grants: Vec<Grant>,
    pub(crate) reservation: Option<Reservation>,
}

impl Account {
    pub(crate) fn new(now: Micros) -> Self {
        Account {
            grants: Vec::new(),
            reservation: None,
            is_asking: false,
            shut_until: Micros::ZERO,
            is_out_of_stock: false,
            size: 1,
            asked_at: Micros::ZERO,
            empty_at: None,
            spent_at: now,
            whole_at: now,
            expired: 0,
            bell: Arc::default(),
        }
    }

    /// Spends `cost` if there are enough tokens.
    pub(crate) fn spend(&mut self, cost: u32, now: Micros) -> Spend {
        self.spent_at = now;
        self.drop_expired(now);
        let left = self.left();
        if left >= cost {
            self.grants.iter_mut().fold(cost, |missing, grant| grant.spend(missing));
            let ask = self.spare() == 0 && !self.is_asking && now >= self.shut_until;
            self.is_asking |= ask;
            return Spend::Spent { left: left - cost, ask };
        }
        self.empty_at.get_or_insert(now);
        if let Some(reservation) = self.reservation.filter(|reservation| now < reservation.from) {
            return Spend::NotBefore(reservation.from);
        }
        if now < self.shut_until {
            return if self.is_out_of_stock { Spend::Strict } else { Spend::NotBefore(self.shut_until) };
        }
        if std::mem::replace(&mut self.is_asking, true) { Spend::Wait } else { Spend::Ask }
    }

    /// Returns how many tokens would be left after spending `cost`; `None` if there are too few.
    pub(crate) fn look(&self, cost: u32, now: Micros) -> Option<u32> {
        let grants = self.grants.iter().filter(|grant| !grant.is_over(now));
        grants.map(Grant::left).sum::<u32>().checked_sub(cost)
    }

    fn drop_expired(&mut self, now: Micros) {
        let expired = &mut self.expired;
        self.grants.retain(|grant| {
            let is_over = grant.is_over(now);
            *expired += if is_over { grant.left() } else { 0 };
            !is_over
        });
        self.reservation = self.reservation.filter(|reservation| !reservation.is_over(now));
    }

    /// Returns how many tokens have expired since the last call.
    pub(crate) fn take_expired(&mut self) -> u32 {
        std::mem::take(&mut self.expired)
    }

    /// Returns how many tokens can be spent before it is time to ask for more.
    ///
    /// An account that asks for single tokens does not prefetch. Neither does an account with a reservation: the claim
    /// asks for more.
    fn spare(&self) -> u32 {
        if self.size >= 4 && self.reservation.is_none() {
            self.left().saturating_sub(self.size / 4)
        } else {
            u32::MAX
        }
    }

    /// Takes all tokens out of the token cache.
    pub(crate) fn collect(&mut self, token_cache: &TokenCache) {
        let left = token_cache.empty();
        self.spent_at = self.spent_at.max(Micros::new(token_cache.spent_at()));
        self.grants.iter_mut().for_each(|grant| grant.collect(left));
    }

    /// Fills the token cache with what can be spent before it is time to ask for more.
    pub(crate) fn lay_out(&mut self, token_cache: &TokenCache) {
        let most = if self.is_asking { u32::MAX } else { self.spare().saturating_sub(1) };
        let left = self.left();
        let Some(grant) = self.grants.iter_mut().find(|grant| grant.left() > 0) else { return };
        let (tokens, until) = grant.lay_out(most);
        let filling =
            Refilling { tokens, until: until.get(), beside: left - tokens, whole_at: self.whole_at.get() };
        token_cache.fill(filling);
    }

    /// Puts back unused tokens. Returns how many Redis already counts as spent.
    pub(crate) fn put_back(&mut self, cost: u32, now: Micros) -> u32 {
        self.grants
            .iter_mut()
            .filter(|grant| !grant.is_over(now))
            .fold(cost, |rest, grant| grant.put_back(rest))
    }

    /// Records that a request for a grant may be worthwhile again.
    pub(crate) fn ask_again(&mut self) {
        self.shut_until = Micros::ZERO;
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.is_asking
    }

    fn left(&self) -> u32 {
        self.grants.iter().map(Grant::left).sum()
    }

    /// Returns the microseconds until the whole limit is available again, as far as is known.
    pub(crate) fn whole_in(&self, now: Micros) -> u64 {
        self.whole_at.get().saturating_sub(now.get())
    }

    /// Creates an order on behalf of a request that needs at least `cost`.
    ///
    /// The order also claims the reservation.
    pub(crate) fn order(&mut self, cost: u32, terms: &LeaseTerms, now: Micros) -> Order {
        let since = now.get().saturating_sub(self.asked_at.get());
        let claim = self.reservation.take();
        if since < terms.ttl / 8 || claim.is_some() {
            self.size = self.size.saturating_mul(2);
        } else if since > terms.ttl / 2 {
            self.size /= 2;
        }
        let is_quick =
            claim.is_some() && self.empty_at.is_some_and(|then| then.since(self.asked_at) <= since / 2);
        let (most, ttl) =
            if is_quick { (terms.most_if_quick, since / 3 * 2) } else { (terms.most, terms.ttl) };
        self.size = self.size.clamp(1, most.max(1));
        (self.asked_at, self.empty_at) = (now, None);
        let older = self.grants.iter_mut().map(|grant| (grant.id, grant.report())).collect();
        Order { want: self.size.max(cost), ttl: ttl.clamp(1, terms.ttl), older, claim, sent: now }
    }

    /// Handles the reply to an order.
    pub(crate) fn granted(&mut self, grant: GrantReply, order: &Order, whole_in: u64, now: Micros) {
        self.is_asking = false;
        self.whole_at = now.plus(whole_in);
        // Redis knows that nothing is left of these grants.
        self.grants.retain(|grant| grant.left() > 0 || !order.older.contains(&(grant.id, 0)));
        self.grants.extend(order.claim.and_then(|claim| grant.claimed_grant(claim.id, order.sent)));
        self.grants.extend(grant.grant(order.sent));
        self.reservation = grant.reservation(order.sent, now);
        if grant.amount + grant.claimed + grant.reserved == 0 {
            (self.shut_until, self.is_out_of_stock) = (now.plus(grant.wait), grant.is_out_of_stock);
        }
    }

    /// Handles an order without a reply. Tokens that Redis may have granted expire.
    pub(crate) fn failed(&mut self) {
        self.is_asking = false;
    }

    /// Takes all tokens out for return if nothing was spent for `idle` microseconds.
    pub(crate) fn idle(&mut self, idle: u64, now: Micros) -> Closed {
        let is_idle = now.get().saturating_sub(self.spent_at.get()) >= idle && !self.is_asking;
        self.drop_expired(now);
        if is_idle { self.take() } else { Closed::default() }
    }

    /// Takes all tokens out for return.
    pub(crate) fn close(&mut self, now: Micros) -> Closed {
        self.drop_expired(now);
        self.take()
    }

    fn take(&mut self) -> Closed {
        Closed { grants: std::mem::take(&mut self.grants), reservation: self.reservation.take() }
    }

    /// Whether the account holds nothing and was idle for at least `idle` microseconds.
    ///
    /// Then the size of its grants is not worth remembering.
    pub(crate) fn is_forgotten(&self, idle: u64, now: Micros) -> bool {
        let since = now.get().saturating_sub(self.spent_at.get());
        let is_empty = self.grants.is_empty() && self.reservation.is_none();
        is_empty && !self.is_asking && now >= self.shut_until && since >= idle
    }
}

impl Closed {
    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.reservation.is_none()
    }
}
