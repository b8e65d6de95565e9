//! # Limits on plain functions
//!
//! The limits are on the functions that do the work, so they apply to every caller. They are per day, so that the
//! results of a test do not depend on time. A handler is a function like any other; when it is refused, it returns a
//! response.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tidegate::attribute::CallDenied;
use tidegate::{ConcurrencyLimiter, rate_limit};

/// Sends a text message. Limits the messages to each number, and all messages together.
///
/// # Errors
///
/// [`CallDenied`] with the limit that was reached.
#[rate_limit("2/day", key = number)]
#[rate_limit("4/day")]
pub fn text(number: &str, message: &str) -> Result<usize, CallDenied> {
    Ok(number.len() + message.len())
}

/// Returns the weather. The expensive measurement runs once a day for each city; other calls get the climate.
#[rate_limit(algorithm = sliding_log, limit = 1, per = "1 day", key = city, otherwise = climate)]
#[must_use]
pub fn weather(city: &str) -> String {
    format!("{city} as measured")
}

fn climate(city: &str) -> String {
    format!("{city} as usual")
}

/// A printer that prints one page at a time, and none while it is being repaired.
#[derive(Debug)]
pub struct Printer {
    trays: ConcurrencyLimiter,
}

impl Default for Printer {
    fn default() -> Self {
        Printer { trays: ConcurrencyLimiter::new(1) }
    }
}

#[rate_limit(limiter = self.trays)]
impl Printer {
    /// Prints a page.
    ///
    /// # Errors
    ///
    /// [`CallDenied`] if the printer is busy.
    pub fn print(&self, page: u32) -> Result<u32, CallDenied> {
        Ok(page)
    }

    /// Repairs the printer, and tries to print meanwhile.
    ///
    /// # Errors
    ///
    /// [`CallDenied`] if the printer is busy.
    pub fn repair(&self) -> Result<Result<u32, CallDenied>, CallDenied> {
        Ok(self.print(2)) // is denied: the repair holds the only permit
    }
}

// === Over HTTP ===

/// Returns a router that calls the functions.
pub fn app() -> Router {
    Router::new()
        .route("/texts/{number}", post(send))
        .route("/weather/{city}", get(async |Path(city): Path<String>| weather(&city)))
        .route("/reports/{name}", get(report))
}

async fn send(Path(number): Path<String>, message: String) -> Result<String, TooOften> {
    let letters = text(&number, &message)?; // the function has its own limits
    Ok(format!("{letters} letters sent"))
}

/// A handler with a limit of its own.
#[rate_limit("1/day", key = name)]
async fn report(Path(name): Path<String>) -> Result<String, TooOften> {
    Ok(format!("report of {name}"))
}

/// A refusal, as a response.
struct TooOften(CallDenied);

impl From<CallDenied> for TooOften {
    fn from(denied: CallDenied) -> Self {
        TooOften(denied)
    }
}

impl IntoResponse for TooOften {
    fn into_response(self) -> Response {
        let seconds = self.0.retry_after().map_or(1, |wait| wait.as_secs_up());
        let headers = [(RETRY_AFTER, seconds.to_string())];
        (StatusCode::TOO_MANY_REQUESTS, headers, self.0.to_string()).into_response()
    }
}
