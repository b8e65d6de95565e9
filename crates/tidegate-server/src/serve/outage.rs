//! # What is logged of outages
//!
//! One line when an outage begins, with the reason, and one when it is over, with the number of decisions that were made
//! without Redis. Fallbacks while Redis is available otherwise, such as a single missed deadline, are logged together, at
//! most one line every few seconds:
//!
//! ```text
//!   available ──── fallbacks ────► warn: 3 decisions were made without Redis (deadline: 3); …
//!    │     ▲
//!    ▼     └── available again ──► info: Redis available again: 1204 decisions were made without it in 12.5 s
//!   unavailable ─────────────────► warn: Redis unavailable (…); each rule follows its `when_lost` setting
//! ```

use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tidegate_redis::{Fallbacks, Health};

use crate::log::Log;

/// Watches whether Redis is available, and logs what changes.
#[derive(Debug)]
pub(super) struct Outages {
    log: Log,
    /// When the outage began, if there is one.
    since: Option<Instant>,
    /// The fallbacks that a line has told.
    logged: Fallbacks,
    /// Fallbacks outside of an outage are not logged before.
    quiet_until: Option<Instant>,
}

/// What is worth a line.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Began,
    Over { decisions: u64, lasted: Duration },
    Missed { decisions: u64, reasons: Vec<(&'static str, u64)> },
}

/// How often fallbacks outside of an outage are logged, at most.
const QUIET: Duration = Duration::from_secs(5);
const NO_REASON: &str = "the canary was not refused";

impl Outages {
    pub(super) fn new(log: Log) -> Self {
        Outages { log, since: None, logged: Fallbacks::default(), quiet_until: None }
    }

    /// The service starts without Redis.
    pub(super) fn begin(&mut self, why: &str) {
        self.since = Some(Instant::now());
        self.log_begin(why);
    }

    pub(super) fn look(&mut self, health: &Health) {
        let Some(enforced) = health.enforced else { return };
        let is_available = enforced && !health.breaker_open && health.connections.0 > 0;
        match self.change(is_available, health.fallbacks, Instant::now()) {
            None => {}
            Some(Change::Began) => {
                let why =
                    health.last_error.as_ref().map_or_else(|| NO_REASON.to_owned(), ToString::to_string);
                self.log_begin(&why);
            }
            Some(Change::Over { decisions, lasted }) => {
                let (decided, seconds) = (decisions_were(decisions), tenths(lasted));
                let message = format!("Redis available again: {decided} made without it in {seconds} s");
                let event = self.log.info(message).with("server", health.server.clone());
                event.with("decisions", decisions).with("seconds", seconds).say();
            }
            Some(Change::Missed { decisions, reasons }) => {
                let listed: Vec<_> =
                    reasons.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
                let message = format!(
                    "{} made without Redis ({}); each rule followed its `when_lost` setting",
                    decisions_were(decisions),
                    listed.join(", ")
                );
                let reasons: Map<String, Value> =
                    reasons.into_iter().map(|(reason, count)| (reason.to_owned(), count.into())).collect();
                self.log.warn(message).with("decisions", decisions).with("reasons", reasons).say();
            }
        }
    }

    fn log_begin(&self, why: &str) {
        let message = format!("Redis unavailable ({why}); each rule follows its `when_lost` setting");
        self.log.warn(message).with("why", why).say();
    }

    fn change(&mut self, is_available: bool, fallbacks: Fallbacks, now: Instant) -> Option<Change> {
        let decisions = fallbacks.total() - self.logged.total().min(fallbacks.total());
        match (self.since, is_available) {
            (Some(_), false) => None,
            (None, false) => {
                self.since = Some(now);
                Some(Change::Began)
            }
            (Some(since), true) => {
                self.since = None;
                self.log_next(fallbacks, now);
                Some(Change::Over { decisions, lasted: now.saturating_duration_since(since) })
            }
            (None, true) if decisions == 0 || self.quiet_until.is_some_and(|until| now < until) => None,
            (None, true) => {
                let before = self.logged.by_reason();
                let reasons = fallbacks
                    .by_reason()
                    .zip(before)
                    .map(|((reason, now), (_, before))| (reason, now - before.min(now)));
                let reasons = reasons.filter(|(_, count)| *count > 0).collect();
                self.log_next(fallbacks, now);
                Some(Change::Missed { decisions, reasons })
            }
        }
    }

    fn log_next(&mut self, fallbacks: Fallbacks, now: Instant) {
        self.logged = fallbacks;
        self.quiet_until = Some(now + QUIET);
    }
}

fn decisions_were(decisions: u64) -> String {
    if decisions == 1 { "1 decision was".to_owned() } else { format!("{decisions} decisions were") }
}

fn tenths(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fallbacks(deadline: u64, breaker_open: u64) -> Fallbacks {
        let mut fallbacks = Fallbacks::default();
        (fallbacks.deadline, fallbacks.breaker_open) = (deadline, breaker_open);
        fallbacks
    }

    #[test]
    fn an_outage_is_logged_when_it_begins_and_with_a_count_when_it_is_over() {
        let (mut outages, start) = (Outages::new(Log::Silent), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outages.change(true, fallbacks(0, 0), at(0)), None);
        assert_eq!(outages.change(false, fallbacks(5, 2), at(1)), Some(Change::Began));
        assert_eq!(outages.change(false, fallbacks(5, 90), at(2)), None);
        let over = Change::Over { decisions: 105, lasted: Duration::from_secs(12) };
        assert_eq!(outages.change(true, fallbacks(5, 100), at(13)), Some(over));
        assert_eq!(outages.change(true, fallbacks(5, 100), at(14)), None);
    }

    #[test]
    fn single_fallbacks_are_logged_together_and_not_too_often() {
        let (mut outages, start) = (Outages::new(Log::Silent), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let missed = |decisions, reasons| Some(Change::Missed { decisions, reasons });
        assert_eq!(outages.change(true, fallbacks(1, 0), at(500)), missed(1, vec![("deadline", 1)]));
        assert_eq!(outages.change(true, fallbacks(3, 0), at(1_000)), None, "a line was just written");
        assert_eq!(outages.change(true, fallbacks(3, 0), at(5_499)), None);
        let both = vec![("deadline", 2), ("breaker_open", 4)];
        assert_eq!(outages.change(true, fallbacks(3, 4), at(5_500)), missed(6, both));
        assert_eq!(outages.change(true, fallbacks(3, 4), at(60_000)), None);
    }
}
