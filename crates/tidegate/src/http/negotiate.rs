//! # In which words a client wants to be refused
//!
//! A caller of gRPC understands a status of gRPC and nothing else, and says so by what it sends. A browser wants a page,
//! and names HTML before all else. Everybody else is a program, whatever it says.

use ::http::HeaderMap;
use ::http::header::{ACCEPT, CONTENT_TYPE};

const GRPC: [&str; 3] = ["application/grpc", "application/grpc-web", "application/grpc-web-text"];

/// Which gRPC is spoken, if it is: `application/grpc+proto` is, and `application/grpcs` is something else.
pub(super) fn grpc_kind(headers: &HeaderMap) -> Option<&'static str> {
    let said = headers.get(CONTENT_TYPE)?.as_bytes();
    let kind = said.split(|byte| b"+; \t".contains(byte)).next()?;
    GRPC.into_iter().find(|known| kind.eq_ignore_ascii_case(known.as_bytes()))
}

/// Whether a page is wanted, and rather than JSON: of the two, what is named first, as browsers do.
pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let mut wanted = lines.flat_map(|line| line.split(',')).filter(|kind| !is_unwanted(kind));
    wanted.find_map(is_html).unwrap_or(false)
}

/// Whether it is HTML or JSON. `None` if neither.
fn is_html(kind: &str) -> Option<bool> {
    let kind = kind.split(';').next()?.trim().to_ascii_lowercase();
    match kind.as_str() {
        "text/html" => Some(true),
        kind if kind.ends_with("json") => Some(false),
        _ => None,
    }
}

/// Whether it is only named to say that it is not wanted, by `q=0`.
fn is_unwanted(kind: &str) -> bool {
    let quality = |parameter: &str| parameter.trim().strip_prefix("q=").map(str::to_owned);
    let is_zero = |quality: String| quality.bytes().all(|byte| b"0.".contains(&byte));
    kind.split(';').skip(1).find_map(quality).is_some_and(is_zero)
}
