//! # Format of a refusal
//!
//! A refusal is sent in the format that the client understands. A gRPC client understands only a gRPC status, and its
//! content type identifies it. A browser shows a page, and names HTML first in `Accept`. Every other client gets JSON,
//! whatever it accepts.

use ::http::HeaderMap;
use ::http::header::{ACCEPT, CONTENT_TYPE};

const GRPC: [&str; 3] = ["application/grpc", "application/grpc-web", "application/grpc-web-text"];

/// Returns the gRPC content type of the request, if it has one.
///
/// `application/grpc+proto` is gRPC, and `application/grpcs` is not.
pub(super) fn grpc_kind(headers: &HeaderMap) -> Option<&'static str> {
    let value = headers.get(CONTENT_TYPE)?.as_bytes();
    let kind = value.split(|byte| b"+; \t".contains(byte)).next()?;
    GRPC.into_iter().find(|known| kind.eq_ignore_ascii_case(known.as_bytes()))
}

/// Whether the client prefers HTML to JSON: the first of the two in `Accept` counts.
///
/// Browsers name HTML first.
pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let mut accepted = lines.flat_map(|line| line.split(',')).filter(|kind| !is_excluded(kind));
    accepted.find_map(is_html).unwrap_or(false)
}

/// Whether a media type is HTML (`true`) or JSON (`false`). `None` if neither.
fn is_html(kind: &str) -> Option<bool> {
    let kind = kind.split(';').next()?.trim().to_ascii_lowercase();
    match kind.as_str() {
        "text/html" => Some(true),
        kind if kind.ends_with("json") => Some(false),
        _ => None,
    }
}

/// Whether a media type is named only to exclude it, by `q=0`.
fn is_excluded(kind: &str) -> bool {
    let quality = |parameter: &str| parameter.trim().strip_prefix("q=").map(str::to_owned);
    let is_zero = |quality: String| quality.bytes().all(|byte| b"0.".contains(&byte));
    kind.split(';').skip(1).find_map(quality).is_some_and(is_zero)
}
