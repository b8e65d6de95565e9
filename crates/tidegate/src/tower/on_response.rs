//! # Work to do on the response
//!
//! Usually there is none. Otherwise the remaining quota is added to the response, and permits move to the body or are
//! released. This state is stored in the response future, which is already large and is moved, so the rare and large
//! variant is boxed.

use ::http::Response;

use crate::gate::Permits;
use crate::http::{Limits, Passed, QuotaReport};

/// The work to do when the response is ready.
#[derive(Default)]
pub(super) enum OnResponse {
    #[default]
    Nothing,
    AddFields(Limits, QuotaReport),
    HoldPermits(Permits),
    Both(Box<(Limits, QuotaReport, Permits)>),
}

impl OnResponse {
    /// The work for a request that has passed. `None` if there is none.
    pub(super) fn of(passed: Passed, limits: &Limits) -> Option<Self> {
        let Passed { permits, report } = passed;
        match (report.is_none(), permits.is_empty()) {
            (true, true) => None,
            (false, true) => Some(OnResponse::AddFields(limits.clone(), report)),
            (true, false) => Some(OnResponse::HoldPermits(permits)),
            (false, false) => Some(OnResponse::Both(Box::new((limits.clone(), report, permits)))),
        }
    }

    /// Adds the remaining quota to the response, and returns the permits.
    pub(super) fn finish<B>(self, response: &mut Response<B>) -> Permits {
        match self {
            OnResponse::Nothing => Permits::none(),
            OnResponse::AddFields(limits, report) => {
                limits.add_fields(response, &report);
                Permits::none()
            }
            OnResponse::HoldPermits(permits) => permits,
            OnResponse::Both(both) => {
                let (limits, report, permits) = *both;
                limits.add_fields(response, &report);
                permits
            }
        }
    }
}
