//! The rules under test, for the configuration of the services and for the checks.

use std::fmt::Write;

use crate::check::curve::{Curve, Supply};
use crate::check::share::Share;
use crate::check::{MILLISECOND, Nanos, SECOND};

/// The number of services that share the limits.
pub(crate) const NODES: usize = 4;
const NODES_IN_ALL: i64 = 4;
/// The error of the assumed offset of the wall clock.
pub(crate) const WALL_SLACK: Nanos = MILLISECOND;

/// A rule, the demand for it, and its contract.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) limit: Limit,
    /// How long a grant lasts, if the rule is leased.
    pub(crate) lease: Option<Nanos>,
    pub(crate) on_outage: &'static str,
    /// The number of keys. The first is requested most often, the n-th 1/n times as often.
    pub(crate) keys: usize,
    /// Requests per second to all services together.
    pub(crate) demand: f64,
    /// Costs are from 1 to this.
    pub(crate) max_cost: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Bucket { algorithm: &'static str, tokens: i64, burst: i64 },
    FixedWindow { limit: i64, seconds: i64 },
    SlidingLog { limit: i64, seconds: i64 },
    SlidingWindow { limit: i64, seconds: i64, cells: i64 },
}

const LEASE: Option<Nanos> = Some(2 * SECOND);
const SHORT_LEASE: Option<Nanos> = Some(500 * MILLISECOND);

/// Every algorithm, leased where it can be; demand is about twice what the limit admits.
pub(crate) const RULES: &[Rule] = &[
    rule("hot", bucket(150, 50), 300.0).cost(3),
    rule("hot leased", bucket(400, 200), 800.0).lease(LEASE).cost(3),
    rule("slow leased", bucket(20, 100), 60.0).lease(LEASE).keys(2).cost(2),
    rule("short leased", bucket(100, 60), 160.0).lease(SHORT_LEASE).keys(2),
    rule("skewed", bucket(4, 8), 120.0).keys(50),
    rule("skewed leased", bucket(10, 40), 240.0).lease(LEASE).keys(50).cost(2),
    rule("fixed", Limit::FixedWindow { limit: 60, seconds: 1 }, 110.0).cost(2),
    rule("fixed leased", Limit::FixedWindow { limit: 200, seconds: 2 }, 200.0).lease(LEASE),
    rule("log", Limit::SlidingLog { limit: 40, seconds: 1 }, 80.0),
    rule("cells", Limit::SlidingWindow { limit: 60, seconds: 2, cells: 10 }, 70.0).cost(2),
    rule("meter", Limit::Bucket { algorithm: "leaky_meter", tokens: 40, burst: 12 }, 80.0),
    rule("closed", bucket(30, 20), 60.0).closed(),
];

const fn bucket(tokens: i64, burst: i64) -> Limit {
    Limit::Bucket { algorithm: "token_bucket", tokens, burst }
}

const fn rule(name: &'static str, limit: Limit, demand: f64) -> Rule {
    Rule { name, limit, lease: None, on_outage: "local", keys: 1, demand, max_cost: 1 }
}

impl Rule {
    const fn lease(self, lease: Option<Nanos>) -> Self {
        Rule { lease, ..self }
    }

    const fn keys(self, keys: usize) -> Self {
        Rule { keys, ..self }
    }

    const fn cost(self, max_cost: usize) -> Self {
        Rule { max_cost, ..self }
    }

    const fn closed(self) -> Self {
        Rule { on_outage: "closed", ..self }
    }

    /// The longest time between the grant of a token and its use; 0 for strict rules.
    pub(crate) fn longest_grant(&self) -> Nanos {
        self.lease.unwrap_or(0)
    }

    /// The share of a node in an outage. A leased bucket reserves an eighth of its burst, or one token per node, for shares.
    pub(crate) fn share(&self) -> Share {
        let (tokens, seconds) = match self.limit {
            Limit::Bucket { tokens, .. } => (tokens, 1),
            Limit::FixedWindow { limit, seconds }
            | Limit::SlidingLog { limit, seconds }
            | Limit::SlidingWindow { limit, seconds, .. } => (limit, seconds),
        };
        let kept = match self.limit {
            Limit::Bucket { burst, .. } if self.lease.is_some() => NODES_IN_ALL.max(burst / 8),
            _ => self.burst(),
        };
        Share { tokens, period: seconds * SECOND, nodes: NODES_IN_ALL, burst: kept / NODES_IN_ALL }
    }

    /// What one data loss adds to an interval.
    pub(crate) fn burst(&self) -> i64 {
        match self.limit {
            Limit::Bucket { burst, .. } => burst,
            Limit::FixedWindow { limit, .. }
            | Limit::SlidingLog { limit, .. }
            | Limit::SlidingWindow { limit, .. } => limit,
        }
    }
}

impl Limit {
    /// Formats the quota for the configuration.
    pub(crate) fn quota(&self) -> String {
        match self {
            Limit::Bucket { algorithm, tokens, burst } => format!("{algorithm} {tokens}/s burst {burst}"),
            Limit::FixedWindow { limit, seconds } => format!("fixed_window {limit} per {seconds}s"),
            Limit::SlidingLog { limit, seconds } => format!("sliding_log {limit} per {seconds}s"),
            Limit::SlidingWindow { limit, seconds, cells } => {
                format!("sliding_window {limit} per {seconds}s cells {cells}")
            }
        }
    }

    /// The supply curve, if the contract is one. The wall clock is `wall` ahead of the soak's.
    ///
    /// A bucket has a slack of one token: the clocks of Redis and of the soak may drift apart by less than a token during a
    /// run.
    pub(crate) fn curve(&self, wall: Nanos) -> Option<Curve> {
        match *self {
            Limit::Bucket { tokens, burst, .. } => {
                Some(Curve { slack: 1, ..Curve::bucket(tokens, SECOND, burst) })
            }
            Limit::FixedWindow { limit, seconds } => {
                let supply = Supply::Steps {
                    tokens: limit,
                    period: seconds * SECOND,
                    offset: wall,
                    slack: WALL_SLACK,
                };
                Some(Curve { burst: limit, slack: 0, supply })
            }
            Limit::SlidingLog { .. } | Limit::SlidingWindow { .. } => None,
        }
    }

    /// The limit in any period, if the contract is one.
    pub(crate) fn any_period(&self) -> Option<(i64, Nanos)> {
        match *self {
            Limit::SlidingLog { limit, seconds } | Limit::SlidingWindow { limit, seconds, .. } => {
                Some((limit, seconds * SECOND))
            }
            Limit::Bucket { .. } | Limit::FixedWindow { .. } => None,
        }
    }
}

/// The configuration of a service. `revision` changes a comment and a limit that is not under test.
pub(crate) fn configuration(redis: &str, revision: u64) -> String {
    let mut file = format!(
        "# revision {revision}\nstore:\n  redis: {{url: \"{redis}\", nodes: {NODES}}}\nrules:\n  \
         - {{name: not under test, quota: {}/s}}\n",
        100 + revision / 2 % 100
    );
    for Rule { name, limit, lease, on_outage, .. } in RULES {
        let quota = limit.quota();
        let lease = lease.map_or(String::new(), |ttl| format!(", lease: {{ttl: {}ms}}", ttl / MILLISECOND));
        let _ = writeln!(
            file,
            "  - {{name: {name}, key: key, missing: shared, quota: {quota}, when_lost: {on_outage}{lease}}}"
        );
    }
    file
}
