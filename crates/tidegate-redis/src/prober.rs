//! # The watch
//!
//! One task per gate that asks on its own. While all is well it asks a canary every few seconds: a limit of one, which must let
//! the first pass and refuse the second. While the [breaker](crate::breaker) is open it asks more often, and closes it as soon
//! as the canary is right again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::connection::Connection;
use crate::error::Error;
use crate::gate::Shared;
use crate::wire::{Described, Line, Terms, Verb};
use tidegate_core::Rule;

/// How long to wait for the first connections to be tried.
const FIRST: Duration = Duration::from_millis(2);

/// How often the canary is asked, while all is well and while it is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) well: Duration,
    pub(crate) ill: Duration,
}

/// A limit of one, for a key that no other gate asks for.
#[derive(Debug)]
pub(crate) struct Canary {
    key: Vec<u8>,
    rule: Described,
}

impl Canary {
    pub(crate) fn new(key: Vec<u8>) -> Self {
        let rule: Rule = "1/min".parse().expect("a rule");
        Canary { key, rule: Described::rule(&rule) }
    }

    fn line(&self) -> [Line<'_>; 1] {
        [Line { key: self.key.clone(), cost: 1, terms: Terms::Plain, rule: &self.rule }]
    }
}

/// Watches until the gate is gone.
pub(crate) async fn run(gate: Weak<Shared>, pace: Pace) {
    while let Some(shared) = gate.upgrade() {
        if !shared.connections.iter().all(|connection| connection.was_tried()) {
            drop(shared);
            tokio::time::sleep(FIRST).await; // there is nothing to say yet
            continue;
        }
        let answered = ask(&shared).await;
        if answered && shared.breaker.is_open() {
            shared.breaker.close();
            shared.outage.is_over();
        }
        let ill = shared.breaker.is_open() || !answered;
        rest(shared, if ill { pace.ill } else { pace.well }).await;
    }
}

/// Waits, without keeping the gate alive, until it is time or the breaker has opened.
async fn rest(shared: Arc<Shared>, pause: Duration) {
    let breaker = shared.breaker.clone();
    drop(shared);
    let _ = tokio::time::timeout(pause, breaker.opened()).await;
    if breaker.is_open() {
        // Woken or not, whoever is ill is given a moment.
        tokio::time::sleep(pause.min(Duration::from_millis(50))).await;
    }
}

/// Whether the canary was let through once and refused then, on every connection. `false` also if there was no answer.
async fn ask(shared: &Shared) -> bool {
    let mut enforced = true;
    for connection in &shared.connections {
        enforced &= match try_canary(shared, connection).await {
            Ok(enforced) => {
                connection.look_again().await;
                enforced
            }
            Err(error) => {
                shared.counts.saw(&error);
                shared.breaker.failed();
                false
            }
        };
    }
    shared.counts.saw_canary(enforced);
    enforced
}

async fn try_canary(shared: &Shared, connection: &Connection) -> Result<bool, Error> {
    let line = shared.canary.line();
    shared.send_in_time(connection, Verb::Reset, &line, None).await?;
    let first = shared.send_in_time(connection, Verb::Check, &line, None).await?;
    let second = shared.send_in_time(connection, Verb::Check, &line, None).await?;
    Ok(first.decisions[0].is_allowed() && !second.decisions[0].is_allowed())
}
