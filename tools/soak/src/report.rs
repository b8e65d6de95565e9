//! Prints progress, findings as they are made, and the summary.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::audit::{Audit, KeyAudit};
use crate::check::refusal::Refused;
use crate::check::{Nanos, SECOND, Worst};
use crate::client::SOURCES;
use crate::faults::Entry;
use crate::latency::Latency;
use crate::rules::{RULES, WALL_SLACK};

/// An over-admission: tokens that no allowance covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finding {
    pub(crate) rule: usize,
    pub(crate) key: usize,
    /// The node whose share was exceeded, or all nodes together.
    pub(crate) node: Option<usize>,
    pub(crate) worst: Worst,
}

/// The over-admissions of a run.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The largest excess so far of each rule, key and node.
    known: BTreeMap<(usize, usize, Option<usize>), Finding>,
    printed: usize,
}

/// The maximum number of findings that are printed; more are only counted.
const PRINTED: usize = 40;
/// Faults that ended at most this long before a finding are printed with it.
const RELATED: Nanos = 6 * SECOND;

impl Findings {
    /// Looks for over-admissions that are new or have grown, and prints them.
    pub(crate) fn update(&mut self, audit: &Audit, faults: &[Entry]) {
        for rule in 0..RULES.len() {
            for (key, checks) in audit.keys_of(rule) {
                for (node, worst) in excesses(checks) {
                    self.note(Finding { rule, key, node, worst }, faults);
                }
            }
        }
    }

    fn note(&mut self, finding: Finding, faults: &[Entry]) {
        let known = self.known.get(&(finding.rule, finding.key, finding.node));
        if known.is_some_and(|known| known.worst.excess() >= finding.worst.excess()) {
            return;
        }
        self.known.insert((finding.rule, finding.key, finding.node), finding);
        self.printed += 1;
        if self.printed <= PRINTED {
            println!("OVER-ADMISSION  {}{}", finding.describe(), related(finding.worst, faults));
        }
    }

    /// Tokens admitted beyond every allowance.
    pub(crate) fn total(&self) -> i64 {
        self.known.values().map(|finding| finding.worst.excess()).sum()
    }

    pub(crate) fn worst(&self) -> Option<&Finding> {
        self.known.values().max_by_key(|finding| finding.worst.excess())
    }
}

impl Finding {
    fn describe(&self) -> String {
        let Worst { from, to, admitted, bound } = self.worst;
        let by = self.node.map_or("by the store".into(), |node| format!("by service {node} on its own"));
        format!(
            "rule \"{}\" ({}) key-{} {by}: {admitted} admitted from {} to {}, bound {bound}",
            RULES[self.rule].name,
            RULES[self.rule].limit.quota(),
            self.key,
            seconds(from),
            seconds(to),
        )
    }
}

fn excesses(checks: &KeyAudit) -> impl Iterator<Item = (Option<usize>, Worst)> {
    let store = checks.store.worst().map(|worst| (None, worst));
    let shares = checks.shares.iter().enumerate();
    let shares = shares.filter_map(|(node, share)| Some((Some(node), share.worst()?)));
    store.into_iter().chain(shares).filter(|(_, worst)| worst.excess() > 0)
}

fn related(worst: Worst, faults: &[Entry]) -> String {
    let near = faults.iter().filter(|entry| entry.from <= worst.to && entry.to >= worst.to - RELATED);
    let mut text = String::new();
    for entry in near {
        let end = if entry.to == Nanos::MAX { "now".into() } else { seconds(entry.to) };
        let _ = write!(text, "\n                  {} to {end}: {}", seconds(entry.from), entry.fault);
    }
    text
}

/// Prints a line of progress.
pub(crate) fn progress(now: Nanos, audit: &Audit, faults: &[Entry], findings: &Findings) {
    let last = faults.last().map_or("none".into(), |entry| entry.fault.to_string());
    println!(
        "{:>8}  {} decisions, {} faults (last: {last}), {} over-admissions",
        seconds(now),
        decisions(audit),
        faults.len(),
        findings.total(),
    );
}

/// Returns the number of decisions that were checked.
fn decisions(audit: &Audit) -> u64 {
    audit.counts.iter().map(|counts| counts.allowed.iter().chain(&counts.refused).sum::<u64>()).sum()
}

/// Prints the tables at the end, and the last line.
pub(crate) fn summary(ran: Nanos, drift: Nanos, audit: &Audit, faults: &[Entry], findings: &Findings) {
    println!();
    sources(audit);
    println!();
    rules(audit);
    println!();
    fault_table(faults);
    println!();
    latencies(audit);
    println!();
    notes(drift, audit, findings);
    let (judged, needless) = refusals(audit);
    println!(
        "soak: {} decisions, {} faults, {} over-admissions, {needless} needless refusals of {judged}, {} errors, {:.1} minutes",
        decisions(audit),
        faults.len(),
        findings.total(),
        audit.error_count,
        Duration::from_nanos(ran.unsigned_abs()).as_secs_f64() / 60.0,
    );
}

fn sources(audit: &Audit) {
    println!("{:<10} {:>10} {:>10}", "source", "admitted", "refused");
    for (index, (name, _)) in SOURCES.iter().enumerate() {
        let sum = |of: fn(&crate::audit::RuleCounts) -> &[u64; 5]| -> u64 {
            audit.counts.iter().map(|counts| of(counts)[index]).sum()
        };
        println!("{name:<10} {:>10} {:>10}", sum(|counts| &counts.allowed), sum(|counts| &counts.refused));
    }
}

fn rules(audit: &Audit) {
    println!(
        "{:<14} {:<32} {:>8} {:>8} {:>7} {:>8}  {:>5}  {:>9}  {:>13}  {:>7}  {:>9}",
        "rule",
        "quota",
        "strict",
        "lease",
        "local",
        "refused",
        "over",
        "data loss",
        "local share",
        "beyond",
        "wait told"
    );
    for (rule, counts) in RULES.iter().enumerate().map(|(index, rule)| ((index, rule), &audit.counts[index]))
    {
        let (index, rule) = rule;
        let keys: Vec<&KeyAudit> = audit.keys_of(index).map(|(_, checks)| checks).collect();
        let over: i64 =
            keys.iter().flat_map(|checks| excesses(checks)).map(|(_, worst)| worst.excess()).sum();
        let of_loss = keys.iter().map(|checks| checks.used_of_loss()).max().unwrap_or(0);
        let shares =
            keys.iter().flat_map(|checks| checks.shares.iter().filter_map(|share| share.most_used()));
        let share = shares.max_by_key(|worst| worst.admitted);
        let share = share.map_or("-".into(), |worst| format!("{} of {}", worst.admitted, worst.bound));
        let beyond = keys.iter().filter_map(|checks| checks.all.worst()).map(|worst| worst.excess()).max();
        let [strict, lease, local, ..] = counts.allowed;
        println!(
            "{:<14} {:<32} {strict:>8} {lease:>8} {local:>7} {:>8}  {over:>5}  {:>9}  {share:>13}  {:>7}  {:>9}",
            rule.name,
            rule.limit.quota(),
            counts.refused.iter().sum::<u64>(),
            format!("{of_loss} of {}", rule.burst()),
            beyond.unwrap_or(0).max(0),
            format!("{:.2} s", Duration::from_micros(counts.longest_wait_micros).as_secs_f64()),
        );
    }
    println!("  over: tokens beyond every allowance; data loss: the most used of one burst after one loss;");
    println!("  local share: the most that one service admitted in one outage, of what its share supplied;");
    println!(
        "  beyond: the most that all decisions, local ones too, exceed the contract and the allowance for data loss;"
    );
    println!("  wait told: the longest wait in a reply");
}

fn fault_table(faults: &[Entry]) {
    let mut kinds: BTreeMap<&str, (usize, Nanos)> = BTreeMap::new();
    for entry in faults {
        let (count, time) = kinds.entry(entry.fault.kind()).or_default();
        *count += 1;
        *time += entry.to.saturating_sub(entry.from);
    }
    println!("{:<36} {:>5} {:>9}", "fault", "times", "in all");
    for (kind, (count, time)) in kinds {
        println!("{kind:<36} {count:>5} {:>9}", seconds(time));
    }
}

fn latencies(audit: &Audit) {
    println!("{:<24} {:>10} {:>10} {:>10} {:>10}", "latency", "decisions", "p50", "p99", "worst");
    let row = |name: &str, latency: &Latency| {
        let ms = |length: Duration| format!("{:.1} ms", length.as_secs_f64() * 1_000.0);
        println!(
            "{name:<24} {:>10} {:>10} {:>10} {:>10}",
            latency.count(),
            ms(latency.percentile(50)),
            ms(latency.percentile(99)),
            ms(latency.worst())
        );
    };
    row("all", &audit.latency.all);
    row("no fault", &audit.latency.no_fault);
    row("no fault, strict", &audit.latency.strict);
    row("no fault, lease", &audit.latency.lease);
    row("Redis fault", &audit.latency.redis_fault);
    row("fault of the service", &audit.latency.service_fault);
}

fn notes(drift: Nanos, audit: &Audit, findings: &Findings) {
    match findings.worst() {
        Some(worst) => println!("worst: {}", worst.describe()),
        None => println!("worst: none; {}", closest(audit)),
    }
    if let Some((rule, key, refused, left)) = worst_refusal(audit) {
        println!(
            "needless: rule \"{}\" key-{key} refused cost {} at {} with {left} tokens left",
            RULES[rule].name,
            refused.cost,
            seconds(refused.sent),
        );
    }
    println!("replies lost with their connection: {}", audit.lost_replies);
    println!("wall clock against monotonic clock: at most {:.3} ms apart", drift as f64 / 1e6);
    if drift > WALL_SLACK {
        println!(
            "the wall clock was adjusted during the run: repeat it, for its findings may be due to that"
        );
    }
    audit.errors.iter().for_each(|error| println!("error reply: {error}"));
}

/// How close the decisions of the store came to their bound.
fn closest(audit: &Audit) -> String {
    let all =
        (0..RULES.len()).flat_map(|rule| audit.keys_of(rule).map(move |(key, checks)| (rule, key, checks)));
    let worst = all.filter_map(|(rule, key, checks)| Some((rule, key, checks.store.worst()?)));
    match worst.max_by_key(|(_, _, worst)| worst.excess()) {
        Some((rule, key, worst)) => {
            let finding = Finding { rule, key, node: None, worst };
            format!("closest: {}", finding.describe())
        }
        None => "nothing was admitted".into(),
    }
}

fn worst_refusal(audit: &Audit) -> Option<(usize, usize, Refused, i64)> {
    let all =
        (0..RULES.len()).flat_map(|rule| audit.keys_of(rule).map(move |(key, checks)| (rule, key, checks)));
    let needless = all.filter_map(|(rule, key, checks)| {
        let (refused, left) = checks.refusals.as_ref()?.worst?;
        Some((rule, key, refused, left))
    });
    needless.max_by_key(|(_, _, _, left)| *left)
}

/// The number of refusals that were judged, and of needless ones.
fn refusals(audit: &Audit) -> (u64, u64) {
    let all = (0..RULES.len()).flat_map(|rule| audit.keys_of(rule));
    let checks = all.filter_map(|(_, checks)| checks.refusals.as_ref());
    checks.fold((0, 0), |(judged, needless), check| (judged + check.judged, needless + check.needless))
}

fn seconds(at: Nanos) -> String {
    format!("{:.3} s", at as f64 / 1e9)
}
