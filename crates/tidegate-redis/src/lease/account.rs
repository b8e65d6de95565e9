//! # Account: the tokens of one key in this process
//!
//! An account has grants that are being spent, a reservation of the tokens that refill next, the request for a grant that
//! is in flight, and the instant before which a request is pointless. This module has only state and transitions;
//! [`refill`](super::refill) sends the requests.
//!
//! The size of a request follows the demand. If the last grant lasted for less than an eighth of its lifetime, or the
//! request claims a reservation, the next grant is twice as large. Otherwise, if the last grant lasted for more than half
//! of its lifetime, the next is half as large:
//!
//! ```text
//!   request  request  request      request                      request
//!     │ 1      │ 2      │ 4          │ 8                          │ 8
//!     └────────┴────────┴────────────┴────────────────────────────┴──►  t
//!        fast     fast      fast          slow enough
//! ```
//!
//! If demand exceeds the limit, each reservation is claimed when its tokens have refilled. Redis learns only from the next
//! claim that a grant is spent, so the stock must hold one grant more than there are nodes. If grants are spent in at
//! most half of the time between claims, their lifetime is cut to two thirds of that time, which allows larger grants.

use std::sync::Arc;

use tidegate::clock::Micros;
use tokio::sync::Notify;

use super::grant::{Grant, GrantReply, Reservation};
use super::token_cache::{CacheContent, TokenCache};

/// The terms of a leased rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    /// How many granted tokens may be unspent, on all nodes together.
    pub(crate) stock: u32,
    /// The largest grant.
    ///
    /// Less than the stock divided by the nodes, so that there is always something left to refill.
    pub(crate) max_grant: u32,
    /// The largest grant where demand is far above the limit.
    ///
    /// That is where grants are spent in half of the time between them.
    pub(crate) max_fast_grant: u32,
    /// The lifetime of a grant in microseconds.
    pub(crate) ttl: u64,
    /// Whether the rule is a window, which grants what is left in it and reserves nothing.
    pub(crate) is_window: bool,
}

#[derive(Debug)]
pub(crate) struct Account {
    grants: Vec<Grant>,
    reservation: Option<Reservation>,
    is_fetching: bool,
    /// A request for a grant is pointless before this instant.
    retry_at: Micros,
    /// Whether Redis decides each request until `retry_at`.
    ///
    /// That is so if tokens are left, but other nodes hold the whole stock.
    is_out_of_stock: bool,
    size: u32,
    requested_at: Micros,
    /// When the grants ran out, since the last request for a grant.
    empty_at: Option<Micros>,
    spent_at: Micros,
    /// When, as far as is known, the whole limit is available again.
    full_at: Micros,
    /// How many tokens have expired since this was last read.
    expired: u32,
    /// Notified when a request to Redis has ended.
    pub(crate) notify: Arc<Notify>,
}

/// The result of trying to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Spend {
    /// Spent. `left` tokens remain; if `fetch` is set, the caller must request a grant.
    Spent { left: u32, fetch: bool },
    /// Nothing is available before this instant.
    NotBefore(Micros),
    /// The caller must request a grant.
    Fetch,
    /// A request for a grant is in flight.
    Wait,
    /// Redis decides this request.
    Strict,
}

/// A request to Redis for a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantRequest {
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
pub(crate) struct Unspent {
    pub(crate) grants: Vec<Grant>,
    pub(crate) reservation: Option<Reservation>,
}

impl Account {
    pub(crate) fn new(now: Micros) -> Self {
        Account {
            grants: Vec::new(),
            reservation: None,
            is_fetching: false,
            retry_at: Micros::ZERO,
            is_out_of_stock: false,
            size: 1,
            requested_at: Micros::ZERO,
            empty_at: None,
            spent_at: now,
            full_at: now,
            expired: 0,
            notify: Arc::default(),
        }
    }

    /// Spends `cost` if there are enough tokens.
    pub(crate) fn spend(&mut self, cost: u32, now: Micros) -> Spend {
        self.spent_at = now;
        self.drop_expired(now);
        let left = self.left();
        if left >= cost {
            self.grants.iter_mut().fold(cost, |missing, grant| grant.spend(missing));
            let fetch = self.spare() == 0 && !self.is_fetching && now >= self.retry_at;
            self.is_fetching |= fetch;
            return Spend::Spent { left: left - cost, fetch };
        }
        self.empty_at.get_or_insert(now);
        if let Some(reservation) = self.reservation.filter(|reservation| now < reservation.from) {
            return Spend::NotBefore(reservation.from);
        }
        if now < self.retry_at {
            return if self.is_out_of_stock { Spend::Strict } else { Spend::NotBefore(self.retry_at) };
        }
        if std::mem::replace(&mut self.is_fetching, true) { Spend::Wait } else { Spend::Fetch }
    }

    /// Returns how many tokens would be left after spending `cost`; `None` if there are too few.
    pub(crate) fn peek(&self, cost: u32, now: Micros) -> Option<u32> {
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

    /// Returns how many tokens can be spent before the next grant has to be requested.
    ///
    /// An account with grants of fewer than 4 tokens does not prefetch (`u32::MAX`). Neither does an account with a
    /// reservation: the claim requests more.
    fn spare(&self) -> u32 {
        if self.size >= 4 && self.reservation.is_none() {
            self.left().saturating_sub(self.size / 4)
        } else {
            u32::MAX
        }
    }

    /// Takes all tokens out of the token cache.
    pub(crate) fn drain_cache(&mut self, token_cache: &TokenCache) {
        let left = token_cache.empty();
        self.spent_at = self.spent_at.max(Micros::new(token_cache.spent_at()));
        self.grants.iter_mut().for_each(|grant| grant.move_from_cache(left));
    }

    /// Fills the token cache with what can be spent before the next grant has to be requested.
    pub(crate) fn fill_cache(&mut self, token_cache: &TokenCache) {
        let max = if self.is_fetching { u32::MAX } else { self.spare().saturating_sub(1) };
        let left = self.left();
        let Some(grant) = self.grants.iter_mut().find(|grant| grant.left() > 0) else { return };
        let (tokens, until) = grant.move_to_cache(max);
        let content =
            CacheContent { tokens, until: until.get(), uncached: left - tokens, full_at: self.full_at.get() };
        token_cache.fill(content);
    }

    /// Puts back unused tokens. Returns how many Redis already counts as spent.
    pub(crate) fn put_back(&mut self, cost: u32, now: Micros) -> u32 {
        self.grants
            .iter_mut()
            .filter(|grant| !grant.is_over(now))
            .fold(cost, |rest, grant| grant.put_back(rest))
    }

    /// Records that a request for a grant may be worthwhile again.
    pub(crate) fn allow_retry(&mut self) {
        self.retry_at = Micros::ZERO;
    }

    pub(crate) fn is_fetching(&self) -> bool {
        self.is_fetching
    }

    fn left(&self) -> u32 {
        self.grants.iter().map(Grant::left).sum()
    }

    /// Returns the microseconds until the whole limit is available again, as far as is known.
    pub(crate) fn full_in(&self, now: Micros) -> u64 {
        self.full_at.get().saturating_sub(now.get())
    }

    /// Creates a request for a grant on behalf of a caller that needs at least `cost`.
    ///
    /// The request also claims the reservation.
    pub(crate) fn request(&mut self, cost: u32, terms: &LeaseTerms, now: Micros) -> GrantRequest {
        let since = now.get().saturating_sub(self.requested_at.get());
        let claim = self.reservation.take();
        if since < terms.ttl / 8 || claim.is_some() {
            self.size = self.size.saturating_mul(2);
        } else if since > terms.ttl / 2 {
            self.size /= 2;
        }
        let is_fast =
            claim.is_some() && self.empty_at.is_some_and(|then| then.since(self.requested_at) <= since / 2);
        let (max, ttl) =
            if is_fast { (terms.max_fast_grant, since / 3 * 2) } else { (terms.max_grant, terms.ttl) };
        self.size = self.size.clamp(1, max.max(1));
        (self.requested_at, self.empty_at) = (now, None);
        let older = self.grants.iter_mut().map(|grant| (grant.id, grant.report())).collect();
        GrantRequest { want: self.size.max(cost), ttl: ttl.clamp(1, terms.ttl), older, claim, sent: now }
    }

    /// Handles the reply to a request for a grant.
    pub(crate) fn granted(&mut self, reply: GrantReply, request: &GrantRequest, full_in: u64, now: Micros) {
        self.is_fetching = false;
        self.full_at = now.plus(full_in);
        // Redis knows that nothing is left of these grants.
        self.grants.retain(|grant| grant.left() > 0 || !request.older.contains(&(grant.id, 0)));
        self.grants.extend(request.claim.and_then(|claim| reply.claimed_grant(claim.id, request.sent)));
        self.grants.extend(reply.grant(request.sent));
        self.reservation = reply.reservation(request.sent, now);
        if reply.amount + reply.claimed + reply.reserved == 0 {
            (self.retry_at, self.is_out_of_stock) = (now.plus(reply.wait), reply.is_out_of_stock);
        }
    }

    /// Handles a request for a grant that got no reply. Tokens that Redis may have granted expire.
    pub(crate) fn failed(&mut self) {
        self.is_fetching = false;
    }

    /// Takes all tokens out for return if nothing was spent for `idle` microseconds.
    pub(crate) fn take_idle(&mut self, idle: u64, now: Micros) -> Unspent {
        let is_idle = now.get().saturating_sub(self.spent_at.get()) >= idle && !self.is_fetching;
        self.drop_expired(now);
        if is_idle { self.take_all() } else { Unspent::default() }
    }

    /// Takes all tokens out for return.
    pub(crate) fn close(&mut self, now: Micros) -> Unspent {
        self.drop_expired(now);
        self.take_all()
    }

    fn take_all(&mut self) -> Unspent {
        Unspent { grants: std::mem::take(&mut self.grants), reservation: self.reservation.take() }
    }

    /// Whether the account holds nothing and was idle for at least `idle` microseconds.
    ///
    /// Then the size of its grants is not worth remembering.
    pub(crate) fn is_evictable(&self, idle: u64, now: Micros) -> bool {
        let since = now.get().saturating_sub(self.spent_at.get());
        let is_empty = self.grants.is_empty() && self.reservation.is_none();
        is_empty && !self.is_fetching && now >= self.retry_at && since >= idle
    }
}

impl Unspent {
    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.reservation.is_none()
    }
}
