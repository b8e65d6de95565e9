//! # Granted and reserved tokens
//!
//! A grant is tokens that Redis has already deducted. This process spends them without a round trip:
//!
//! ```text
//!   sent ── Redis grants ── received ─────────────── until
//!                               ├── spent only here ──┤
//! ```
//!
//! The lifetime counts from when the request was sent, so a grant ends here before it expires in Redis.
//!
//! A reservation is tokens that have not refilled yet. No other node can get them, but they may not be spent before
//! Redis has turned them into a grant:
//!
//! ```text
//!   sent ── Redis reserves ── received ── wait ── from: claim ── Redis grants ── a grant
//! ```
//!
//! Reserved tokens could also be granted in advance, to be spent from a later instant on. That saves only the
//! claim, and it was tried. It broke two guarantees. In an outage such tokens came on top of what the local
//! shares of other nodes admitted in the same time, and after Redis had lost its data they came on top of its
//! fresh burst. A reservation must be claimed when its tokens have refilled, so without Redis, or with a
//! Redis that has forgotten it, none of it can be spent. A claim also reserves the next tokens, so there is
//! still one call per grant.
//!
//! The charge of a reservation refills like any other. If the claim comes late, that part of the reservation
//! lapses. The script evaluates this at every instant at which a grant expires, too; otherwise a grant that
//! is spent at the last moment would count as the charge of a reservation. The random walk against the script
//! found that case, and the exhaustive search covers it.

use tidegate::clock::Micros;

/// Granted tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) id: [u8; 16],
    left: u32,
    /// How many tokens were moved to the token cache; they are not in `left`.
    cached: u32,
    until: Micros,
    /// The most tokens that can be unspent according to Redis.
    reported: u32,
    /// For a window: when it ends, on the clock of Redis.
    pub(crate) ends: Micros,
}

/// Tokens that have not refilled yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) id: [u8; 16],
    pub(crate) amount: u32,
    /// When the tokens can be claimed.
    pub(crate) from: Micros,
    until: Micros,
}

/// The content of one reply of Redis.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantReply {
    pub(crate) id: [u8; 16],
    pub(crate) amount: u32,
    pub(crate) reserved: u32,
    /// How many tokens of the claimed reservation were granted.
    pub(crate) claimed: u32,
    /// Nothing was granted although tokens are left: other nodes hold the whole stock.
    pub(crate) is_out_of_stock: bool,
    /// Microseconds until the reservation can be claimed.
    ///
    /// If nothing was granted or reserved: until a retry is worthwhile.
    pub(crate) wait: u64,
    /// For how many microseconds a grant may be spent.
    pub(crate) ttl: u64,
    pub(crate) ends: Micros,
}

impl GrantReply {
    /// How long a grant may be spent here: less than in Redis, because clocks may differ in pace.
    fn local_ttl(&self) -> u64 {
        self.ttl - self.ttl / 64
    }

    pub(crate) fn grant(&self, sent: Micros) -> Option<Grant> {
        self.grant_of(self.id, self.amount, sent)
    }

    pub(crate) fn claimed_grant(&self, id: [u8; 16], sent: Micros) -> Option<Grant> {
        self.grant_of(id, self.claimed, sent)
    }

    fn grant_of(&self, id: [u8; 16], amount: u32, sent: Micros) -> Option<Grant> {
        let until = sent.plus(self.local_ttl());
        (amount > 0).then_some(Grant {
            id,
            left: amount,
            cached: 0,
            until,
            reported: amount,
            ends: self.ends,
        })
    }

    pub(crate) fn reservation(&self, sent: Micros, received: Micros) -> Option<Reservation> {
        let (from, until) = (received.plus(self.wait), sent.plus(self.wait).plus(self.local_ttl()));
        (self.reserved > 0).then_some(Reservation { id: self.id, amount: self.reserved, from, until })
    }
}

impl Grant {
    /// Returns how many tokens are unspent, not counting the token cache.
    pub(crate) const fn left(&self) -> u32 {
        self.left
    }

    /// Moves up to `most` tokens to the token cache. Returns how many, and when they expire.
    pub(crate) fn move_to_cache(&mut self, most: u32) -> (u32, Micros) {
        self.cached = self.left.min(most);
        self.left -= self.cached;
        (self.cached, self.until)
    }

    /// Takes back what is left in the token cache, if its tokens are from this grant.
    pub(crate) fn move_from_cache(&mut self, left: u32) {
        if std::mem::take(&mut self.cached) > 0 {
            self.left += left;
        }
    }

    pub(crate) fn is_over(&self, now: Micros) -> bool {
        now >= self.until
    }

    /// Spends up to `cost`, and returns how much is missing.
    pub(crate) fn spend(&mut self, cost: u32) -> u32 {
        let spent = cost.min(self.left);
        self.left -= spent;
        cost - spent
    }

    /// Puts back unused tokens, and returns how many do not fit.
    ///
    /// Tokens fit as far as Redis still counts them as unspent.
    pub(crate) fn put_back(&mut self, cost: u32) -> u32 {
        let fits = cost.min(self.reported - self.left);
        self.left += fits;
        cost - fits
    }

    /// Returns how many tokens are left, for a report to Redis. From now on there are never more.
    pub(crate) fn report(&mut self) -> u32 {
        self.reported = self.left;
        self.reported
    }
}

impl Reservation {
    pub(crate) fn is_over(&self, now: Micros) -> bool {
        now >= self.until
    }
}
