//! # Waiting for a limit that is far away
//!
//! A refusal says when to ask again, and this does. It never waits for what cannot come in time.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Admission, Part};
use tidegate_core::Outcome;
use tokio::time::Instant;

use crate::gate::Shared;

/// Nobody can say when a place is free, so it is asked for now and then.
const ASK_FOR_PLACES: Duration = Duration::from_millis(10);

pub(crate) async fn acquire(shared: &Arc<Shared>, request: &[Part<'_>], timeout: Duration) -> Admission {
    let started = Instant::now();
    loop {
        let admission = shared.check(request).await;
        let pause = match admission.decision.outcome {
            Outcome::Allowed | Outcome::Never => return admission,
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
