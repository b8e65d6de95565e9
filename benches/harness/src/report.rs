//! The report: one page of Markdown that says what was measured, how, where, and what came of it.

use std::fmt::Write;

use crate::goal::{Goal, Verdict};
use crate::rounds::Measured;
use crate::stats::Spread;

/// One part of the page: figures of one unit, and the goals they are held to.
#[derive(Debug)]
pub struct Section {
    pub title: &'static str,
    pub text: &'static str,
    pub unit: &'static str,
    pub measured: Vec<Measured>,
    pub goals: Vec<Goal>,
}

/// The versions the figures are of.
const LOCK: &str = include_str!("../../Cargo.lock");

/// The whole page: what was measured and where, how, the ratios, and the figures they come from.
#[must_use]
pub fn page(opening: &str, method: &str, sections: &[Section]) -> String {
    let goals: String = sections.iter().map(Section::ratios).collect();
    let figures: String = sections.iter().map(Section::to_markdown).collect();
    format!("{opening}\n{method}\n{GOALS}{goals}\n{figures}")
}

/// Tells on stderr of every case that did not measure what it was meant to.
pub fn warn_of_surprises(sections: &[Section]) {
    for surprise in surprises(sections) {
        eprintln!("warning: {surprise}");
    }
}

fn surprises(sections: &[Section]) -> impl Iterator<Item = &str> {
    sections.iter().flat_map(|section| &section.measured).filter_map(|one| one.surprise.as_deref())
}

/// The version of a package in the lock file.
#[must_use]
pub fn version(package: &str) -> &'static str {
    let name = format!("name = \"{package}\"\n");
    let found = LOCK.split_once(&name).and_then(|(_, rest)| rest.split('"').nth(1));
    found.unwrap_or("of unknown version")
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
