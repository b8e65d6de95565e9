//! # Granted and reserved tokens
//!
//! A lot is tokens that Redis has already deducted. This process spends them without asking:
//!
//! ```text
//!   sent ── Redis grants ── received ─────────────── until
//!                               ├── spent only here ──┤
//! ```
//!
//! The end counts from when the request was sent, so it comes before Redis takes the grant to be over.
//!
//! A reservation is tokens that have not come in yet. They are nobody else's, but they may not be spent before Redis has made
//! a lot of them:
//!
//! ```text
//!   sent ── Redis reserves ── received ── wait ── from: claim ── Redis grants ── a grant
//! ```

use tidegate::Micros;

/// Granted tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) id: [u8; 16],
    left: u32,
    /// How many tokens were moved into the purse; they are not in `left`.
    out: u32,
    until: Micros,
    /// The most that Redis takes to be unspent.
    reported: u32,
    /// Of a window: when it ends, on Redis's clock.
    pub(crate) ends: Micros,
}

/// Tokens that have not come in yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) id: [u8; 16],
    pub(crate) amount: u32,
    /// When they can be claimed.
    pub(crate) from: Micros,
    until: Micros,
}

/// What one reply of Redis grants.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantReply {
    pub(crate) id: [u8; 16],
    pub(crate) amount: u32,
    pub(crate) reserved: u32,
    /// How many tokens of the reservation that was claimed.
    pub(crate) claimed: u32,
    /// Nothing was granted although tokens are there: other nodes hold the whole stock.
    pub(crate) is_out_of_stock: bool,
    /// Microseconds until the reservation can be claimed; if there is nothing at all, until it is worth asking again.
    pub(crate) wait: u64,
    /// For how many microseconds a lot may be spent.
    pub(crate) lasts: u64,
    pub(crate) ends: Micros,
}

impl GrantReply {
    /// Clocks may differ in pace, so a lot ends here a little earlier than in Redis.
    fn lasts_here(&self) -> u64 {
        self.lasts - self.lasts / 64
    }

    pub(crate) fn grant(&self, sent: Micros) -> Option<Grant> {
        self.grant_of(self.id, self.amount, sent)
    }

    pub(crate) fn claimed_grant(&self, id: [u8; 16], sent: Micros) -> Option<Grant> {
        self.grant_of(id, self.claimed, sent)
    }

    fn grant_of(&self, id: [u8; 16], amount: u32, sent: Micros) -> Option<Grant> {
        let until = sent.plus(self.lasts_here());
        (amount > 0).then_some(Grant { id, left: amount, out: 0, until, reported: amount, ends: self.ends })
    }

    pub(crate) fn reservation(&self, sent: Micros, received: Micros) -> Option<Reservation> {
        let (from, until) = (received.plus(self.wait), sent.plus(self.wait).plus(self.lasts_here()));
        (self.reserved > 0).then_some(Reservation { id: self.id, amount: self.reserved, from, until })
    }
}

impl Grant {
    /// How many tokens are unspent, without those in the purse.
    pub(crate) const fn left(&self) -> u32 {
        self.left
    }

    /// Moves up to `most` tokens into the purse. Returns how many, and until when they may be spent.
    pub(crate) fn lay_out(&mut self, most: u32) -> (u32, Micros) {
        self.out = self.left.min(most);
        self.left -= self.out;
        (self.out, self.until)
    }

    /// Takes back what is left in the purse, if its tokens are of this lot.
    pub(crate) fn collect(&mut self, left: u32) {
        if std::mem::take(&mut self.out) > 0 {
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

    /// Puts tokens back that were not used, as far as Redis still takes them to be unspent. Returns how many do not fit.
    pub(crate) fn put_back(&mut self, cost: u32) -> u32 {
        let fits = cost.min(self.reported - self.left);
        self.left += fits;
        cost - fits
    }

    /// How many tokens are left, to be reported to Redis. From now on it is never more.
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
