//! # Waiting for a shared limit
//!
//! A refusal says when to try again. Only the first waiter in the [queue](crate::wait_queue) of the state that refused
//! it tries again then. A request never waits for what cannot come in time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Admission, Part};
use tidegate_core::{Decision, Outcome, Source, Wait};
use tokio::time::Instant;

use crate::gate::Shared;
use crate::wire::Verb;

/// How often a waiter polls for a permit, since it is unknown when one will be free.
const ASK_FOR_PLACES: Duration = Duration::from_millis(10);

/// The deadline of a wait; `None` if it is unlimited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until(pub(crate) Option<Instant>);

pub(crate) async fn acquire(shared: &Arc<Shared>, request: &[Part<'_>], until: Until) -> Admission {
    let names = shared.names(request);
    let mut standing = None;
    if let Some(name) = names.iter().find(|name| shared.waiting.has(name)) {
        standing = until.in_time(shared.waiting.join(name.clone())).await;
        if standing.is_none() {
            return behind_others(shared, request).await;
        }
    }
    loop {
        let admission = shared.check(request, shared.until()).await;
        let pause = match admission.decision.outcome {
            Outcome::Allowed | Outcome::Never => return admission,
            Outcome::AllowedAfter(wait) => {
                drop(standing);
                return at_its_turn(shared, request, admission, wait, until).await;
            }
            Outcome::RetryAfter(wait) => wait.duration(),
            Outcome::Busy => ASK_FOR_PLACES,
        };
        if until.is_before(pause) {
            return admission;
        }
        let name = &names[binding(request, &admission.decision)];
        if !standing.as_ref().is_some_and(|standing| standing.is_at(name)) {
            drop(standing);
            standing = shared.waiting.begin(name);
        }
        match standing {
            Some(_) => tokio::time::sleep(pause).await,
            None => {
                standing = until.in_time(shared.waiting.join(name.clone())).await;
                if standing.is_none() {
                    return admission;
                }
            }
        }
    }
}

/// Returns the index of the part that refused.
///
/// That is the first part of its rule, if the request names the rule for several keys.
fn binding(request: &[Part<'_>], decision: &Decision) -> usize {
    request.iter().position(|part| part.rule == decision.rule).unwrap_or(0)
}

/// Waits for a granted reservation; refunds it if it comes too late.
async fn at_its_turn(
    shared: &Arc<Shared>,
    request: &[Part<'_>],
    admission: Admission,
    wait: Wait,
    until: Until,
) -> Admission {
    if !until.is_before(wait.duration()) {
        tokio::time::sleep(wait.duration()).await;
        return admission;
    }
    let rates: Vec<Part<'_>> = shared.rates(request).collect();
    let is_redis = admission.decision.source == Source::Strict; // otherwise there is nothing in Redis to refund
    if is_redis && !rates.is_empty() {
        let _ = shared.ask_each(Verb::Refund, &rates).await;
    }
    Admission::without_permits(refusal(&admission.decision, wait))
}

/// Refuses a request that timed out behind other waiters. It charges nothing, even if quota is left.
async fn behind_others(shared: &Arc<Shared>, request: &[Part<'_>]) -> Admission {
    match shared.ask_each(Verb::Peek, request).await {
        Ok((told, _)) if told.is_allowed() => Admission::without_permits(refusal(&told, Wait::micros(1))),
        Ok((told, _)) => Admission::without_permits(told),
        Err(error) => shared.without_redis(request, &error),
    }
}

fn refusal(told: &Decision, wait: Wait) -> Decision {
    Decision::counted(Outcome::RetryAfter(wait), told.at(), told.limit(), 0, wait).of_rule(told.rule)
}

impl Until {
    /// A timeout too long to be represented is unlimited.
    pub(crate) fn after(timeout: Duration) -> Self {
        Until(Instant::now().checked_add(timeout))
    }

    /// Whether the deadline comes before `pause` has passed.
    fn is_before(self, pause: Duration) -> bool {
        let Until(Some(until)) = self else { return false };
        Instant::now().checked_add(pause).is_none_or(|then| then > until)
    }

    async fn in_time<T>(self, waiting: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some(until) => tokio::time::timeout_at(until, waiting).await.ok(),
            None => Some(waiting.await),
        }
    }
}
