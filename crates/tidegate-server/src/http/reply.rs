//! # Bodies, there and back

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};

use super::problem::Problem;

/// An answer, as hyper sends it.
pub(crate) type Sent = Response<Full<Bytes>>;

/// What is said to a request.
#[derive(Debug)]
pub(crate) struct Said {
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
}

/// The longest body, in bytes.
const BODY: usize = 256 << 10;

impl Said {
    pub(crate) fn json(json: String) -> Self {
        Said { status: StatusCode::OK, kind: "application/json", body: json.into() }
    }

    /// In the format that Prometheus reads.
    pub(crate) fn metrics(text: String) -> Self {
        Said { status: StatusCode::OK, kind: "text/plain; version=0.0.4; charset=utf-8", body: text.into() }
    }

    pub(crate) fn document(json: &'static str) -> Self {
        Said { status: StatusCode::OK, kind: "application/json", body: Bytes::from_static(json.as_bytes()) }
    }

    /// That it does not serve, or not much longer.
    pub(crate) fn unavailable(json: String) -> Self {
        Said { status: StatusCode::SERVICE_UNAVAILABLE, ..Said::json(json) }
    }
}

/// Whatever was said, as it is sent.
pub(crate) fn sent(said: Result<Said, Problem>) -> Sent {
    match said {
        Ok(Said { status, kind, body }) => response(status, kind, body),
        Err(problem) => problem_of(&problem),
    }
}

/// All of a body, if it is not too long.
pub(crate) async fn body(body: Incoming) -> Result<Bytes, Problem> {
    let too_long = || {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is too long; send at most {BODY} bytes"),
        )
    };
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_long());
    }
    match Limited::new(body, BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long()),
        Err(error) => Err(Problem::bad(format!("the body ended early ({error}); send all of it"))),
    }
}

fn problem_of(problem: &Problem) -> Sent {
    let mut response = response(problem.status, "application/problem+json", problem.body().into());
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(allow) = problem.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if problem.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Sent {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
