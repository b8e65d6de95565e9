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
//!       └── no reply, or cancelled ──► released, because it may have been taken
//! ```

use std::sync::Arc;
use std::time::Duration;

use tidegate::Permits;
use tidegate::gate::RemotePermit;
use tidegate_core::Outcome;
use tokio::task::AbortHandle;

use crate::gate::Shared;
use crate::wire::{CostExtra, Operation, RuleArgs};

/// The pause before a release without a reply is repeated; each further pause is 4 times as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// The permits that one request needs or holds.
#[derive(Debug)]
pub(crate) struct HeldPermits {
    /// `None` once it is known that no permits were taken.
    set: Option<Arc<PermitSet>>,
    renewal: Option<AbortHandle>,
}

/// The entries of the permits in Redis, and their common id.
#[derive(Debug)]
pub(crate) struct PermitSet {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: Vec<u8>,
    pub(crate) permits: Vec<HeldPermit>,
}

/// The permits under one rule, counted in one Redis key.
#[derive(Debug)]
pub(crate) struct HeldPermit {
    pub(crate) key: Vec<u8>,
    pub(crate) rule: usize,
    pub(crate) cost: u32,
}

impl HeldPermits {
    pub(crate) fn requested(set: PermitSet) -> Self {
        HeldPermits { set: Some(Arc::new(set)), renewal: None }
    }

    pub(crate) fn id(&self) -> Vec<u8> {
        self.set.as_ref().map(|set| set.id.clone()).unwrap_or_default()
    }

    /// Records that the permits were taken, and renews them from now on.
    pub(crate) fn start_renewing(mut self) -> Self {
        self.renewal = self.set.as_ref().map(|set| {
            let runtime = set.shared.runtime.clone();
            runtime.spawn(renew(set.clone())).abort_handle()
        });
        self
    }

    /// Records that the permits were refused.
    pub(crate) fn refused(mut self) -> Permits {
        self.set = None;
        Permits::none()
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        if let Some(set) = self.set.take() {
            let runtime = set.shared.runtime.clone();
            runtime.spawn(async move { set.release().await });
        }
    }
}

impl RemotePermit for HeldPermits {
    fn succeeded(self: Box<Self>) {}

    fn overloaded(self: Box<Self>) {}
}

async fn renew(set: Arc<PermitSet>) {
    let leases = set.permits.iter().map(|permit| set.shared.rules[permit.rule].lease);
    let pause = leases.min().unwrap_or_default() / 4;
    loop {
        tokio::time::sleep(pause).await;
        for permit in &set.permits {
            if set.call(Operation::Renew, permit).await == Some(Outcome::Busy) {
                // Under the same id the permit is counted once, however often it is requested.
                set.call(Operation::Check, permit).await;
            }
        }
    }
}

impl PermitSet {
    /// Releases all permits, and repeats a release that got no reply.
    ///
    /// Repeating is harmless: the second time there is nothing left to return.
    async fn release(&self) {
        for permit in &self.permits {
            let mut pause = FIRST_BACKOFF;
            while self.call(Operation::Release, permit).await.is_none()
                && pause < self.shared.rules[permit.rule].lease
            {
                tokio::time::sleep(pause).await;
                pause *= 4;
            }
        }
    }

    /// Returns the outcome, or `None` without a reply.
    ///
    /// A permit that cannot be renewed or released ends with its lease.
    async fn call(&self, operation: Operation, permit: &HeldPermit) -> Option<Outcome> {
        let HeldPermit { key, rule, cost } = permit;
        let rules = [RuleArgs {
            key: key.clone(),
            cost: *cost,
            extra: CostExtra::None,
            rule: &self.shared.rules[*rule].encoded,
        }];
        let connection = self.shared.connection_for_rules(&rules);
        let reply =
            self.shared.call_despite_breaker(connection, operation, &rules, Some(&self.id)).await.ok()?;
        Some(reply.decisions[0].outcome)
    }
}
