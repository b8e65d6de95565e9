//! # From a path to an answer

use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use tidegate::clock::Clock;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::message::Messages;
use super::reply::Reply;
use super::status::{Code, Status};
use super::wire::Message;
use super::{Service, health, limit, reflection};
use crate::http::is_known;
use crate::serve::unfinished::Share;

/// Every method there is: its path, and whether it needs the token.
pub const METHODS: [(&str, bool); 5] = [
    ("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", true),
    ("/grpc.health.v1.Health/Check", false),
    ("/grpc.health.v1.Health/Watch", false),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", true),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", true), // what older tools ask for: the same
];

/// A message that has begun is there by then, or not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers a call, whatever it is. `ending` is told when the connection is to end.
pub(super) async fn answer<C: Clock + Send + Sync + 'static>(
    service: &Service<C>,
    request: Request<Incoming>,
    share: Share,
    ending: Receiver<bool>,
) -> Response<Reply> {
    let is_grpc = |kind: &[u8]| {
        let rest = kind.strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b";") || rest == b"+proto")
    };
    let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes()).unwrap_or_default();
    if request.method() != Method::POST || !is_grpc(kind) {
        return Reply::not_understood();
    }
    let within = request.headers().get("grpc-timeout").and_then(|value| in_words(value.as_bytes()));
    let called = called(service, request, share, ending);
    let called = match within {
        None => called.await,
        Some(within) => timeout(within, called).await.unwrap_or_else(|_| {
            Err(Status::new(Code::DeadlineExceeded, "it took longer than the call may take; allow for more"))
        }),
    };
    called.unwrap_or_else(|status| Reply::failed(&status))
}

/// How long a call may take, as clients write it: up to eight digits, and a letter for the unit.
fn in_words(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

async fn called<C: Clock + Send + Sync + 'static>(
    service: &Service<C>,
    request: Request<Incoming>,
    share: Share,
    ending: Receiver<bool>,
) -> Result<Response<Reply>, Status> {
    let path = request.uri().path();
    let place = METHODS.iter().position(|(method, _)| *method == path).ok_or_else(|| {
        Status::new(Code::Unimplemented, format!("there is no {path}; ask by reflection what there is"))
    })?;
    let said = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    if METHODS[place].1 && !is_known(service.token.as_ref(), said) {
        let sentence = "missing or invalid bearer token; send it as `authorization: Bearer …`";
        return Err(Status::new(Code::Unauthenticated, sentence));
    }
    let messages = Messages::of(request.into_body(), share);
    Ok(match place {
        0 => Reply::one(&limit::should_limit(service, in_time(messages).await?).await?),
        1 => Reply::one(&health::check(&in_time(messages).await?, service.engine.meter().is_draining())?),
        2 => {
            let asked = in_time(messages).await?;
            Reply::many(health::watch(&asked, service.engine.meter().draining(), ending))
        }
        _ => Reply::many(reflection::converse(messages, ending)),
    })
}

async fn in_time<M: Message>(messages: Messages) -> Result<M, Status> {
    let late =
        |_| Status::new(Code::DeadlineExceeded, "the message did not arrive in time; send all of it at once");
    timeout(PATIENCE, messages.only()).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        let rows: [(&str, Option<u64>); 8] = [
            ("1S", Some(1_000_000)),
            ("20m", Some(20_000)),
            ("99999999u", Some(99_999_999)),
            ("2M", Some(120_000_000)),
            ("1H", Some(3_600_000_000)),
            ("999999999S", None),
            ("S", None),
            ("-1S", None),
        ];
        for (text, micros) in rows {
            assert_eq!(in_words(text.as_bytes()), micros.map(Duration::from_micros), "{text}");
        }
    }
}
