//! Cases that take turns, and those of a peer that could not be built.

use bench_harness::rounds::Measured;

/// One case: of whom, under which load, and how to measure one round of it.
pub(crate) struct Case<'a> {
    pub(crate) what: &'static str,
    pub(crate) who: &'static str,
    pub(crate) round: Box<dyn FnMut() -> Round + 'a>,
}

/// What one round has shown.
pub(crate) struct Round {
    pub(crate) figure: f64,
    /// The share of answers that were yes.
    pub(crate) allowed: f64,
}

impl<'a> Case<'a> {
    pub(crate) fn new(what: &'static str, who: &'static str, round: impl FnMut() -> Round + 'a) -> Self {
        Case { what, who, round: Box::new(round) }
    }
}

/// Every case once, then every case again.
pub(crate) fn measure(title: &str, mut cases: Vec<Case<'_>>, rounds: usize) -> Vec<Measured> {
    let mut measured: Vec<_> = cases.iter().map(|case| nothing(case.what, case.who)).collect();
    for round in 1..=rounds {
        eprintln!("{title}: round {round} of {rounds}");
        for (case, measured) in cases.iter_mut().zip(&mut measured) {
            let Round { figure, allowed } = (case.round)();
            measured.rounds.push(figure);
            if allowed < 1.0 {
                let Case { what, who, .. } = case;
                measured.surprise =
                    Some(format!("{what}, {who}: a share of {allowed:.3} was allowed, not all"));
            }
        }
    }
    measured
}

/// A case of a peer that is not there.
pub(crate) fn missing(what: &'static str, who: &'static str, why: &str) -> Measured {
    Measured { surprise: Some(format!("{what}, {who}: not measured here: {why}")), ..nothing(what, who) }
}

fn nothing(what: &'static str, who: &'static str) -> Measured {
    Measured { what, who, rounds: Vec::new(), surprise: None }
}
