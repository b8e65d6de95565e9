//! # Permits held in this process and counted in Redis
//!
//! A permit in this process is a value that is dropped; in Redis it is an entry with an owner and an expiry. While the
//! value lives, a task renews the entry four times per lease. Dropping the value releases the entry. A killed process
//! does neither, and the permit is free when the lease expires.
//!
//! ```text
//!   requested ──► held: renewed ─── lost, as when Redis restarts empty: requested again, under the same id
//!       │            └── dropped ──► released
//!       ├── refused: none taken
//!       └── no reply, or cancelled ──► released, for it may have been taken
//! ```

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Permits, RemotePermit};
use tidegate_core::Outcome;
use tokio::task::AbortHandle;

use crate::gate::Shared;
use crate::wire::{Line, Terms, Verb};

/// The pause before an unanswered release is repeated; each further one is 4 times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The permits that one request asks for or holds.
#[derive(Debug)]
pub(crate) struct HeldPermits {
    /// `None` once it is known that no permits were taken.
    entry: Option<Arc<Entry>>,
    renewing: Option<AbortHandle>,
}

/// The entries of the permits in Redis, and their common id.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: Vec<u8>,
    pub(crate) places: Vec<HeldPermit>,
}

/// The permits under one rule, counted in one string.
#[derive(Debug)]
pub(crate) struct HeldPermit {
    pub(crate) key: Vec<u8>,
    pub(crate) rule: usize,
    pub(crate) cost: u32,
}

impl HeldPermits {
    pub(crate) fn asked_for(entry: Entry) -> Self {
        HeldPermits { entry: Some(Arc::new(entry)), renewing: None }
    }

    pub(crate) fn id(&self) -> Vec<u8> {
        self.entry.as_ref().map(|entry| entry.id.clone()).unwrap_or_default()
    }

    /// Records that the permits were taken, and renews them from now on.
    pub(crate) fn held(mut self) -> Self {
        self.renewing = self.entry.as_ref().map(|entry| {
            let runtime = entry.shared.runtime.clone();
            runtime.spawn(renew(entry.clone())).abort_handle()
        });
        self
    }

    /// Records that the permits were refused.
    pub(crate) fn none_taken(mut self) -> Permits {
        self.entry = None;
        Permits::none()
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
        }
        if let Some(entry) = self.entry.take() {
            let runtime = entry.shared.runtime.clone();
            runtime.spawn(async move { entry.release().await });
        }
    }
}

impl RemotePermit for HeldPermits {
    fn succeeded(self: Box<Self>) {}

    fn overloaded(self: Box<Self>) {}
}

async fn renew(entry: Arc<Entry>) {
    let leases = entry.places.iter().map(|place| entry.shared.rules[place.rule].lease);
    let pause = leases.min().unwrap_or_default() / 4;
    loop {
        tokio::time::sleep(pause).await;
        for place in &entry.places {
            if entry.ask(Verb::Renew, place).await == Some(Outcome::Busy) {
                // Under the same id the permit is counted once, however often it is requested.
                entry.ask(Verb::Check, place).await;
            }
        }
    }
}

impl Entry {
    /// Releases all permits, and repeats a release that got no reply.
    ///
    /// Repeating is harmless: the second time there is nothing left to return.
    async fn release(&self) {
        for place in &self.places {
            let mut pause = FIRST_PAUSE;
            while self.ask(Verb::Release, place).await.is_none()
                && pause < self.shared.rules[place.rule].lease
            {
                tokio::time::sleep(pause).await;
                pause *= 4;
            }
        }
    }

    /// Returns the outcome, or `None` without a reply.
    ///
    /// A permit that cannot be renewed or released ends with its lease.
    async fn ask(&self, verb: Verb, place: &HeldPermit) -> Option<Outcome> {
        let HeldPermit { key, rule, cost } = place;
        let line = [Line {
            key: key.clone(),
            cost: *cost,
            terms: Terms::Plain,
            rule: &self.shared.rules[*rule].described,
        }];
        let connection = self.shared.link_of(&line);
        let reply = self.shared.send_in_time(connection, verb, &line, Some(&self.id)).await.ok()?;
        Some(reply.decisions[0].outcome)
    }
}
