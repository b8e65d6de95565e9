//! # Waiting for a limit that is far away
//!
//! A refusal says when to ask again, and this does. It never waits for what cannot come in time.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Admission, Part};
use tidegate_core::{Decision, Outcome, Wait};
use tokio::time::Instant;

use crate::gate::Shared;
use crate::wire::Verb;

/// Nobody can say when a place is free, so it is asked for now and then.
const ASK_FOR_PLACES: Duration = Duration::from_millis(10);

/// A turn that comes too late is none.
async fn given_back(
    shared: &Arc<Shared>,
    request: &[Part<'_>],
    admission: Admission,
    wait: Wait,
) -> Admission {
    let rates: Vec<Part<'_>> = shared.rates(request).collect();
    if !rates.is_empty() {
        let _ = shared.ask_each(Verb::Refund, &rates).await;
    }
    let Decision { rule, .. } = admission.decision;
    let (at, limit) = (admission.decision.at(), admission.decision.limit());
    let refusal = Decision::counted(Outcome::RetryAfter(wait), at, limit, 0, wait);
    Admission::bare(refusal.of_rule(rule))
}

pub(crate) async fn acquire(shared: &Arc<Shared>, request: &[Part<'_>], timeout: Duration) -> Admission {
    let started = Instant::now();
    loop {
        let admission = shared.check(request).await;
        let pause = match admission.decision.outcome {
            Outcome::Allowed | Outcome::Never => return admission,
            Outcome::AllowedAfter(wait) if wait.duration() > timeout.saturating_sub(started.elapsed()) => {
                return given_back(shared, request, admission, wait).await;
            }
            Outcome::AllowedAfter(wait) => {
                tokio::time::sleep(wait.duration()).await;
                return admission;
            }
            Outcome::RetryAfter(wait) => wait.duration(),
            Outcome::Busy => ASK_FOR_PLACES,
        };
        if started.elapsed().saturating_add(pause) > timeout {
            return admission;
        }
        tokio::time::sleep(pause).await;
    }
}
