//! Goals: how many times the peer's figure ours may be. They are kept beside the cases they judge.

use crate::rounds::Measured;
use crate::stats::Spread;

/// Ours ÷ peer, and what it may be at most.
#[derive(Debug)]
pub struct Goal {
    pub ours: Subject,
    pub peer: Subject,
    pub required: f64,
    pub aim: f64,
}

/// One figure: of whom, under which load.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    pub what: &'static str,
    pub who: &'static str,
}

/// How a goal came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Aim,
    Required,
    Missed,
}

// === impl Goal ===

impl Goal {
    /// Two limiters under the same load.
    pub const fn same(
        what: &'static str,
        ours: &'static str,
        peer: &'static str,
        required: f64,
        aim: f64,
    ) -> Self {
        Goal { ours: Subject { what, who: ours }, peer: Subject { what, who: peer }, required, aim }
    }

    /// The same goal, but the peer is held to another load.
    pub const fn against(self, what: &'static str) -> Self {
        Goal { peer: Subject { what, ..self.peer }, ..self }
    }

    /// The median of the ratios within the rounds; `None` if one of the two was not measured.
    pub fn ratio(&self, measured: &[Measured]) -> Option<Spread> {
        let (ours, peer) = (self.ours.find(measured)?, self.peer.find(measured)?);
        let both = !ours.rounds.is_empty() && !peer.rounds.is_empty();
        both.then(|| Spread::of_ratios(&ours.rounds, &peer.rounds))
    }

    pub fn verdict(&self, ratio: f64) -> Verdict {
        if ratio <= self.aim {
            Verdict::Aim
        } else if ratio <= self.required {
            Verdict::Required
        } else {
            Verdict::Missed
        }
    }
}

// === impl Subject ===

impl Subject {
    fn find(self, measured: &[Measured]) -> Option<&Measured> {
        measured.iter().find(|one| one.what == self.what && one.who == self.who)
    }
}

#[cfg(test)]
mod tests {
    use super::{Goal, Verdict};
    use crate::rounds::Measured;

    const GOAL: Goal = Goal::same("load", "ours", "peer", 0.5, 0.35);

    fn measured(who: &'static str, rounds: &[f64]) -> Measured {
        Measured { what: "load", who, rounds: rounds.to_vec(), surprise: None }
    }

    #[test]
    fn a_goal_is_met_up_to_its_very_figure() {
        assert_eq!(GOAL.verdict(0.35), Verdict::Aim);
        assert_eq!(GOAL.verdict(0.5), Verdict::Required);
        assert_eq!(GOAL.verdict(0.51), Verdict::Missed);
    }

    #[test]
    fn without_both_figures_there_is_no_ratio() {
        assert!(GOAL.ratio(&[measured("ours", &[1.0])]).is_none());
        assert!(GOAL.ratio(&[measured("ours", &[1.0]), measured("peer", &[])]).is_none());
        assert!(GOAL.ratio(&[measured("ours", &[1.0]), measured("peer", &[4.0])]).is_some());
    }
}
