//! The implementations under test: Tidegate with leases, Tidegate with a round trip for each decision, and limitador,
//! which counts in its process and updates Redis later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::redis::CachedRedisStorage;
use tidegate::Rule;
use tidegate_redis::{Lease, Leased, RedisGate, RedisLimiter};

use crate::support::Server;

pub(crate) const RULE: &str = "abc";
/// The key that all nodes check.
pub(crate) const KEY: &str = "shared";

pub(crate) const LEASED: &str = "**tidegate**, leased";
pub(crate) const STRICT: &str = "**tidegate**, strict";
pub(crate) const LIMITADOR: &str = "limitador, cached Redis";

/// One of several nodes that share a limit.
#[derive(Clone)]
pub(crate) enum Node {
    Leased(Leased),
    Strict(RedisGate),
    Limitador(Arc<AsyncRateLimiter>),
}

/// A client that checks one key of a node again and again.
pub(crate) enum Asker {
    Leased(RedisLimiter<Leased>),
    Strict(RedisLimiter),
    Limitador(Arc<AsyncRateLimiter>, Namespace, Box<Context<'static>>),
}

/// Returns nodes that share a leased limit.
pub(crate) async fn leased(server: &Server, nodes: u32, rule: impl Into<Rule>) -> Vec<Leased> {
    let (mut gates, rule) = (Vec::new(), rule.into());
    for _ in 0..nodes {
        let builder = RedisGate::builder(server.url()).rule(RULE, rule).lease(Lease::new()).nodes(nodes);
        let gate = builder.deadline(Duration::from_secs(5)).connect().await.expect("a gate");
        gates.push(gate.leased());
    }
    gates
}

/// Returns limitadors in their default configuration that share a limit on the requests in a period of seconds.
pub(crate) async fn limitadors(server: &Server, nodes: u32, limit: u64, seconds: u64) -> Vec<Node> {
    let mut limiters = Vec::new();
    for _ in 0..nodes {
        let storage = CachedRedisStorage::new(&server.url()).await.expect("a server");
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
        let variable = "user".try_into().expect("a variable");
        limiter.add_limit(Limit::new("bench", limit, seconds, vec![], vec![variable]));
        limiters.push(Node::Limitador(Arc::new(limiter)));
    }
    limiters
}

impl Node {
    pub(crate) fn asker(&self) -> Asker {
        match self {
            Node::Leased(gate) => Asker::Leased(gate.limiter(RULE).expect("a rate limit")),
            Node::Strict(gate) => Asker::Strict(gate.limiter(RULE).expect("a rate limit")),
            Node::Limitador(limiter) => {
                let values = HashMap::from([("user".to_owned(), KEY.to_owned())]);
                Asker::Limitador(limiter.clone(), "bench".into(), Box::new(values.into()))
            }
        }
    }
}

impl Asker {
    pub(crate) async fn passes(&self) -> bool {
        match self {
            Asker::Leased(limiter) => limiter.check(KEY).await.is_allowed(),
            Asker::Strict(limiter) => limiter.check(KEY).await.is_allowed(),
            Asker::Limitador(limiter, namespace, context) => {
                let checked = limiter.check_rate_limited_and_update(namespace, context, 1).await;
                !checked.expect("a request").limited
            }
        }
    }
}
