//! # The report on some files
//!
//! Builds the output and the exit status without printing or exiting, so that tests can inspect both.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::{fs, io};

use super::format;
use super::mistake::Mistake;
use super::pacers::{self, PACERS};
use super::run::{Difference, run};
use super::subject::Kind;
use super::table::table;

/// The results of all files together.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The text to print.
    pub(crate) text: String,
    cases: usize,
    rows: usize,
    differences: usize,
    unreadable: usize,
    /// The numbers of skipped cases, and of skipped rows of other cases, by reason.
    skipped: BTreeMap<&'static str, (usize, usize)>,
}

/// The result of one case.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) differences: Vec<Difference>,
    /// The number of steps that were run; the later ones were skipped.
    pub(crate) steps: usize,
    /// Why they were skipped.
    pub(crate) because: &'static str,
}

/// The exit status of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Equal = 0,
    Different = 1,
    /// A file cannot be read or is malformed; takes precedence over differences.
    Malformed = 2,
}

impl Report {
    /// Reads a file and runs it against each subject.
    pub(crate) fn file(&mut self, path: &str, subjects: &[Kind]) {
        self.content(path, fs::read(path), subjects);
    }

    /// As [`Report::file`], for a file that has been read, or could not be.
    pub(crate) fn content(&mut self, path: &str, content: io::Result<Vec<u8>>, subjects: &[Kind]) {
        self.played(path, content, |case| Played::whole(case, differences(case, subjects)));
    }

    /// As [`Report::content`], with a custom way to run a case.
    pub(crate) fn played(
        &mut self,
        path: &str,
        content: io::Result<Vec<u8>>,
        play: impl FnMut(&format::Case) -> Played,
    ) {
        match content.map(|content| format::parse(&content)) {
            Ok(Ok(cases)) => self.cases(path, &cases, play),
            Ok(Err(mistakes)) => self.mistakes(path, &mistakes),
            Err(error) => {
                self.unreadable += 1;
                self.line(format_args!("{path}: {error}"));
            }
        }
    }

    fn cases(&mut self, path: &str, cases: &[format::Case], mut play: impl FnMut(&format::Case) -> Played) {
        let mut differences = Vec::new();
        for case in cases {
            let played = play(case);
            self.count(case, &played);
            differences.extend(played.differences);
        }
        self.differences += differences.len();
        self.text += &table(path, &differences);
    }

    fn count(&mut self, case: &format::Case, played: &Played) {
        self.cases += usize::from(played.steps > 0);
        self.rows += played.steps;
        let skipped = match case.steps.len() - played.steps {
            0 => return,
            _ if played.steps == 0 => (1, 0),
            rows => (0, rows),
        };
        let (cases, rows) = self.skipped.entry(played.because).or_default();
        (*cases, *rows) = (*cases + skipped.0, *rows + skipped.1);
    }

    fn mistakes(&mut self, path: &str, mistakes: &[Mistake]) {
        self.unreadable += 1;
        for mistake in mistakes {
            self.line(format_args!("{path}:{mistake}"));
        }
    }

    /// Adds the last lines: what was run, the results, and what was skipped.
    pub(crate) fn summary(&mut self) {
        let Report { cases, rows, differences, unreadable, .. } = *self;
        let counted =
            [(cases, "case"), (rows, "row"), (differences, "difference")].map(|(n, noun)| counted(n, noun));
        self.line(format_args!("{}", counted.join(", ")));
        for (because, (cases, rows)) in std::mem::take(&mut self.skipped) {
            for (count, noun) in [(cases, "case"), (rows, "row")].into_iter().filter(|(count, _)| *count > 0)
            {
                self.line(format_args!("{} skipped: {because}", self::counted(count, noun)));
            }
        }
        if unreadable > 0 {
            self.line(format_args!("{} could not be run", self::counted(unreadable, "file")));
        }
    }

    pub(crate) fn status(&self) -> Status {
        match (self.unreadable, self.differences) {
            (0, 0) => Status::Equal,
            (0, _) => Status::Different,
            _ => Status::Malformed,
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "{line}"); // writing to a string cannot fail
    }
}

impl Played {
    /// The result of a case that was run completely.
    pub(crate) fn whole(case: &format::Case, differences: Vec<Difference>) -> Self {
        Played { differences, steps: case.steps.len(), because: "" }
    }
}

/// The differences of one case. Equal differences of several subjects are merged: nearly always all
/// subjects agree.
fn differences(case: &format::Case, subjects: &[Kind]) -> Vec<Difference> {
    let runs = runs(case, subjects);
    let runners = runs.len();
    let mut merged: Vec<(Difference, Vec<&str>)> = Vec::new();
    for (name, differences) in runs {
        for difference in differences {
            match merged.iter_mut().find(|(known, _)| *known == difference) {
                Some((_, names)) => names.push(name),
                None => merged.push((difference, vec![name])),
            }
        }
    }
    merged.sort_by_key(|(difference, _)| difference.line);
    let all = |names: &[&str]| names.len() == runners;
    let subject_names = |names: Vec<&str>| if all(&names) { "all".to_owned() } else { names.join(" + ") };
    merged
        .into_iter()
        .map(|(difference, names)| Difference { subject: subject_names(names), ..difference })
        .collect()
}

/// Runs a case against every subject that can run it.
pub(crate) fn runs(case: &format::Case, subjects: &[Kind]) -> Vec<(&'static str, Vec<Difference>)> {
    if let Some(pacing) = case.pacing {
        let runners = PACERS.iter().filter(|kind| (kind.runs)(case));
        return runners.map(|kind| (kind.name, pacers::run(case, pacing, kind))).collect();
    }
    let runners = subjects.iter().filter(|kind| (kind.runs)(case));
    runners.map(|kind| (kind.name, run(case, kind))).collect()
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
