//! # Work to do on the response
//!
//! Usually there is none. Otherwise the remaining quota is added to the response, and permits are passed on or
//! released. This state is stored in the future of the response, which is large already and is moved; so the variant
//! that is rare and large is boxed.

use ::http::Response;

use crate::gate::Permits;
use crate::http::{Decisions, Limits, Passed};

/// What to do when the response is ready.
#[derive(Default)]
pub(super) enum OnResponse {
    /// Nothing is left to do.
    #[default]
    Nothing,
    Tell(Limits, Decisions),
    Hold(Permits),
    Both(Box<(Limits, Decisions, Permits)>),
}

impl OnResponse {
    /// What to do for a request that has passed; `None` if nothing.
    pub(super) fn of(passed: Passed, limits: &Limits) -> Option<Self> {
        let Passed { permits, decisions } = passed;
        match (decisions.is_none(), permits.is_empty()) {
            (true, true) => None,
            (false, true) => Some(OnResponse::Tell(limits.clone(), decisions)),
            (true, false) => Some(OnResponse::Hold(permits)),
            (false, false) => Some(OnResponse::Both(Box::new((limits.clone(), decisions, permits)))),
        }
    }

    /// Adds the remaining quota to the response, and returns the permits.
    pub(super) fn finish<B>(self, response: &mut Response<B>) -> Permits {
        match self {
            OnResponse::Nothing => Permits::none(),
            OnResponse::Tell(limits, decisions) => {
                limits.tell(response, &decisions);
                Permits::none()
            }
            OnResponse::Hold(permits) => permits,
            OnResponse::Both(both) => {
                let (limits, decisions, permits) = *both;
                limits.tell(response, &decisions);
                permits
            }
        }
    }
}
