//! # A lot: tokens that are already paid for
//!
//! ```text
//!   sent ── Redis grants ── received ─────── from ──────────────────────── until
//!                               ├── ready ─────┴── ready and later ────────┤  spent only here
//! ```
//!
//! Both ends are on the safe side: what comes later counts from when the answer came, and the end from when the question went.

use tidegate::Micros;

/// What one answer of Redis has granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lot {
    pub(crate) id: [u8; 16],
    ready: u32,
    /// Of what is left, so much was put into the purse.
    out: u32,
    later: u32,
    from: Micros,
    until: Micros,
    /// More than this Redis does not take to be unspent.
    told: u32,
    /// Of a window: when it ends, on Redis's clock.
    pub(crate) ends: Micros,
}

/// What Redis has granted, and when that was asked and heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) id: [u8; 16],
    pub(crate) amount: u32,
    pub(crate) there: u32,
    /// Microseconds until all of it is there, and from then on until it ends.
    pub(crate) wait: u64,
    pub(crate) lasts: u64,
    pub(crate) ends: Micros,
}

impl Lot {
    pub(crate) fn of(grant: Grant, sent: Micros, received: Micros) -> Self {
        let Grant { id, amount, there, wait, lasts, ends } = grant;
        let lasts = lasts - lasts / 64; // clocks may differ in pace
        Lot {
            id,
            ready: there,
            out: 0,
            later: amount.saturating_sub(there),
            from: received.plus(wait),
            until: sent.plus(wait).plus(lasts),
            told: amount,
            ends,
        }
    }

    /// Lets what was to come later be ready if it is time, and tells how much is.
    pub(crate) fn ready(&mut self, now: Micros) -> u32 {
        if self.later > 0 && now >= self.from {
            self.ready += std::mem::take(&mut self.later);
        }
        self.ready
    }

    /// How much of it is ready, or would be if somebody let it.
    pub(crate) fn ready_at(&self, now: Micros) -> u32 {
        if now >= self.from { self.left() } else { self.ready }
    }

    /// How much is known to be ready.
    pub(crate) const fn is_ready(&self) -> u32 {
        self.ready
    }

    /// Takes out what is ready, and at most so much of it, for the purse; until when it may be spent.
    pub(crate) fn lay_out(&mut self, most: u32) -> (u32, Micros) {
        self.out = self.ready.min(most);
        self.ready -= self.out;
        (self.out, self.until)
    }

    /// Takes back what is left of what it has laid out, if it has.
    pub(crate) fn collect(&mut self, left: u32) {
        if std::mem::take(&mut self.out) > 0 {
            self.ready += left;
        }
    }

    /// What is not spent, ready or not.
    pub(crate) const fn left(&self) -> u32 {
        self.ready + self.later
    }

    pub(crate) const fn later(&self) -> u32 {
        self.later
    }

    pub(crate) const fn from(&self) -> Micros {
        self.from
    }

    pub(crate) fn is_over(&self, now: Micros) -> bool {
        now >= self.until
    }

    /// Spends as much of `cost` as is ready, and tells what is missing.
    pub(crate) fn spend(&mut self, cost: u32) -> u32 {
        let spent = cost.min(self.ready);
        self.ready -= spent;
        cost - spent
    }

    /// Takes back what nobody passed for, as far as Redis still takes it to be unspent, and tells what finds no room.
    pub(crate) fn put_back(&mut self, cost: u32) -> u32 {
        let fits = cost.min(self.told - self.left());
        self.ready += fits;
        cost - fits
    }

    /// What is left, to be told to Redis. From now on there is no more.
    pub(crate) fn tell(&mut self) -> u32 {
        self.told = self.left();
        self.told
    }
}
