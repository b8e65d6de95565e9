//! # What Prometheus is told
//!
//! Its text format, written by hand: a name, labels, a number. Everything that is counted is counted elsewhere, without
//! locks; here it is added up when somebody asks. There are as many lines as the rules in force make, and no more:
//! no label holds a key, or anything else that callers choose.
//!
//! Ten thousand rules make megabytes of text. So it is written in pieces, each when the one before has been sent.

mod text;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tidegate::Source;
use tidegate::clock::Clock;
use tidegate::gate::RuleId;

use crate::config::Protocol;
use crate::engine::meter::Meter;
use crate::engine::tally::{ALL_SOURCES, Tally};
use crate::engine::{Counted, Engine, InForce};
use crate::http::reply::Said;
use crate::log;
use crate::resp::source_name;
use text::{Kind, Lines};

/// So many rules are written in one piece.
const PIECE: usize = 128;

/// All of it, piece by piece.
pub(crate) struct Text<C> {
    engine: Arc<Engine<C>>,
    /// Those in force when it was asked for: what a reload does meanwhile is not seen.
    rules: Arc<InForce<C>>,
    /// The section that is written next, and the first of its rules or limits.
    next: (usize, usize),
}

/// Writes a part of a section: these of its rules or limits.
type Write<C> = fn(&Text<C>, &mut Lines, Range<usize>);

/// What a section has lines for.
#[derive(Clone, Copy, Debug)]
enum Each {
    Once,
    Rule,
    Limit,
}

impl<C: Clock + Send + Sync + 'static> Text<C> {
    pub(crate) fn new(engine: &Arc<Engine<C>>) -> Self {
        Text { engine: engine.clone(), rules: Arc::clone(&engine.in_force()), next: (0, 0) }
    }

    const SECTIONS: [(Each, Write<C>); 11] = [
        (Each::Once, |text, lines, _| build(lines, text.engine.meter())),
        (Each::Rule, |text, lines, rules| decisions(lines, &text.rules, rules)),
        (Each::Rule, |text, lines, rules| denied(lines, &text.rules, rules)),
        (Each::Once, |text, lines, _| listed(lines, text.engine.meter())),
        (Each::Rule, |text, lines, rules| shadows(lines, &text.rules, rules)),
        (Each::Limit, |text, lines, limits| tables(lines, &text.rules, 0, limits)),
        (Each::Limit, |text, lines, limits| tables(lines, &text.rules, 1, limits)),
        (Each::Limit, |text, lines, limits| tables(lines, &text.rules, 2, limits)),
        (Each::Limit, |text, lines, limits| tables(lines, &text.rules, 3, limits)),
        (Each::Once, |text, lines, _| held(lines, &text.engine)),
        (Each::Once, |text, lines, _| rest(lines, &text.rules, text.engine.meter())),
    ];
}

impl<C: Clock + Send + Sync + 'static> Iterator for Text<C> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let (section, start) = self.next;
        let (each, write) = Self::SECTIONS.get(section)?;
        let compiled = self.rules.compiled();
        let items = match each {
            Each::Once => 0,
            Each::Rule => compiled.rules().len(),
            Each::Limit => compiled.limits().len(),
        };
        let end = items.min(start + PIECE);
        let mut lines = Lines::default();
        write(self, &mut lines, start..end);
        self.next = if end < items { (section, end) } else { (section + 1, 0) };
        Some(lines.end())
    }
}

fn build(lines: &mut Lines, meter: &Meter) {
    lines.family("tidegate_build_info", Kind::Gauge, "Which program this is.");
    lines.one("tidegate_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    const DROPPED: &str = "tidegate_log_lines_dropped_total";
    lines.family(DROPPED, Kind::Counter, "Lines of the log that were dropped because nobody read it.");
    lines.one(DROPPED, &[], log::dropped());
    const MISSING: &str = "tidegate_config_file_missing";
    lines.family(MISSING, Kind::Gauge, "1 if the configuration file is not there; the rules in force stay.");
    lines.one(MISSING, &[], meter.is_file_missing.load(Relaxed).into());
}

/// What there is to tell of the whole service.
fn rest<C: Clock>(lines: &mut Lines, rules: &InForce<C>, meter: &Meter) {
    redis(lines, rules, meter);
    leases(lines, rules);
    let ratio = protection(rules, meter);
    lines.family(
        "tidegate_protection_ratio",
        Kind::Gauge,
        "Of the decisions of the last seconds, the part that was enforced; 0 if the canary says that nothing is.",
    );
    lines.float("tidegate_protection_ratio", &[], ratio);
    reloads(lines, meter);
    doors(lines, meter);
}

/// Notes how many decisions there were by now, so that there is a ratio of the last few seconds. To be called every
/// half second.
pub(crate) fn look<C: Clock + Send + Sync + 'static>(engine: &Engine<C>) {
    let (decisions, open) = decided(&engine.in_force(), engine.meter());
    engine.meter().look(decisions, open);
}

/// Whether requests should be sent here.
pub(crate) fn readiness<C: Clock + Send + Sync + 'static>(engine: &Engine<C>) -> Said {
    if engine.meter().is_draining() {
        return Said::unavailable("{\"status\":\"draining\"}".to_owned());
    }
    let is_degraded = engine.in_force().redis().is_some_and(|health| health.enforced != Some(true));
    let status = if is_degraded { "degraded" } else { "ok" };
    Said::json(format!("{{\"status\":\"{status}\"}}"))
}

fn protection<C: Clock>(rules: &InForce<C>, meter: &Meter) -> f64 {
    if rules.redis().is_some_and(|health| health.enforced == Some(false)) {
        return 0.0;
    }
    let (decisions, open) = decided(rules, meter);
    meter.protection(decisions, open).unwrap_or(1.0)
}

/// How many decisions there were, by rules and by limits that came with the call, and how many of them were let through
/// uncounted.
fn decided<C>(rules: &InForce<C>, meter: &Meter) -> (u64, u64) {
    let tallies = rules.tallies().iter().map(|tally| &**tally).chain([&meter.throttled]);
    let all = tallies.map(|tally| {
        let all: u64 = ALL_SOURCES.iter().map(|source| tally.sum_of(*source)).sum();
        (all, tally.sum_of(Source::Open))
    });
    all.fold((0, 0), |(all, open), (more, more_open)| (all + more, open + more_open))
}

fn decisions<C>(lines: &mut Lines, rules: &InForce<C>, range: Range<usize>) {
    const NAME: &str = "tidegate_decisions_total";
    if range.start == 0 {
        lines.family(NAME, Kind::Counter, "Requests by the rule that was binding, who decided, and what.");
    }
    for tally in &rules.tallies()[range] {
        limited(lines, NAME, &[("rule", &tally.name)], tally);
    }
}

fn denied<C>(lines: &mut Lines, rules: &InForce<C>, range: Range<usize>) {
    const DENIED: &str = "tidegate_denied_total";
    if range.start == 0 {
        lines.family(
            DENIED,
            Kind::Counter,
            "Requests that a rule refused without looking at a limit: its list, a missing key or cost, a block.",
        );
    }
    for tally in &rules.tallies()[range] {
        lines.one(DENIED, &[("rule", &tally.name)], tally.sum_denied());
    }
}

fn listed(lines: &mut Lines, meter: &Meter) {
    const LISTED: &str = "tidegate_unruled_total";
    lines.family(LISTED, Kind::Counter, "Requests that no rule was asked about, by what became of them.");
    for (outcome, number) in ["unlimited", "exempt", "denied"].iter().zip(&meter.listed) {
        lines.one(LISTED, &[("outcome", outcome)], number.sum());
    }
    const THROTTLED: &str = "tidegate_throttle_decisions_total";
    lines.family(
        THROTTLED,
        Kind::Counter,
        "Requests whose limit came with the call (CL.THROTTLE), by who decided, and what.",
    );
    limited(lines, THROTTLED, &[], &meter.throttled);
    loans(lines, meter);
}

/// By who decided, and what. What ordinarily happens is there from the beginning; all else once it has happened.
fn limited(lines: &mut Lines, name: &str, labels: &[(&str, &str)], tally: &Tally) {
    for source in ALL_SOURCES {
        for counted in Counted::ALL {
            let sum = tally.sum(source, counted);
            if sum > 0 || (source == Source::Strict && counted != Counted::Delayed) {
                let own = [("source", source_name(source)), ("outcome", counted.name())];
                lines.one(name, &[labels, &own].concat(), sum);
            }
        }
    }
}

fn loans(lines: &mut Lines, meter: &Meter) {
    const LENT: &str = "tidegate_loan_tokens_total";
    lines.family(LENT, Kind::Counter, "Tokens lent to clients, to be spent without asking.");
    for (what, number) in ["granted", "returned"].iter().zip(&meter.lent) {
        lines.one(LENT, &[("what", what)], number.sum());
    }
}

fn shadows<C>(lines: &mut Lines, rules: &InForce<C>, range: Range<usize>) {
    const NAME: &str = "tidegate_shadow_decisions_total";
    if range.start == 0 {
        lines.family(NAME, Kind::Counter, "What rules that only watch would have done.");
    }
    for (number, rule) in (0..).zip(rules.compiled().rules()).skip(range.start).take(range.len()) {
        let Some(watched) = rules.watched(number) else { continue };
        for (outcome, count) in [("allowed", watched.passed()), ("refused", watched.refused())] {
            lines.one(NAME, &[("rule", &rule.name), ("outcome", outcome)], count);
        }
    }
}

type OfStats = fn(&tidegate::stats::Stats) -> u64;

/// What is told of each table, a family for each.
const TABLES: [(&str, Kind, &str, OfStats); 4] = [
    ("tidegate_keys", Kind::Gauge, "Keys that have a state in memory.", |stats| stats.keys as u64),
    ("tidegate_keys_evicted_total", Kind::Counter, "Idle keys that made room for others.", |stats| {
        stats.evicted
    }),
    (
        "tidegate_keys_refused_total",
        Kind::Counter,
        "Decisions refused for want of room for a key.",
        |stats| stats.refused,
    ),
    ("tidegate_table_bytes", Kind::Gauge, "Memory that the limit takes, with all of its keys.", |stats| {
        stats.bytes as u64
    }),
];

fn tables<C: Clock + Send + Sync + 'static>(
    lines: &mut Lines,
    rules: &InForce<C>,
    family: usize,
    range: Range<usize>,
) {
    let (name, kind, help, value) = TABLES[family];
    if range.start == 0 {
        lines.family(name, kind, help);
    }
    for (number, numbered) in (0..).zip(rules.compiled().limits()).skip(range.start).take(range.len()) {
        if let Some(stats) = rules.stats(RuleId(number)) {
            lines.one(name, &[("limit", &numbered.identity.name)], value(&stats));
        }
    }
}

fn held<C: Clock + Send + Sync + 'static>(lines: &mut Lines, engine: &Engine<C>) {
    lines.family("tidegate_throttle_keys", Kind::Gauge, "Keys whose limit comes with the call.");
    lines.one("tidegate_throttle_keys", &[], engine.keys());
    lines.family("tidegate_places", Kind::Gauge, "Requests that hold places at work.");
    lines.one("tidegate_places", &[], engine.places() as u64);
    const NO_ROOM: &str = "tidegate_permits_refused_total";
    lines.family(NO_ROOM, Kind::Counter, "Requests for permits that were refused because too many are held.");
    lines.one(NO_ROOM, &[], engine.permits_refused());
    lines.family("tidegate_blocks", Kind::Gauge, "Keys that an administrator has blocked.");
    lines.one("tidegate_blocks", &[], engine.blocks().len() as u64);
}

fn redis<C>(lines: &mut Lines, rules: &InForce<C>, meter: &Meter) {
    let Some(health) = rules.redis() else { return };
    let (open, wanted) = health.connections;
    let gauges = [
        ("tidegate_redis_connections", "Connections to Redis.", open as u64),
        ("tidegate_redis_connections_wanted", "Connections to Redis that there should be.", wanted as u64),
        (
            "tidegate_redis_breaker_open",
            "1 while Redis is not asked, having failed too often.",
            health.breaker_open.into(),
        ),
        (
            "tidegate_redis_canary_enforced",
            "1 if the canary was refused when it should be, the last time it was asked.",
            (health.enforced == Some(true)).into(),
        ),
    ];
    for (name, help, value) in gauges {
        lines.family(name, Kind::Gauge, help);
        lines.one(name, &[], value);
    }
    const COMMANDS: &str = "tidegate_redis_commands_total";
    lines.family(COMMANDS, Kind::Counter, "Calls to Redis, for decisions, leases, places and the canary.");
    lines.one(COMMANDS, &[], health.commands);
    lines.family("tidegate_redis_breaker_openings_total", Kind::Counter, "How often that has begun.");
    lines.one("tidegate_redis_breaker_openings_total", &[], health.breaker_openings);
    const FALLBACKS: &str = "tidegate_fallback_decisions_total";
    lines.family(
        FALLBACKS,
        Kind::Counter,
        "Decisions made without Redis, by the reason; ad-hoc limits included.",
    );
    for (reason, count) in health.fallbacks.by_reason() {
        lines.one(FALLBACKS, &[("reason", reason)], count);
    }
    const TOOK: &str = "tidegate_redis_duration_seconds";
    lines.family(TOOK, Kind::Histogram, "From asking Redis to the decision, whoever made it.");
    lines.histogram(TOOK, &[], &meter.store.seen());
}

/// Tokens, by what became of them. What is neither spent nor any of these is held.
fn leases<C>(lines: &mut Lines, rules: &InForce<C>) {
    let Some(stats) = rules.leases() else { return };
    const TOKENS: &str = "tidegate_lease_tokens_total";
    lines.family(TOKENS, Kind::Counter, "Tokens leased from Redis, by what became of them.");
    let tokens = [
        ("granted", stats.granted),
        ("returned", stats.returned),
        ("expired", stats.expired),
        ("stranded", stats.stranded),
    ];
    for (what, count) in tokens {
        lines.one(TOKENS, &[("what", what)], count);
    }
    const COMMANDS: &str = "tidegate_lease_commands_total";
    lines.family(COMMANDS, Kind::Counter, "Calls to Redis that leases have made; they are among all calls.");
    lines.one(COMMANDS, &[], stats.commands);
    const REQUESTS: &str = "tidegate_lease_requests_total";
    lines.family(
        REQUESTS,
        Kind::Counter,
        "Requests decided from leased tokens, without a call of their own.",
    );
    for (outcome, count) in [("allowed", stats.spent), ("refused", stats.refused)] {
        lines.one(REQUESTS, &[("outcome", outcome)], count);
    }
}

fn reloads(lines: &mut Lines, meter: &Meter) {
    let reloads = &meter.reloads;
    lines.family("tidegate_reloads_total", Kind::Counter, "How often the file was read again.");
    for (result, count) in [("in_force", &reloads.good), ("rejected", &reloads.bad)] {
        lines.one("tidegate_reloads_total", &[("result", result)], count.load(Relaxed));
    }
    lines.family(
        "tidegate_reload_last_rejected",
        Kind::Gauge,
        "1 if the file, as last read, is not in force.",
    );
    lines.one("tidegate_reload_last_rejected", &[], reloads.is_last_bad.load(Relaxed).into());
    lines.family(
        "tidegate_reload_timestamp_seconds",
        Kind::Gauge,
        "When a file last came into force while running; 0 if none has.",
    );
    lines.one("tidegate_reload_timestamp_seconds", &[], reloads.at.load(Relaxed));
}

fn doors(lines: &mut Lines, meter: &Meter) {
    let doors = || Protocol::ALL.iter().map(|protocol| (protocol.name(), meter.door(*protocol)));
    lines.family("tidegate_connections", Kind::Gauge, "Connections that are open.");
    for (protocol, door) in doors() {
        lines.one("tidegate_connections", &[("protocol", protocol)], door.open.load(Relaxed) as u64);
    }
    lines.family("tidegate_connections_total", Kind::Counter, "Connections that were let in.");
    for (protocol, door) in doors() {
        lines.one("tidegate_connections_total", &[("protocol", protocol)], door.came.load(Relaxed));
    }
    lines.family(
        "tidegate_connections_refused_total",
        Kind::Counter,
        "Connections for which there was no room.",
    );
    for (protocol, door) in doors() {
        let labels = [("protocol", protocol)];
        lines.one("tidegate_connections_refused_total", &labels, door.turned_away.load(Relaxed));
    }
    const TOOK: &str = "tidegate_answer_duration_seconds";
    lines.family(
        TOOK,
        Kind::Histogram,
        "From a request to its answer; of resp, from all that arrived together to the answers.",
    );
    for (protocol, door) in doors() {
        lines.histogram(TOOK, &[("protocol", protocol)], &door.answers.seen());
    }
}
