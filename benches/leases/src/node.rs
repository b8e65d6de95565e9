//! Who decides: we, from leases or by asking Redis for each, or limitador, which counts here and tells Redis later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::redis::CachedRedisStorage;
use tidegate::{Part, Rule, RuleId};
use tidegate_redis::{Lease, Leased, RedisGate};

use crate::support::Server;

pub(crate) const LEASED: &str = "**tidegate**, leased";
pub(crate) const STRICT: &str = "**tidegate**, strict";
pub(crate) const LIMITADOR: &str = "limitador, cached Redis";

/// One of those that share a limit.
#[derive(Clone)]
pub(crate) enum Node {
    Leased(Leased),
    Strict(RedisGate),
    Limitador(Arc<AsyncRateLimiter>),
}

/// Somebody who asks a node for one and the same key, again and again.
pub(crate) enum Asker {
    Leased(Leased),
    Strict(RedisGate),
    Limitador(Arc<AsyncRateLimiter>, Namespace, Box<Context<'static>>),
}

/// So many that share a leased limit.
pub(crate) async fn leased(server: &Server, nodes: u32, rule: impl Into<Rule>) -> Vec<Leased> {
    let (mut gates, rule) = (Vec::new(), rule.into());
    for _ in 0..nodes {
        let builder = RedisGate::builder(server.url()).rule("abc", rule).lease(Lease::on()).nodes(nodes);
        let gate = builder.deadline(Duration::from_secs(5)).build().expect("a gate");
        assert!(gate.ready(Duration::from_secs(10)).await, "{:?}", gate.health());
        gates.push(gate.leased());
    }
    gates
}

/// So many limitadors, as they come, that share a limit on what passes in so many seconds.
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
            Node::Leased(gate) => Asker::Leased(gate.clone()),
            Node::Strict(gate) => Asker::Strict(gate.clone()),
            Node::Limitador(limiter) => {
                let values = HashMap::from([("user".to_owned(), "everybody".to_owned())]);
                Asker::Limitador(limiter.clone(), "bench".into(), Box::new(values.into()))
            }
        }
    }
}

impl Asker {
    pub(crate) async fn passes(&self) -> bool {
        let request = [Part::of(RuleId(0)).key("everybody")];
        match self {
            Asker::Leased(gate) => gate.check(&request).await.expect("a request").is_allowed(),
            Asker::Strict(gate) => gate.check(&request).await.expect("a request").is_allowed(),
            Asker::Limitador(limiter, namespace, context) => {
                let checked = limiter.check_rate_limited_and_update(namespace, context, 1).await;
                !checked.expect("a request").limited
            }
        }
    }
}
