//! # Prober: checks that Redis enforces limits
//!
//! One task per gate that sends requests of its own. In normal operation it sends a canary every few seconds: a limit
//! of one, which must allow the first request and refuse the second. While the [breaker](crate::breaker) is open it
//! sends canaries more often, and closes the breaker as soon as a canary is decided correctly.
//!
//! The prober checks every connection, because one may be dead while another works. A connection that has got
//! no reply for 0.3 s is given up: a peer that vanishes sends no notice. A request of a client would be a
//! poor probe, because it would pay with its deadline, and a canary shows more than a reply: that the server
//! still limits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::connection::Connection;
use crate::error::Error;
use crate::gate::Shared;
use crate::wire::{CostExtra, Operation, RuleArgs, WireRule};
use tidegate_core::Rule;

/// How often to check whether the first attempt of every connection has finished.
const STARTUP_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How often the canary is sent, in normal operation and during an outage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeIntervals {
    pub(crate) healthy: Duration,
    pub(crate) unhealthy: Duration,
}

/// A limit of one, on a key that no other gate uses.
#[derive(Debug)]
pub(crate) struct Canary {
    key: Vec<u8>,
    rule: WireRule,
}

impl Canary {
    pub(crate) fn new(key: Vec<u8>) -> Self {
        let rule: Rule = "1/min".parse().expect("a rule");
        Canary { key, rule: WireRule::rate(&rule) }
    }

    fn rule_args(&self) -> [RuleArgs<'_>; 1] {
        [RuleArgs { key: self.key.clone(), cost: 1, extra: CostExtra::None, rule: &self.rule }]
    }
}

/// Probes until the gate is dropped.
pub(crate) async fn run(gate: Weak<Shared>, intervals: ProbeIntervals) {
    while let Some(shared) = gate.upgrade() {
        if !shared.connections.iter().all(|connection| connection.was_tried()) {
            drop(shared);
            tokio::time::sleep(STARTUP_POLL_INTERVAL).await; // there is nothing to report yet
            continue;
        }
        let enforced = probe(&shared).await;
        if enforced && shared.breaker.is_open() {
            shared.breaker.close();
            shared.outage.redis_replied();
        }
        let unhealthy = shared.breaker.is_open() || !enforced;
        pause_until_opened(shared, if unhealthy { intervals.unhealthy } else { intervals.healthy }).await;
    }
}

/// Sleeps for `pause` or until the breaker opens, without keeping the gate alive.
async fn pause_until_opened(shared: Arc<Shared>, pause: Duration) {
    let breaker = shared.breaker.clone();
    drop(shared);
    let _ = tokio::time::timeout(pause, breaker.opened()).await;
    if breaker.is_open() {
        // Woken early or not, a failing server gets a short pause.
        tokio::time::sleep(pause.min(Duration::from_millis(50))).await;
    }
}

/// Whether every connection allows the canary once and then refuses it. `false` also without a reply.
async fn probe(shared: &Shared) -> bool {
    let mut enforced = true;
    for connection in &shared.connections {
        enforced &= match send_canary(shared, connection).await {
            Ok(enforced) => {
                connection.inspect_again().await;
                enforced
            }
            Err(error) => {
                shared.monitor.record_error(&error);
                shared.breaker.failed();
                false
            }
        };
    }
    shared.monitor.record_canary(enforced);
    enforced
}

async fn send_canary(shared: &Shared, connection: &Connection) -> Result<bool, Error> {
    let rules = shared.canary.rule_args();
    shared.call_despite_breaker(connection, Operation::Reset, &rules, None).await?;
    let first = shared.call_despite_breaker(connection, Operation::Check, &rules, None).await?;
    let second = shared.call_despite_breaker(connection, Operation::Check, &rules, None).await?;
    Ok(first.decisions[0].is_allowed() && !second.decisions[0].is_allowed())
}
