//! # Limits on plain functions
//!
//! The limits stand where the work is done, whoever asks for it. They are by the day, so that what comes of them is the
//! same each time. A handler is a function like any other; what it returns when it is refused is a response.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tidegate::attribute::Denied;
use tidegate::{ConcurrencyLimiter, rate_limit};

/// Sends a text message: so many to each number, and not too many to all of them together.
///
/// # Errors
///
/// [`Denied`], with the limit that was reached.
#[rate_limit("2/day", key = number)]
#[rate_limit("4/day")]
pub fn text(number: &str, message: &str) -> Result<usize, Denied> {
    Ok(number.len() + message.len())
}

/// The weather. What is dear is done once a day for each city; otherwise there is something cheaper.
#[rate_limit(algorithm = sliding_log, limit = 1, per = "1 day", key = city, otherwise = climate)]
#[must_use]
pub fn weather(city: &str) -> String {
    format!("{city} as measured")
}

fn climate(city: &str) -> String {
    format!("{city} as usual")
}

/// A printer. It prints one page at a time, and none while it is being mended.
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
    /// [`Denied`], if it is at work.
    pub fn print(&self, page: u32) -> Result<u32, Denied> {
        Ok(page)
    }

    /// Is mended, and tries to print meanwhile.
    ///
    /// # Errors
    ///
    /// [`Denied`], if it is at work.
    pub fn mend(&self) -> Result<Result<u32, Denied>, Denied> {
        Ok(self.print(2)) // which finds the only place taken, by the mending
    }
}

// === Over HTTP ===

/// The functions, for whoever asks over HTTP.
pub fn app() -> Router {
    Router::new()
        .route("/texts/{number}", post(send))
        .route("/weather/{city}", get(async |Path(city): Path<String>| weather(&city)))
        .route("/reports/{name}", get(report))
}

async fn send(Path(number): Path<String>, message: String) -> Result<String, TooOften> {
    let letters = text(&number, &message)?; // which is limited itself
    Ok(format!("{letters} letters sent"))
}

/// A handler with a limit of its own.
#[rate_limit("1/day", key = name)]
async fn report(Path(name): Path<String>) -> Result<String, TooOften> {
    Ok(format!("report of {name}"))
}

/// A refusal, as a response.
struct TooOften(Denied);

impl From<Denied> for TooOften {
    fn from(denied: Denied) -> Self {
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
