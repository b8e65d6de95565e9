//! # Waiting for a shared limit
//!
//! A refusal says when to retry. Requests that were refused by the same key [queue](crate::wait_queue), and only the
//! first waiter retries. A request that would have to wait beyond its deadline is refused immediately.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Admission;
use tidegate::gate::Part;
use tidegate_core::{Decision, Outcome, Source, Wait};
use tokio::time::Instant;

use crate::gate::Shared;
use crate::wire::Operation;

/// How often a waiter polls for a permit, since it is unknown when one will be free.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The deadline of a wait; `None` if it is unlimited.
#[derive(Clone, Copy, Debug)]
pub struct WaitDeadline(pub(crate) Option<Instant>);

impl From<()> for WaitDeadline {
    fn from((): ()) -> Self {
        WaitDeadline(None)
    }
}

pub(crate) async fn acquire(shared: &Arc<Shared>, request: &[Part<'_>], deadline: WaitDeadline) -> Admission {
    let names = shared.key_names(request);
    let mut waiter = None;
    if let Some(name) = names.iter().find(|name| shared.waiting.has(name)) {
        waiter = deadline.timeout(shared.waiting.join(name.clone())).await;
        if waiter.is_none() {
            return refuse_queued(shared, request).await;
        }
    }
    loop {
        let admission = shared.check(request, shared.new_deadline()).await;
        let pause = match admission.decision.outcome {
            Outcome::Allowed | Outcome::Never => return admission,
            Outcome::AllowedAfter(wait) => {
                drop(waiter);
                return wait_for_reservation(shared, request, admission, wait, deadline).await;
            }
            Outcome::RetryAfter(wait) => wait.duration(),
            Outcome::Busy => PERMIT_POLL_INTERVAL,
        };
        if deadline.is_before(pause) {
            return admission;
        }
        let name = &names[refusing_part(request, &admission.decision)];
        if !waiter.as_ref().is_some_and(|waiter| waiter.is_in(name)) {
            drop(waiter);
            waiter = shared.waiting.join_if_empty(name);
        }
        match waiter {
            Some(_) => tokio::time::sleep(pause).await,
            None => {
                waiter = deadline.timeout(shared.waiting.join(name.clone())).await;
                if waiter.is_none() {
                    return admission;
                }
            }
        }
    }
}

/// Returns the index of the first part with the rule that refused.
///
/// If the request names the rule for several keys, another of them may have refused: a decision has the rule and not the
/// key. Then the request queues at the first one.
fn refusing_part(request: &[Part<'_>], decision: &Decision) -> usize {
    request.iter().position(|part| part.rule == decision.rule).unwrap_or(0)
}

/// Waits until a reservation is due; refunds it if that is after the deadline.
async fn wait_for_reservation(
    shared: &Arc<Shared>,
    request: &[Part<'_>],
    admission: Admission,
    wait: Wait,
    deadline: WaitDeadline,
) -> Admission {
    if !deadline.is_before(wait.duration()) {
        tokio::time::sleep(wait.duration()).await;
        return admission;
    }
    let rate_parts: Vec<Part<'_>> = shared.rate_parts(request).collect();
    let is_charged = admission.decision.source == Source::Strict; // otherwise there is nothing in Redis to refund
    if is_charged && !rate_parts.is_empty() {
        let _ = shared.call_each(Operation::Refund, &rate_parts).await;
    }
    Admission::without_permits(refusal(&admission.decision, wait))
}

/// Refuses a request that timed out in the queue. Charges nothing, even if quota is left.
async fn refuse_queued(shared: &Arc<Shared>, request: &[Part<'_>]) -> Admission {
    match shared.call_each(Operation::Peek, request).await {
        Ok((decision, _)) if decision.is_allowed() => {
            // Quota is left, but earlier waiters come first: the smallest wait that is a refusal.
            Admission::without_permits(refusal(&decision, Wait::micros(1)))
        }
        Ok((decision, _)) => Admission::without_permits(decision),
        Err(error) => shared.without_redis(request, &error),
    }
}

fn refusal(decision: &Decision, wait: Wait) -> Decision {
    Decision::counted(Outcome::RetryAfter(wait), decision.at(), decision.limit(), 0, wait)
        .of_rule(decision.rule)
}

impl WaitDeadline {
    /// Returns the deadline `timeout` from now; unlimited if it cannot be represented.
    pub(crate) fn after(timeout: Duration) -> Self {
        WaitDeadline(Instant::now().checked_add(timeout))
    }

    /// Returns the time until the deadline, if there is one.
    pub(crate) fn time_left(self) -> Option<Duration> {
        self.0.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether the deadline comes before `pause` has passed.
    fn is_before(self, pause: Duration) -> bool {
        let WaitDeadline(Some(deadline)) = self else { return false };
        Instant::now().checked_add(pause).is_none_or(|then| then > deadline)
    }

    async fn timeout<T>(self, waiting: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some(deadline) => tokio::time::timeout_at(deadline, waiting).await.ok(),
            None => Some(waiting.await),
        }
    }
}
