//! Several limits and one answer: all decide, and any of them is charged only if all allow the request.

use std::cmp::Reverse;

use super::{Answer, Oracle, Time};

pub(crate) struct Policy(pub(crate) Vec<Box<dyn Oracle>>);

impl Policy {
    fn strictest(answers: impl Iterator<Item = Answer>) -> Answer {
        (0..)
            .zip(answers)
            .map(|(rule, answer)| Answer { rule, ..answer })
            .max_by_key(|it| (it.verdict, Reverse(it.remaining), it.reset_after, Reverse(it.rule)))
            .expect("a policy has rules")
    }
}

impl Oracle for Policy {
    fn peek(&self, now: Time, cost: i128) -> Answer {
        Policy::strictest(self.0.iter().map(|rule| rule.peek(now, cost)))
    }

    fn force(&mut self, now: Time, cost: i128) -> Answer {
        Policy::strictest(self.0.iter_mut().map(|rule| rule.force(now, cost)))
    }

    fn refund(&mut self, now: Time, cost: i128) {
        self.0.iter_mut().for_each(|rule| rule.refund(now, cost));
    }

    fn repair(&mut self, now: Time) {
        self.0.iter_mut().for_each(|rule| rule.repair(now));
    }

    fn reset(&mut self) {
        self.0.iter_mut().for_each(|rule| rule.reset());
    }
}
