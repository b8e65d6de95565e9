//! # Evaluating a request
//!
//! ```text
//!   head ─► skip? ─► keys ─► gate: all enforced rules together ─► shadow rules, one by one ─► pass or refusal
//! ```
//!
//! A gate in memory is called directly: nothing is allocated, and the request is counted before it can be cancelled. A
//! gate that answers later is called with keys that its future owns. That future is polled once in the same call; a
//! Redis gate then completes the check even if the client cancels the request.
//!
//! Shadow rules are checked only if all enforced rules allow the request, because only then would they have been
//! charged. Each is checked on its own, so that none hides what another would have done.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ::http::Extensions;

use super::answer::{Refusal, Why};
use super::fast_path::FastPath;
use super::fields::Fields;
use super::head::Head;
use super::key::Written;
use super::limits::{Limits, MOST_RULES, Shared, Waiting};
use super::outcome::{Decisions, Evaluation, LimitOutcome, Passed, PendingOutcome};
use super::rule::{HttpRule, count};
use super::text::KeyText;
use crate::gate::{Admission, Answer, InvalidRequest, Part};
use tidegate_core::{Decision, Outcome, RuleId};

/// The keys of a request, and its cost under each rule.
struct Question {
    text: KeyText,
    asked: [RuleCheck; MOST_RULES],
    checks: usize,
}

#[derive(Clone, Copy, Default)]
struct RuleCheck {
    cost: u32,
    /// Where its key begins in the text; `to` is where it ends.
    from: u16,
    to: u16,
    id: RuleId,
    /// The index of the rule in the limits.
    rule: u8,
    is_shadow: bool,
}

impl Limits {
    /// Decides whether this request may pass.
    ///
    /// The request is counted when this returns. To serve requests without tower:
    ///
    /// ```
    /// use http::Request;
    /// use tidegate::http::{Evaluation, Head, Limits, LimitOutcome, by};
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limits = Limits::on(Limiter::new(Quota::per_hour(1)), by::global())?;
    /// let request = Request::new(());
    /// let head = Head::of(&request);
    /// assert!(matches!(limits.evaluate(&head), Evaluation::Now(LimitOutcome::Pass(_))));
    ///
    /// let Evaluation::Now(LimitOutcome::Refuse(refusal)) = limits.evaluate(&head) else { unreachable!("one an hour") };
    /// let response = limits.answer(&head, &refusal);
    /// assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"3600".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn evaluate(&self, head: &Head<'_>) -> Evaluation {
        match self.passes_at_once(head.extensions) {
            Some(decisions) => Evaluation::Now(LimitOutcome::Pass(Passed { decisions, ..Passed::default() })),
            None => self.ask_at_length(head),
        }
    }

    /// Tries the fast path, which needs only the extensions.
    ///
    /// `Some` means that the request passes, with nothing to wait for or to hold, and is counted. It has what to report
    /// to the client. `None` means that nothing has happened yet.
    fn passes_at_once(&self, extensions: &Extensions) -> Option<Decisions> {
        match self.0.fast_path {
            FastPath::InlineKey => self.passes_by(extensions).then(Decisions::default),
            FastPath::WithQuota => self.passes_by_with(extensions),
            FastPath::Plain | FastPath::None => None,
        }
    }

    /// The fast path that requests can take.
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn fast_path(&self) -> FastPath {
        self.0.fast_path
    }

    /// The fast path [`InlineKey`](FastPath::InlineKey).
    ///
    /// It sees only the extensions, which are taken out of the request, so that the compiler passes the rest of the
    /// request in place instead of copying it.
    #[inline]
    pub(crate) fn passes_by(&self, extensions: &Extensions) -> bool {
        matches!(&*self.0.rules, [rule] if rule.shortcut.passes(rule.id, extensions))
    }

    /// The fast path [`WithQuota`](FastPath::WithQuota): returns the remaining quota.
    #[inline]
    pub(crate) fn passes_by_with(&self, extensions: &Extensions) -> Option<Decisions> {
        let [rule] = &*self.0.rules else { return None };
        rule.shortcut.pass_with(rule.id, extensions).map(HttpRule::left_of).map(Decisions::one)
    }

    /// The slow path of [`evaluate`](Limits::evaluate).
    ///
    /// For requests that the fast path did not let pass.
    #[inline(never)]
    pub(crate) fn ask_at_length(&self, head: &Head<'_>) -> Evaluation {
        if self.0.skip.as_ref().is_some_and(|skip| skip(head)) {
            return Evaluation::Now(LimitOutcome::Pass(Passed::default()));
        }
        if let Some(verdict) = self.0.is_single.then(|| self.0.rule_on_one(head)).flatten() {
            return self.begin(verdict);
        }
        let mut question = Question::new();
        if let Err(refusal) = self.0.write(head, &mut question) {
            return Evaluation::Now(LimitOutcome::Refuse(refusal));
        }
        let is_immediate = self.0.waiting.is_none() && self.0.gate.is_immediate();
        if let Some(outcome) = is_immediate.then(|| self.0.rule_now(&question)).flatten() {
            return self.begin(outcome);
        }
        let limits = self.clone();
        begun(Box::pin(async move { limits.0.rule_later(&question).await }))
    }

    /// Returns the outcome, or a wait and then the outcome.
    fn begin(&self, outcome: Verdict) -> Evaluation {
        match outcome {
            Verdict::Now(outcome) => Evaluation::Now(outcome),
            Verdict::After(wait, passed) => {
                let limits = self.clone();
                begun(Box::pin(async move { limits.0.after(wait, passed).await }))
            }
        }
    }
}

/// Polls once, so that the check starts even if nothing ever waits for its result.
fn begun(mut later: Pin<Box<dyn Future<Output = LimitOutcome> + Send>>) -> Evaluation {
    // No task has to be woken: the owner of the future polls it first, and leaves its own waker.
    match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Evaluation::Now(outcome),
        Poll::Pending => Evaluation::Pending(PendingOutcome(later)),
    }
}

/// What the answer of a gate means for the request.
enum Verdict {
    Now(LimitOutcome),
    /// The request passes after this wait.
    After(tidegate_core::Wait, Passed),
}

impl Shared {
    /// Calls the gate; asks for the decision of each rule if quotas are reported.
    fn decide<'a>(&'a self, parts: &'a [Part<'a>]) -> Answer<'a> {
        if parts.len() > 1 && self.answers.fields != Fields::None {
            self.gate.decide_each(parts)
        } else {
            self.gate.decide(parts)
        }
    }

    /// Writes the keys of a request. `Err` if it lacks a key that is required.
    #[inline]
    fn write(&self, head: &Head<'_>, question: &mut Question) -> Result<(), Box<Refusal>> {
        for (index, rule) in (0..).zip(&self.rules) {
            let from = question.text.mark();
            match rule.key.write_or(head, &mut question.text) {
                Written::Key => {
                    question.text.shorten(from);
                    question.push(RuleCheck {
                        rule: index,
                        id: rule.id,
                        from: place(from),
                        to: place(question.text.mark()),
                        cost: rule.cost(head),
                        is_shadow: rule.is_shadow,
                    });
                }
                Written::Skip => count(&rule.counts.missing),
                Written::Refuse => self.lacks(rule)?,
            }
        }
        Ok(())
    }

    /// Handles a required key that is missing.
    fn lacks(&self, rule: &HttpRule) -> Result<(), Box<Refusal>> {
        count(&rule.counts.missing);
        if rule.is_shadow {
            count(&rule.counts.would_refuse);
            return Ok(());
        }
        Err(self.refusal(rule, Why::MissingKey))
    }

    /// Checks the only rule.
    ///
    /// `None` if its key is missing, or the gate did not answer immediately.
    fn rule_on_one(&self, head: &Head<'_>) -> Option<Verdict> {
        let rule = self.rules.first()?;
        let mut key = KeyText::new();
        let Written::Key = rule.key.write_or(head, &mut key) else { return None };
        key.shorten(0);
        let part = [Part::of(rule.id).key(key.bytes()).cost(rule.cost(head))];
        if self.is_worth_a_try(rule, head.extensions) && self.gate.passes(&part) {
            return Some(Verdict::Now(LimitOutcome::Pass(Passed::default())));
        }
        let admission = at_once(self.gate.decide(&part))?;
        Some(match self.settle(admission.map(Some)) {
            Settled::Refused(refusal) => Verdict::Now(LimitOutcome::Refuse(refusal)),
            Settled::Passed(None, passed) => Verdict::Now(LimitOutcome::Pass(passed)),
            Settled::Passed(Some(wait), passed) => Verdict::After(wait, passed),
        })
    }

    /// Whether to try `Gate::passes` first, which usually succeeds.
    ///
    /// There must be nothing to report to the client, and the fast path must not have tried the same already.
    fn is_worth_a_try(&self, rule: &HttpRule, extensions: &Extensions) -> bool {
        match self.fast_path {
            FastPath::Plain => true,
            FastPath::InlineKey => rule.key.brief_or(extensions).is_none(),
            FastPath::WithQuota | FastPath::None => false,
        }
    }

    /// Calls a gate that answers immediately. `None` if it did not.
    fn rule_now(&self, question: &Question) -> Option<Verdict> {
        let answer = match question.enforced() {
            (_, 0) => Ok(None),
            (parts, enforced) => at_once(self.decide(&parts[..enforced]))?.map(Some),
        };
        Some(match self.settle(answer) {
            Settled::Refused(refusal) => Verdict::Now(LimitOutcome::Refuse(refusal)),
            Settled::Passed(wait, mut passed) => {
                for check in question.shadows() {
                    let part = [question.part(check)];
                    if let Answer::Ready(answer) = self.gate.decide(&part) {
                        self.look(check, answer, &mut passed);
                    }
                }
                match wait {
                    None => Verdict::Now(LimitOutcome::Pass(passed)),
                    Some(wait) => Verdict::After(wait, passed),
                }
            }
        })
    }

    /// Calls a gate that answers later, or at which requests wait.
    async fn rule_later(&self, question: &Question) -> LimitOutcome {
        let (parts, enforced) = question.enforced();
        let answer = match &self.waiting {
            _ if enforced == 0 => Ok(None),
            None => self.decide(&parts[..enforced]).wait().await.map(Some),
            Some(waiting) => match waiting.wait(&parts[..enforced]).await {
                Some(answer) => answer.map(Some),
                None => return LimitOutcome::Refuse(self.line_is_full(question)),
            },
        };
        match self.settle(answer) {
            Settled::Refused(refusal) => LimitOutcome::Refuse(refusal),
            Settled::Passed(wait, mut passed) => {
                for check in question.shadows() {
                    let part = [question.part(check)];
                    let answer = self.gate.decide(&part).wait().await;
                    self.look(check, answer, &mut passed);
                }
                match wait {
                    None => LimitOutcome::Pass(passed),
                    Some(wait) => self.after(wait, passed).await,
                }
            }
        }
    }

    async fn after(&self, wait: tidegate_core::Wait, passed: Passed) -> LimitOutcome {
        if let Some(timer) = &self.timer {
            timer.sleep(wait.duration()).await;
        }
        LimitOutcome::Pass(passed)
    }

    /// What the answer of the gate means for the request. `None`: no rule applied.
    fn settle(&self, answer: Result<Option<Admission>, InvalidRequest>) -> Settled {
        // The rules were checked when the limits were built. A gate that rejects them now lets no request pass.
        let Ok(admission) = answer else {
            return Settled::Refused(self.refusal(&self.rules[0], Why::LineFull));
        };
        let Some(Admission { decision, permits, rules }) = admission else {
            return Settled::Passed(None, Passed::default());
        };
        let decisions = self.told(&decision, &rules);
        let wait = match decision.outcome {
            Outcome::Allowed => None,
            Outcome::AllowedAfter(wait) if self.timer.is_some() => Some(wait),
            Outcome::AllowedAfter(_) | Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => {
                return Settled::Refused(self.refused(decision, decisions));
            }
        };
        Settled::Passed(wait, Passed { permits, decisions })
    }

    /// The quotas to report to the client.
    ///
    /// Of each rule if the gate knows them, else of the binding one.
    fn told(&self, binding: &Decision, each: &[Decision]) -> Decisions {
        if self.answers.fields == Fields::None {
            return Decisions::default();
        }
        if let [rule] = &*self.rules {
            return Decisions::of(rule.left(0, binding).into_iter());
        }
        let decisions = if each.is_empty() { std::slice::from_ref(binding) } else { each };
        Decisions::of(decisions.iter().filter_map(|decision| {
            let (number, rule) = (0..).zip(&self.rules).find(|(_, rule)| rule.id == decision.rule)?;
            rule.left(number, decision)
        }))
    }

    fn refused(&self, decision: Decision, decisions: Decisions) -> Box<Refusal> {
        let rule = self.rules.iter().find(|rule| rule.id == decision.rule).unwrap_or(&self.rules[0]);
        count(&rule.counts.refused);
        Box::new(Refusal::new(rule, Why::Limit(decision), decisions, &self.answers))
    }

    /// A refusal without a decision of a rule.
    #[cold]
    fn refusal(&self, rule: &HttpRule, why: Why) -> Box<Refusal> {
        if why != Why::MissingKey {
            count(&rule.counts.refused);
        }
        Box::new(Refusal::new(rule, why, Decisions::default(), &self.answers))
    }

    fn line_is_full(&self, question: &Question) -> Box<Refusal> {
        let enforced = question.asked[..question.checks].iter().find(|check| !check.is_shadow);
        let first = enforced.map_or(0, |check| check.rule.into());
        self.refusal(&self.rules[first], Why::LineFull)
    }

    /// Counts what a shadow rule would have done, and keeps its permits.
    fn look(&self, check: &RuleCheck, answer: Result<Admission, InvalidRequest>, passed: &mut Passed) {
        let counts = &self.rules[usize::from(check.rule)].counts;
        match answer {
            Ok(admission) if admission.is_allowed() => {
                count(&counts.would_allow);
                let before = std::mem::take(&mut passed.permits);
                passed.permits = before.and(admission.permits);
            }
            Ok(_) | Err(_) => count(&counts.would_refuse),
        }
    }
}

/// The answer, if it is ready.
#[inline]
fn at_once(answer: Answer<'_>) -> Option<Result<Admission, InvalidRequest>> {
    match answer {
        Answer::Ready(answer) => Some(answer),
        Answer::Pending(_) => None,
    }
}

/// The position where a key begins or ends.
#[inline]
fn place(mark: usize) -> u16 {
    u16::try_from(mark).expect("at most eight keys, and long ones are hashed")
}

/// The answer of a gate for the enforced rules.
enum Settled {
    Passed(Option<tidegate_core::Wait>, Passed),
    Refused(Box<Refusal>),
}

impl Waiting {
    /// Waits for the gate. `None` if the request has to wait and the queue is full.
    async fn wait(&self, parts: &[Part<'_>]) -> Option<Result<Admission, InvalidRequest>> {
        let mut waiting = self.gate.decide_within(parts, self.at_most);
        let mut place = None;
        poll_fn(|cx| match waiting.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if place.is_some() => Poll::Pending,
            Poll::Pending => {
                place = self.enter();
                if place.is_some() { Poll::Pending } else { Poll::Ready(None) }
            }
        })
        .await
    }
}

impl Question {
    #[inline]
    fn new() -> Self {
        Question { text: KeyText::new(), asked: [RuleCheck::default(); MOST_RULES], checks: 0 }
    }

    fn push(&mut self, check: RuleCheck) {
        if let Some(place) = self.asked.get_mut(self.checks) {
            *place = check;
            self.checks += 1;
        }
    }

    fn part(&self, check: &RuleCheck) -> Part<'_> {
        Part::of(check.id).key(self.text.between(check.from.into(), check.to.into())).cost(check.cost)
    }

    /// The parts for the rules that can refuse, and how many there are.
    fn enforced(&self) -> ([Part<'_>; MOST_RULES], usize) {
        let mut parts = [Part::of(RuleId(0)); MOST_RULES];
        let mut enforced = 0;
        for check in self.asked[..self.checks].iter().filter(|check| !check.is_shadow) {
            parts[enforced] = self.part(check);
            enforced += 1;
        }
        (parts, enforced)
    }

    fn shadows(&self) -> impl Iterator<Item = &RuleCheck> {
        self.asked[..self.checks].iter().filter(|check| check.is_shadow)
    }
}

impl Limits {
    /// Returns the response to a refused request.
    #[must_use]
    pub fn answer(&self, head: &Head<'_>, refusal: &Refusal) -> ::http::Response<Vec<u8>> {
        self.0.answers.refuse(head, refusal, &self.0.rules)
    }

    /// Adds the remaining quota to a response of the service.
    pub fn tell<B>(&self, response: &mut ::http::Response<B>, decisions: &Decisions) {
        if !decisions.is_none() {
            let status = response.status();
            let headers = response.headers_mut();
            self.0.answers.tell_with(status, headers, &self.0.rules, decisions.as_slice());
        }
    }
}
