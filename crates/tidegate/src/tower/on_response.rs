//! # What is still to be done when the response is there
//!
//! Mostly nothing. Else clients are told what is left, and permits are handed on or come back. It waits in the future
//! of the response, which is large already and is moved about; so what is seldom and large is in a box.

use ::http::Response;

use crate::gate::Permits;
use crate::http::{Decisions, Limits, Passed};

/// To be done when the response is there.
#[derive(Default)]
pub(super) enum OnResponse {
    /// It has been done.
    #[default]
    Nothing,
    Tell(Limits, Decisions),
    Hold(Permits),
    Both(Box<(Limits, Decisions, Permits)>),
}

impl OnResponse {
    /// `None` if there is nothing.
    pub(super) fn of(passed: Passed, limits: &Limits) -> Option<Self> {
        let Passed { permits, decisions } = passed;
        match (decisions.is_none(), permits.is_empty()) {
            (true, true) => None,
            (false, true) => Some(OnResponse::Tell(limits.clone(), decisions)),
            (true, false) => Some(OnResponse::Hold(permits)),
            (false, false) => Some(OnResponse::Both(Box::new((limits.clone(), decisions, permits)))),
        }
    }

    /// Tells what is to be told, and returns the permits.
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
