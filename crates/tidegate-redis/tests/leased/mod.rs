//! Leased gates for tests.

use std::time::Duration;

use tidegate::Quota;
use tidegate_redis::{Builder, Lease, Leased, RedisGate};

use crate::gates;
use crate::support::Server;

/// A lease that outlasts every test.
pub(crate) const LONG: Lease = Lease::new().ttl(Duration::from_secs(600));

pub(crate) fn ready(builder: Builder) -> Leased {
    let gate =
        builder.deadline(Duration::from_secs(20)).canary(Duration::from_millis(50)).build().expect("a gate");
    gates::enforced(&gate);
    gate.leased()
}

/// An hourly limit: nothing refills while a test runs.
pub(crate) fn hourly(server: &Server, limit: u64, lease: Lease) -> Leased {
    ready(RedisGate::builder(server.url()).rule("user", Quota::per_hour(limit)).lease(lease))
}
