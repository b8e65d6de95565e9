//! The behaviour of each algorithm, computed the slow way.
//!
//! The code under test packs its state into bits and takes fast paths. Here nothing is packed and nothing is
//! fast: a bucket is a number of tokens, a log is a list, and every number is an exact fraction in 128 bits.
//! Both get the same requests; where they differ one of them is wrong, and it is easy to see that it is not
//! this one.
//!
//! A [`Model`] knows how its kind of limit behaves. The operations are the same for all and are written once,
//! in [`Oracle`].

mod bucket;
mod cells;
mod log;
mod nginx;
mod policy;
mod steps;
mod window;

pub(crate) use bucket::Bucket;
pub(crate) use cells::{CellCounts, Oldest};
pub(crate) use log::Log;
pub(crate) use nginx::Zone;
pub(crate) use policy::Policy;
pub(crate) use steps::Steps;
pub(crate) use window::Window;

/// Instants and lengths of time in whole microseconds; signed and wide, so that nothing here can wrap.
pub(crate) type Time = i128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Allowed,
    AllowedAfter(Time),
    RetryAfter(Time),
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    pub(crate) limit: i128,
    pub(crate) remaining: i128,
    pub(crate) reset_after: Time,
    pub(crate) rule: u16,
}

/// How one kind of limit behaves, as its documentation says.
pub(crate) trait Model: Clone {
    /// The largest cost that can pass in one request.
    fn capacity(&self) -> i128;

    /// Corrects a state that cannot be true at `now`, because the clock stepped back. Nothing else changes.
    fn forgive(&mut self, now: Time);

    /// Lets time pass until `now`, which is not before anything in the state.
    fn advance(&mut self, now: Time);

    /// How much would pass, at the instant last advanced to.
    fn left(&self) -> i128;

    /// How long after that instant `cost` passes.
    fn wait(&self, cost: i128) -> Time;

    /// How long after that instant the quota is full again.
    fn until_full(&self) -> Time;

    /// Charges `cost`, whether or not it is available.
    fn spend(&mut self, cost: i128);

    /// How long after that instant the last charge may proceed. Only a queue lets requests wait.
    fn turn(&self) -> Time {
        0
    }

    fn give_back(&mut self, cost: i128);

    /// Whether there is nothing to refund, at the instant last advanced to.
    fn owes_nothing(&self) -> bool;

    /// Refunds at an instant before that of the charges, if the model only waits for that instant. Returns
    /// whether it did.
    fn give_back_early(&mut self, _now: Time, _cost: i128) -> bool {
        false
    }

    fn forget(&mut self);
}

/// The operations of a limit.
pub(crate) trait Oracle {
    fn peek(&self, now: Time, cost: i128) -> Answer;
    fn force(&mut self, now: Time, cost: i128) -> Answer;
    fn refund(&mut self, now: Time, cost: i128);
    fn repair(&mut self, now: Time);
    fn reset(&mut self);

    fn decide(&mut self, now: Time, cost: i128) -> Answer {
        let found = self.peek(now, cost);
        if found.verdict < Verdict::RetryAfter(0) {
            return self.force(now, cost);
        }
        self.repair(now);
        found
    }

    fn take(&mut self, now: Time, most: i128) -> (i128, Answer) {
        let amount = most.min(self.peek(now, 0).remaining);
        (amount, self.decide(now, amount))
    }
}

impl<M: Model> Oracle for M {
    fn peek(&self, now: Time, cost: i128) -> Answer {
        let mut view = seen_at(self, now);
        let verdict = judge(&view, cost);
        if verdict == Verdict::Allowed {
            return charged(&mut view, cost);
        }
        answer(&view, verdict)
    }

    fn force(&mut self, now: Time, cost: i128) -> Answer {
        let mut view = seen_at(self, now);
        let answer = charged(&mut view, cost);
        // A cost of 0 only queries: the state stays as it was, even after a step back.
        if cost > 0 {
            *self = view;
        }
        answer
    }

    /// Nothing changes for a key that owes nothing; a fully refunded key is as if never seen.
    fn refund(&mut self, now: Time, cost: i128) {
        let mut view = seen_at(self, now);
        if cost == 0 || view.owes_nothing() || self.give_back_early(now, cost) {
            return;
        }
        view.give_back(cost);
        if view.owes_nothing() {
            view.forget();
        }
        *self = view;
    }

    fn repair(&mut self, now: Time) {
        self.forgive(now);
    }

    fn reset(&mut self) {
        self.forget();
    }
}

fn seen_at<M: Model>(model: &M, now: Time) -> M {
    let mut view = model.clone();
    view.forgive(now);
    view.advance(now);
    view
}

fn judge<M: Model>(view: &M, cost: i128) -> Verdict {
    if cost == 0 || cost <= view.left() {
        Verdict::Allowed
    } else if cost > view.capacity() {
        Verdict::Never
    } else {
        Verdict::RetryAfter(view.wait(cost))
    }
}

fn charged<M: Model>(view: &mut M, cost: i128) -> Answer {
    view.spend(cost);
    match view.turn() {
        wait if wait > 0 && cost > 0 => answer(view, Verdict::AllowedAfter(wait)),
        _ => answer(view, Verdict::Allowed),
    }
}

fn answer<M: Model>(view: &M, verdict: Verdict) -> Answer {
    Answer {
        verdict,
        limit: view.capacity(),
        remaining: view.left(),
        reset_after: view.until_full(),
        rule: 0,
    }
}

/// The quotient rounded up; `divisor` is positive.
fn ceil_div(number: i128, divisor: i128) -> i128 {
    -(-number).div_euclid(divisor)
}

/// The first instant in `from..=latest` from which on `passes` holds, given that it holds at `latest`.
fn first_instant(from: Time, latest: Time, passes: impl Fn(Time) -> bool) -> Time {
    assert!(passes(latest), "the search starts from an instant at which it passes");
    let (mut early, mut late) = (from, latest);
    while early < late {
        let middle = early + (late - early) / 2;
        if passes(middle) {
            late = middle;
        } else {
            early = middle + 1;
        }
    }
    late
}

/// Like [`first_instant`], where `passes` may hold before `from_anew` and no longer there.
fn first_of_two(from: Time, from_anew: Option<Time>, latest: Time, passes: impl Fn(Time) -> bool) -> Time {
    match from_anew {
        Some(anew) if from < anew && passes(anew - 1) => first_instant(from, anew - 1, passes),
        Some(anew) => first_instant(from.max(anew), latest, passes),
        None => first_instant(from, latest, passes),
    }
}
