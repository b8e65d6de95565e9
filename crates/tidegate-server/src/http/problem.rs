//! # What cannot be answered
//!
//! Told as RFC 9457 has it: a status, its title, and a sentence.

use hyper::StatusCode;

use crate::engine::Fault;

/// Why a request cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    /// The methods that would have been right, if that is it.
    pub(crate) allow: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Problem { status, detail: detail.into(), allow: None }
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn body(&self) -> String {
        let title = self.status.canonical_reason().unwrap_or_default();
        serde_json::json!({ "title": title, "status": self.status.as_u16(), "detail": self.detail })
            .to_string()
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let status = match fault {
            Fault::Store(_) | Fault::TooManyHeld { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Fault::NeedsPlace { .. } | Fault::NoPlaces => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        Problem::new(status, fault.to_string())
    }
}
