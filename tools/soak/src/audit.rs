//! Takes the records round by round, and runs the checks of every rule and key.
//!
//! | check | decisions | bound |
//! |---|---|---|
//! | A | `strict` and `lease` of all nodes | the contract of the rule, and one burst for each data loss |
//! | B | `local` of one node | the node's share, from empty |
//! | C | all | what A and B allow together |
//!
//! C needs no check of its own: in any interval, the decisions of A are bounded by A, and the local decisions of each
//! node by B, so all of them together are bounded by the sum. What all decisions together take of it is measured and
//! reported.

use std::collections::HashMap;

use crate::check::curve::{CurveCheck, OnLoss};
use crate::check::refusal::{Blackout, RefusalCheck, Refused, merged};
use crate::check::share::{LocalAdmitted, ShareCheck};
use crate::check::window::{Window, WindowCheck};
use crate::check::{Admitted, DataLoss, MILLISECOND, Nanos, SECOND, Worst};
use crate::client::Source;
use crate::faults::{Entry, losses_of};
use crate::latency::Latency;
use crate::load::{Collected, Record};
use crate::rules::{Limit, NODES, RULES, Rule};

/// All checks and their findings.
#[derive(Debug)]
pub(crate) struct Audit {
    /// How far the wall clock is ahead of the soak's.
    wall: Nanos,
    /// Records that were received after the watermark of their round.
    pending: Vec<Record>,
    keys: HashMap<(usize, usize), KeyAudit>,
    successes: [Successes; NODES],
    pub(crate) counts: Vec<RuleCounts>,
    pub(crate) latency: Latencies,
    pub(crate) lost_replies: u64,
    pub(crate) errors: Vec<String>,
    pub(crate) error_count: usize,
}

/// Decisions on one rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleCounts {
    /// By source, in the order of `Source`.
    pub(crate) allowed: [u64; 5],
    pub(crate) refused: [u64; 5],
    pub(crate) longest_wait_micros: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Latencies {
    pub(crate) all: Latency,
    pub(crate) no_fault: Latency,
    /// Of decisions by the store and by leases, without a fault.
    pub(crate) strict: Latency,
    pub(crate) lease: Latency,
    pub(crate) redis_fault: Latency,
    pub(crate) service_fault: Latency,
}

/// The checks of one key of a rule.
#[derive(Debug)]
pub(crate) struct KeyAudit {
    /// Check A.
    pub(crate) store: Contract,
    /// The same with all decisions: what local decisions add to the contract.
    pub(crate) all: Contract,
    /// How much of the burst of a data loss was used.
    of_loss: Option<CurveCheck>,
    /// Check B, by node.
    pub(crate) shares: Vec<ShareCheck>,
    pub(crate) refusals: Option<RefusalCheck>,
    /// When requests were made that may have been charged or not.
    uncertain: Vec<Blackout>,
}

/// The contract of a rule.
#[derive(Debug)]
pub(crate) enum Contract {
    Curve(Box<CurveCheck>),
    Windows(Vec<WindowCheck>),
}

/// The strict replies of one node.
#[derive(Debug, Default)]
struct Successes(Vec<Success>);

#[derive(Clone, Copy, Debug)]
struct Success {
    received: Nanos,
    /// The latest `sent` of this reply and all before it.
    sent: Nanos,
}

/// How long a charge may still be in flight after a fault, and after a reply that the store did not decide.
const AFTERMATH: Nanos = 500 * MILLISECOND;
/// How long two sets of connections may decide requests after a reload.
const RELOADING: Nanos = SECOND;
/// The longest interval that is checked, in periods.
const PERIODS: [i64; 4] = [1, 2, 4, 8];
/// The clock of Redis counts microseconds, and its rate may differ slightly from the clock of the soak.
const PERIOD_SLACK: Nanos = MILLISECOND;
/// Longer than any request takes.
const REMEMBERED: Nanos = 20 * SECOND;
const ERRORS_KEPT: usize = 5;

impl Audit {
    pub(crate) fn new(wall: Nanos) -> Self {
        Audit {
            wall,
            pending: Vec::new(),
            keys: HashMap::new(),
            successes: Default::default(),
            counts: vec![RuleCounts::default(); RULES.len()],
            latency: Latencies::default(),
            lost_replies: 0,
            errors: Vec::new(),
            error_count: 0,
        }
    }

    /// Checks the records, given all faults that began before they were collected.
    pub(crate) fn round(&mut self, collected: Collected, faults: &[Entry]) {
        self.error_count += collected.errors.len();
        let room = ERRORS_KEPT.saturating_sub(self.errors.len());
        self.errors.extend(collected.errors.into_iter().take(room));
        let records = self.pending.drain(..).chain(collected.records);
        let (mut round, pending): (Vec<_>, Vec<_>) =
            records.partition(|record| record.received <= collected.watermark);
        let watermark = pending.iter().map(|record| record.sent).fold(collected.watermark, Nanos::min);
        self.pending = pending;
        round.sort_by_key(|record| record.received);
        self.count(&round, faults);
        self.note_successes(&round, faults, watermark);

        let mut by_key: HashMap<(usize, usize), Vec<Record>> =
            self.keys.keys().map(|key| (*key, Vec::new())).collect();
        for record in round {
            by_key.entry((record.rule, record.key)).or_default().push(record);
        }
        let losses: Vec<_> = (0..RULES.len()).map(|rule| losses_of(rule, faults)).collect();
        let blackouts = merged(faults.iter().map(|fault| blackout(fault.from, fault.to)).collect());
        for ((rule, key), records) in by_key {
            let audit =
                self.keys.entry((rule, key)).or_insert_with(|| KeyAudit::new(&RULES[rule], self.wall));
            audit.round(&records, &self.successes, &losses[rule], &blackouts, watermark);
        }
    }

    /// The checks of each rule, by key.
    pub(crate) fn keys_of(&self, rule: usize) -> impl Iterator<Item = (usize, &KeyAudit)> {
        self.keys.iter().filter(move |((of, _), _)| *of == rule).map(|((_, key), audit)| (*key, audit))
    }

    fn count(&mut self, round: &[Record], faults: &[Entry]) {
        for record in round {
            let Some(reply) = record.reply else {
                self.lost_replies += 1;
                continue;
            };
            let counts = &mut self.counts[record.rule];
            let by_source = if reply.is_allowed { &mut counts.allowed } else { &mut counts.refused };
            by_source[reply.source as usize] += 1;
            counts.longest_wait_micros = counts.longest_wait_micros.max(reply.wait_micros);
            self.latency.add(record, reply.source, faults);
        }
    }

    fn note_successes(&mut self, round: &[Record], faults: &[Entry], watermark: Nanos) {
        for (node, successes) in self.successes.iter_mut().enumerate() {
            let reloads: Vec<_> = faults.iter().filter(|entry| entry.fault.is_reload_of(node)).collect();
            let strict = round.iter().filter(|record| {
                record.node == node && record.reply.is_some_and(|reply| reply.source == Source::Strict)
            });
            for record in strict {
                let mut reloads = reloads.iter();
                let while_reloading = reloads.any(|reload| {
                    reload.from <= record.received && record.sent <= reload.to.saturating_add(RELOADING)
                });
                if !while_reloading {
                    successes.note(record);
                }
            }
            successes.forget_before(watermark);
        }
    }
}

impl Latencies {
    fn add(&mut self, record: &Record, source: Source, faults: &[Entry]) {
        let length = record.received - record.sent;
        self.all.add(length);
        let meets = |entry: &&Entry| entry.from <= record.received && record.sent <= entry.to;
        let recent = faults.iter().rev().take(8).filter(meets);
        let (mut redis, mut service) = (false, false);
        for entry in recent {
            redis |= entry.fault.is_redis();
            service |= !entry.fault.is_redis() && entry.fault.node().is_none_or(|node| node == record.node);
        }
        match (redis, service) {
            (_, true) => self.service_fault.add(length),
            (true, false) => self.redis_fault.add(length),
            (false, false) => {
                self.no_fault.add(length);
                match source {
                    Source::Strict => self.strict.add(length),
                    Source::Lease => self.lease.add(length),
                    Source::Local | Source::Open | Source::Closed => (),
                }
            }
        }
    }
}

impl KeyAudit {
    fn new(rule: &Rule, wall: Nanos) -> Self {
        let refusals = match (rule.limit, rule.lease) {
            (Limit::Bucket { tokens, burst, .. }, None) => Some(RefusalCheck::new(tokens, SECOND, burst, 0)),
            _ => None,
        };
        KeyAudit {
            store: Contract::of(rule, wall),
            all: Contract::of(rule, wall),
            of_loss: rule.limit.curve(wall).map(|curve| CurveCheck::new(curve, OnLoss::Measure)),
            shares: (0..NODES).map(|_| ShareCheck::new(rule.share())).collect(),
            refusals,
            uncertain: Vec::new(),
        }
    }

    /// Returns the largest part of the burst that was used after one data loss.
    pub(crate) fn used_of_loss(&self) -> i64 {
        let used = match (&self.of_loss, &self.store) {
            (Some(check), _) => check.worst().map_or(0, |worst| worst.excess()),
            (None, Contract::Windows(checks)) => checks[0].used_of_loss(),
            (None, Contract::Curve(_)) => 0,
        };
        used.max(0)
    }

    fn round(
        &mut self,
        records: &[Record],
        successes: &[Successes; NODES],
        losses: &[DataLoss],
        blackouts: &[Blackout],
        watermark: Nanos,
    ) {
        let all: Vec<_> = records.iter().filter_map(|record| admitted(record, |_| true)).collect();
        let store: Vec<_> = records.iter().filter_map(|record| admitted(record, is_of_store)).collect();
        self.store.round(&store, losses, watermark);
        self.all.round(&all, losses, watermark);
        if let Some(check) = &mut self.of_loss {
            check.round(&store, losses, watermark);
        }
        for (node, share) in self.shares.iter_mut().enumerate() {
            let of_node = records.iter().filter(|record| record.node == node);
            let local: Vec<_> = of_node
                .filter_map(|record| admitted(record, |source| source == Source::Local))
                .map(|admitted| LocalAdmitted { admitted, since: successes[node].before(admitted.sent) })
                .collect();
            share.round(&local, watermark);
        }
        if let Some(check) = &mut self.refusals {
            let refused: Vec<_> = records.iter().filter_map(strictly_refused).collect();
            self.uncertain.extend(records.iter().filter_map(uncertain));
            self.uncertain.retain(|dark| dark.to > watermark - REMEMBERED);
            let blackouts = merged(blackouts.iter().chain(&self.uncertain).copied().collect());
            check.round(&store, &refused, &blackouts, watermark);
        }
    }
}

impl Contract {
    fn of(rule: &Rule, wall: Nanos) -> Self {
        if let Some(curve) = rule.limit.curve(wall) {
            return Contract::Curve(Box::new(CurveCheck::new(curve, OnLoss::AllowBurst)));
        }
        let (limit, period) = rule.limit.any_period().unwrap_or((0, SECOND));
        let windows = PERIODS.map(|periods| {
            let period = periods * period - PERIOD_SLACK;
            WindowCheck::new(Window { period, most: periods * limit, per_loss: limit })
        });
        Contract::Windows(windows.into())
    }

    fn round(&mut self, admitted: &[Admitted], losses: &[DataLoss], watermark: Nanos) {
        match self {
            Contract::Curve(check) => check.round(admitted, losses, watermark),
            Contract::Windows(checks) => checks.iter_mut().for_each(|check| check.round(admitted, losses)),
        }
    }

    /// The interval that comes closest to the contract, or exceeds it by most.
    pub(crate) fn worst(&self) -> Option<Worst> {
        match self {
            Contract::Curve(check) => check.worst(),
            Contract::Windows(checks) => {
                let mut worst = None;
                let each = checks.iter().filter_map(WindowCheck::worst);
                each.for_each(|other| Worst::keep_larger(&mut worst, other));
                worst
            }
        }
    }
}

impl Successes {
    /// Takes the replies in the order of `received`.
    fn note(&mut self, record: &Record) {
        let before = self.0.last().map_or(Nanos::MIN, |success| success.sent);
        self.0.push(Success { received: record.received, sent: record.sent.max(before) });
    }

    /// The latest `sent` of the replies received by this instant; 0, the start of the soak, if there is none.
    fn before(&self, at: Nanos) -> Nanos {
        let known = self.0.partition_point(|success| success.received <= at);
        known.checked_sub(1).map_or(0, |index| self.0[index].sent)
    }

    /// Drops records that no decision sent at or after the watermark needs.
    fn forget_before(&mut self, watermark: Nanos) {
        let known = self.0.partition_point(|success| success.received <= watermark - REMEMBERED);
        self.0.drain(..known.saturating_sub(1));
    }
}

fn admitted(record: &Record, by: impl Fn(Source) -> bool) -> Option<Admitted> {
    let reply = record.reply.filter(|reply| reply.is_allowed && by(reply.source))?;
    debug_assert!(reply.is_allowed);
    Some(Admitted { sent: record.sent, received: record.received, cost: record.cost })
}

fn is_of_store(source: Source) -> bool {
    matches!(source, Source::Strict | Source::Lease)
}

fn strictly_refused(record: &Record) -> Option<Refused> {
    record.reply.filter(|reply| !reply.is_allowed && reply.source == Source::Strict)?;
    Some(Refused { sent: record.sent, received: record.received, cost: record.cost })
}

fn blackout(from: Nanos, to: Nanos) -> Blackout {
    Blackout { from, to: to.saturating_add(AFTERMATH) }
}

/// A request without a reply of the store may have been charged nevertheless.
fn uncertain(record: &Record) -> Option<Blackout> {
    let is_certain = record.reply.is_some_and(|reply| reply.source == Source::Strict);
    (!is_certain).then(|| blackout(record.sent, record.received))
}
