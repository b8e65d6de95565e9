//! # Whether it answers
//!
//! As load balancers ask: `grpc.health.v1`. It does from the moment it listens, with the rules it has, until it is told
//! to end; then whoever watches hears of it before the connection goes. A connection that ends for another reason, because it
//! was idle for instance, says nothing of the service. A store that does not answer is no reason to
//! send callers elsewhere: each rule says what becomes of them.

use bytes::Bytes;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::watch;

use super::generated::messages::{
    HealthCheckRequest, HealthCheckResponse, HealthCheckResponseServingStatus as Serving,
};
use super::message::framed;
use super::status::{Code, Status};

/// What it may be asked for: everything, the service, and the name that envoyproxy/ratelimit has for it.
const KNOWN: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

pub(super) fn check(asked: &HealthCheckRequest, is_draining: bool) -> Result<HealthCheckResponse, Status> {
    if !is_known(asked) {
        let sentence = format!("there is no service {:?}; ask for one of {KNOWN:?}", asked.service);
        return Err(Status::new(Code::NotFound, sentence));
    }
    Ok(HealthCheckResponse { status: status(is_draining) })
}

/// How it is now, and then that it drains. A service that is not there may yet come, so nothing more is said of it.
pub(super) fn watch(
    asked: &HealthCheckRequest,
    mut draining: watch::Receiver<bool>,
    mut ending: watch::Receiver<bool>,
) -> Receiver<Result<Bytes, Status>> {
    let (tell, told) = mpsc::channel(2);
    let (is_known, is_draining) = (is_known(asked), *draining.borrow());
    let first = if is_known { status(is_draining) } else { Serving::SERVICE_UNKNOWN };
    let _ = tell.try_send(Ok(framed(&HealthCheckResponse { status: first }))); // there is room for two
    tokio::spawn(async move {
        tokio::select! {
            biased;
            _ = draining.wait_for(|is_draining| *is_draining), if !is_draining => {
                if is_known {
                    let _ = tell.try_send(Ok(framed(&HealthCheckResponse { status: Serving::NOT_SERVING })));
                }
            }
            _ = ending.wait_for(|is_ending| *is_ending) => return,
            () = tell.closed() => return,
        }
        tokio::select! {
            _ = ending.wait_for(|is_ending| *is_ending) => {}
            () = tell.closed() => {}
        }
    });
    told
}

fn status(is_draining: bool) -> i32 {
    if is_draining { Serving::NOT_SERVING } else { Serving::SERVING }
}

fn is_known(asked: &HealthCheckRequest) -> bool {
    KNOWN.contains(&asked.service.as_str())
}
