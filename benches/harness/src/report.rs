//! The report: one page of Markdown that says what was measured, how, where, and what came of it.

use std::fmt::Write;

use crate::goal::{Goal, Verdict};
use crate::plan::Plan;
use crate::rounds::Measured;
use crate::stats::Spread;

/// One part of the page: figures of one unit, and the goals they are held to.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) measured: Vec<Measured>,
    pub(crate) goals: Vec<Goal>,
}

/// The versions the figures are of.
const LOCK: &str = include_str!("../../Cargo.lock");

pub(crate) fn page(plan: &Plan, machine: &str, sections: &[Section]) -> String {
    let goals: String = sections.iter().map(Section::ratios).collect();
    let figures: String = sections.iter().map(Section::to_markdown).collect();
    format!("{}\n{}\n{GOALS}{goals}\n{figures}", opening(machine), method(plan))
}

/// Tells on stderr of every case that did not measure what it was meant to.
pub(crate) fn warn_of_surprises(sections: &[Section]) {
    for surprise in surprises(sections) {
        eprintln!("warning: {surprise}");
    }
}

fn surprises(sections: &[Section]) -> impl Iterator<Item = &str> {
    sections.iter().flat_map(|section| &section.measured).filter_map(|one| one.surprise.as_deref())
}

fn opening(machine: &str) -> String {
    format!(
        "# Benchmarks\n\n\
         Written by `scripts/bench core`; to be run again rather than edited.\n\n\
         Tidegate {}, governor {}, throttlecrab {}, limitador {} (without its default features, which bring \
         in databases). Measured on: {machine}\n",
        version("tidegate"),
        version("governor"),
        version("throttlecrab"),
        version("limitador"),
    )
}

/// The version of a package in the lock file.
fn version(package: &str) -> &'static str {
    let name = format!("name = \"{package}\"\n");
    let found = LOCK.split_once(&name).and_then(|(_, rest)| rest.split('"').nth(1));
    found.unwrap_or("of unknown version")
}

fn method(plan: &Plan) -> String {
    let (direct, keyed) = (&plan.direct, &plan.keyed);
    format!(
        "## How it is measured\n\n\
         * Peers are in their default configuration. So is Tidegate: idle keys leave, and the number of keys \
           is bounded.\n\
         * The same quota for Tidegate and governor. Where all is allowed, no key is idle during the run; a \
           case whose answers are not all as expected is reported.\n\
         * The caller reads the whole answer: outcome, rule and source; where it says *all read*, remaining \
           and reset too. Of governor the whole result is read.\n\
         * The floor is printed beside: the loop around each case, a clock, one word, a flat table.\n\
         * Threads are pinned. Rounds take turns: every case once, then every case again; {} rounds of {} ms \
           each without keys, {} of {} ms with keys, each after running untimed for {} and {} ms.\n\
         * A figure is the median of the rounds (the lowest – the highest). A ratio is ours ÷ peer within \
           each round, and then the median of these ratios, because machines are shared and noisy.\n\
         * One profile for everybody: cargo's `release` with `lto = \"fat\"` and `codegen-units = 1`.\n",
        direct.rounds,
        direct.slice.as_millis(),
        keyed.rounds,
        keyed.slice.as_millis(),
        direct.warm_up.as_millis(),
        keyed.warm_up.as_millis(),
    )
}

const GOALS: &str = "## Ratios\n\nOurs ÷ peer: less is better, 1 is as much.\n\n\
                     | case | ours | peer | ratio (lowest – highest) | required | aim | met |\n\
                     |---|---|---|---|---|---|---|\n";

// === impl Section ===

impl Section {
    fn to_markdown(&self) -> String {
        format!("## {}\n\n{}\n\n{}\n{}", self.title, self.text, self.figures(), self.warnings())
    }

    /// A row for each limiter, a column for each load.
    fn figures(&self) -> String {
        let columns = distinct(self.measured.iter().map(|one| one.what));
        let rows = distinct(self.measured.iter().map(|one| one.who));
        let mut table =
            format!("| {} | {} |\n|---|{}\n", self.unit, columns.join(" | "), "---|".repeat(columns.len()));
        for who in rows {
            let cells: Vec<String> = columns.iter().map(|what| self.figure(what, who)).collect();
            let _ = writeln!(table, "| {who} | {} |", cells.join(" | "));
        }
        table
    }

    fn figure(&self, what: &str, who: &str) -> String {
        let found = self.measured.iter().find(|one| one.what == what && one.who == who);
        match found {
            Some(one) if !one.rounds.is_empty() => spread(one.spread()),
            _ => "–".to_owned(),
        }
    }

    fn ratios(&self) -> String {
        self.goals.iter().map(|goal| self.ratio(goal)).collect()
    }

    fn ratio(&self, goal: &Goal) -> String {
        let (ratio, met) = match goal.ratio(&self.measured) {
            Some(ratio) => (spread_of_ratios(ratio), met(goal.verdict(ratio.median))),
            None => ("–".to_owned(), "not measured"),
        };
        let Goal { ours, peer, required, aim } = goal;
        let case = format!("{}: {}", self.title, ours.what);
        format!("| {case} | {} | {} | {ratio} | {required} | {aim} | {met} |\n", ours.who, peer.who)
    }

    fn warnings(&self) -> String {
        surprises(std::slice::from_ref(self)).map(|surprise| format!("**Warning:** {surprise}\n\n")).collect()
    }
}

fn met(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Aim => "yes, and the aim",
        Verdict::Required => "yes",
        Verdict::Missed => "**no**",
    }
}

fn spread(spread: Spread) -> String {
    format!("{} ({} – {})", short(spread.median), short(spread.lowest), short(spread.highest))
}

/// Three figures are all that is ever meant.
fn short(figure: f64) -> String {
    if figure < 100.0 { format!("{figure:.1}") } else { format!("{figure:.0}") }
}

fn spread_of_ratios(spread: Spread) -> String {
    let Spread { median, lowest, highest } = spread;
    let places = if median < 0.1 { 4 } else { 2 };
    format!("{median:.places$} ({lowest:.places$} – {highest:.places$})")
}

/// In the order of their first appearance.
fn distinct(names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::{distinct, version};

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(version("governor").starts_with("0.10."));
        assert_eq!(version("nobody"), "of unknown version");
    }

    #[test]
    fn names_keep_the_order_they_came_in() {
        assert_eq!(distinct(["b", "a", "b"].into_iter()), ["b", "a"]);
    }
}
