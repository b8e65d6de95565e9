//! # Evaluating a request
//!
//! ```text
//!   head ─► skip? ─► keys ─► gate: all enforced rules together ─► shadow rules, one by one ─► pass or refusal
//! ```
//!
//! A gate in memory is called directly: nothing is allocated, and the request is counted before it can be cancelled. An
//! asynchronous gate is called with keys that its future owns. The same call polls that future once, so that a Redis
//! gate completes the check even if the client cancels the request.
//!
//! Shadow rules are checked only if all enforced rules allow the request, because only then would they have been
//! charged. Each shadow rule is checked separately, so that the refusal of one does not hide the outcome of another.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ::http::Extensions;

use super::fast_path::FastPath;
use super::fields::Fields;
use super::head::Head;
use super::key::KeyOutcome;
use super::key_buf::KeyBuf;
use super::limits::{Limits, MAX_RULES, Shared, Waiting};
use super::outcome::{Evaluation, LimitOutcome, Passed, PendingOutcome, QuotaReport};
use super::refusal::{Refusal, RefusalReason};
use super::rule::{HttpRule, count};
use crate::gate::{Admission, Answer, InvalidRequest, Part};
use tidegate_core::{Decision, Outcome, RuleId};

/// The checks of one request: its key and its cost under each rule.
struct RuleChecks {
    keys: KeyBuf,
    list: [RuleCheck; MAX_RULES],
    len: usize,
}

#[derive(Clone, Copy, Default)]
struct RuleCheck {
    cost: u32,
    /// Where its key begins in the buffer; `to` is where it ends.
    from: u16,
    to: u16,
    id: RuleId,
    /// The index of the rule in the limits.
    rule: u8,
    is_shadow: bool,
}

impl Limits {
    /// Checks a request against all rules, and charges them if it passes.
    ///
    /// The request is counted when this returns. For servers without tower:
    ///
    /// ```
    /// use http::Request;
    /// use tidegate::http::{Evaluation, Head, Limits, LimitOutcome, by};
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limits = Limits::single(Limiter::new(Quota::per_hour(1)), by::global())?;
    /// let request = Request::new(());
    /// let head = Head::of(&request);
    /// assert!(matches!(limits.evaluate(&head), Evaluation::Now(LimitOutcome::Pass(_))));
    ///
    /// let Evaluation::Now(LimitOutcome::Refuse(refusal)) = limits.evaluate(&head) else { unreachable!("one per hour") };
    /// let response = limits.refusal_response(&head, &refusal);
    /// assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"3600".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn evaluate(&self, head: &Head<'_>) -> Evaluation {
        match self.try_fast_path(head.extensions) {
            Some(report) => Evaluation::Now(LimitOutcome::Pass(Passed { report, ..Passed::default() })),
            None => self.evaluate_slow(head),
        }
    }

    /// Tries the fast path, which needs only the extensions.
    ///
    /// `Some` means that the request is counted and passes immediately, without permits. It contains what to report to
    /// the client. `None` means that nothing was charged, and the slow path decides.
    fn try_fast_path(&self, extensions: &Extensions) -> Option<QuotaReport> {
        match self.0.fast_path {
            FastPath::InlineKey => self.passes_inline(extensions).then(QuotaReport::default),
            FastPath::WithQuota => self.pass_inline_with_quota(extensions),
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
    /// Reads only the extensions. The caller takes them out of the request, so that the compiler passes the rest of the
    /// request in place instead of copying it.
    #[inline]
    pub(crate) fn passes_inline(&self, extensions: &Extensions) -> bool {
        matches!(&*self.0.rules, [rule] if rule.fast_check.passes(rule.id, extensions))
    }

    /// The fast path [`WithQuota`](FastPath::WithQuota): returns the remaining quota.
    #[inline]
    pub(crate) fn pass_inline_with_quota(&self, extensions: &Extensions) -> Option<QuotaReport> {
        let [rule] = &*self.0.rules else { return None };
        rule.fast_check.pass_with(rule.id, extensions).map(HttpRule::report_remaining).map(QuotaReport::one)
    }

    /// The slow path of [`evaluate`](Limits::evaluate).
    ///
    /// For requests that did not pass on the fast path.
    #[inline(never)]
    pub(crate) fn evaluate_slow(&self, head: &Head<'_>) -> Evaluation {
        if self.0.skip.as_ref().is_some_and(|skip| skip(head)) {
            return Evaluation::Now(LimitOutcome::Pass(Passed::default()));
        }
        if let Some(checked) = self.0.is_single.then(|| self.0.check_single(head)).flatten() {
            return self.finish(checked);
        }
        let mut checks = RuleChecks::new();
        if let Err(refusal) = self.0.write(head, &mut checks) {
            return Evaluation::Now(LimitOutcome::Refuse(refusal));
        }
        let is_immediate = self.0.waiting.is_none() && self.0.gate.is_immediate();
        if let Some(checked) = is_immediate.then(|| self.0.check_immediately(&checks)).flatten() {
            return self.finish(checked);
        }
        let limits = self.clone();
        start(Box::pin(async move { limits.0.check_async(&checks).await }))
    }

    /// Returns the outcome, now or after the wait that it requires.
    fn finish(&self, checked: Checked) -> Evaluation {
        match checked {
            Checked::Now(outcome) => Evaluation::Now(outcome),
            Checked::After(wait, passed) => {
                let limits = self.clone();
                start(Box::pin(async move { limits.0.sleep_then_pass(wait, passed).await }))
            }
        }
    }
}

/// Polls the future once, so that the check starts even if its result is never awaited.
fn start(mut later: Pin<Box<dyn Future<Output = LimitOutcome> + Send>>) -> Evaluation {
    // No task has to be woken: the owner polls the future again before it waits, and registers its own waker.
    match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Evaluation::Now(outcome),
        Poll::Pending => Evaluation::Pending(PendingOutcome(later)),
    }
}

/// The result of checking a request at a gate that answers immediately.
enum Checked {
    Now(LimitOutcome),
    /// The request passes after this wait.
    After(tidegate_core::Wait, Passed),
}

impl Shared {
    /// Calls the gate. Requests the decision of each rule if quotas are reported.
    fn decide<'a>(&'a self, parts: &'a [Part<'a>]) -> Answer<'a> {
        if parts.len() > 1 && self.responses.fields != Fields::None {
            self.gate.decide_each(parts)
        } else {
            self.gate.decide(parts)
        }
    }

    /// Writes the keys of a request. `Err` if a required key is missing.
    #[inline]
    fn write(&self, head: &Head<'_>, checks: &mut RuleChecks) -> Result<(), Box<Refusal>> {
        for (index, rule) in (0..).zip(&self.rules) {
            let from = checks.keys.mark();
            match rule.key.write_key(head, &mut checks.keys) {
                KeyOutcome::Key => {
                    checks.keys.shorten(from);
                    checks.push(RuleCheck {
                        rule: index,
                        id: rule.id,
                        from: offset(from),
                        to: offset(checks.keys.mark()),
                        cost: rule.cost(head),
                        is_shadow: rule.is_shadow,
                    });
                }
                KeyOutcome::Skip => count(&rule.counts.missing),
                KeyOutcome::Refuse => self.missing_key(rule)?,
            }
        }
        Ok(())
    }

    /// Handles a required key that is missing.
    fn missing_key(&self, rule: &HttpRule) -> Result<(), Box<Refusal>> {
        count(&rule.counts.missing);
        if rule.is_shadow {
            count(&rule.counts.would_refuse);
            return Ok(());
        }
        Err(self.refusal(rule, RefusalReason::MissingKey))
    }

    /// Checks the only rule.
    ///
    /// `None` if its key is missing, or the gate did not answer immediately.
    fn check_single(&self, head: &Head<'_>) -> Option<Checked> {
        let rule = self.rules.first()?;
        let mut key = KeyBuf::new();
        let KeyOutcome::Key = rule.key.write_key(head, &mut key) else { return None };
        key.shorten(0);
        let part = [Part::of(rule.id).key(key.bytes()).cost(rule.cost(head))];
        if self.tries_passes(rule, head.extensions) && self.gate.passes(&part) {
            return Some(Checked::Now(LimitOutcome::Pass(Passed::default())));
        }
        let admission = ready(self.gate.decide(&part))?;
        Some(match self.interpret(admission.map(Some)) {
            GateOutcome::Refused(refusal) => Checked::Now(LimitOutcome::Refuse(refusal)),
            GateOutcome::Passed(None, passed) => Checked::Now(LimitOutcome::Pass(passed)),
            GateOutcome::Passed(Some(wait), passed) => Checked::After(wait, passed),
        })
    }

    /// Whether to try `Gate::passes` first, which usually succeeds.
    ///
    /// Only if there is nothing to report to the client, and the fast path has not called it already.
    fn tries_passes(&self, rule: &HttpRule, extensions: &Extensions) -> bool {
        match self.fast_path {
            FastPath::Plain => true,
            FastPath::InlineKey => rule.key.inline_rule_key(extensions).is_none(),
            FastPath::WithQuota | FastPath::None => false,
        }
    }

    /// Calls a gate that answers immediately. `None` if it did not.
    fn check_immediately(&self, checks: &RuleChecks) -> Option<Checked> {
        let answer = match checks.enforced() {
            (_, 0) => Ok(None),
            (parts, enforced) => ready(self.decide(&parts[..enforced]))?.map(Some),
        };
        Some(match self.interpret(answer) {
            GateOutcome::Refused(refusal) => Checked::Now(LimitOutcome::Refuse(refusal)),
            GateOutcome::Passed(wait, mut passed) => {
                for check in checks.shadows() {
                    let part = [checks.part(check)];
                    if let Answer::Ready(answer) = self.gate.decide(&part) {
                        self.count_shadow(check, answer, &mut passed);
                    }
                }
                match wait {
                    None => Checked::Now(LimitOutcome::Pass(passed)),
                    Some(wait) => Checked::After(wait, passed),
                }
            }
        })
    }

    /// Calls an asynchronous gate, or a gate at which requests wait.
    async fn check_async(&self, checks: &RuleChecks) -> LimitOutcome {
        let (parts, enforced) = checks.enforced();
        let answer = match &self.waiting {
            _ if enforced == 0 => Ok(None),
            None => self.decide(&parts[..enforced]).wait().await.map(Some),
            Some(waiting) => match waiting.wait(&parts[..enforced]).await {
                Some(answer) => answer.map(Some),
                None => return LimitOutcome::Refuse(self.queue_full(checks)),
            },
        };
        match self.interpret(answer) {
            GateOutcome::Refused(refusal) => LimitOutcome::Refuse(refusal),
            GateOutcome::Passed(wait, mut passed) => {
                for check in checks.shadows() {
                    let part = [checks.part(check)];
                    let answer = self.gate.decide(&part).wait().await;
                    self.count_shadow(check, answer, &mut passed);
                }
                match wait {
                    None => LimitOutcome::Pass(passed),
                    Some(wait) => self.sleep_then_pass(wait, passed).await,
                }
            }
        }
    }

    async fn sleep_then_pass(&self, wait: tidegate_core::Wait, passed: Passed) -> LimitOutcome {
        if let Some(timer) = &self.timer {
            timer.sleep(wait.duration()).await;
        }
        LimitOutcome::Pass(passed)
    }

    /// Interprets the answer of the gate. `None` if no rule applied.
    fn interpret(&self, answer: Result<Option<Admission>, InvalidRequest>) -> GateOutcome {
        // The rules were validated when the limits were built. If the gate rejects them now, every request is refused.
        let Ok(admission) = answer else {
            return GateOutcome::Refused(self.refusal(&self.rules[0], RefusalReason::QueueFull));
        };
        let Some(Admission { decision, permits, rules }) = admission else {
            return GateOutcome::Passed(None, Passed::default());
        };
        let report = self.quota_report(&decision, &rules);
        let wait = match decision.outcome {
            Outcome::Allowed => None,
            Outcome::AllowedAfter(wait) if self.timer.is_some() => Some(wait),
            Outcome::AllowedAfter(_) | Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => {
                return GateOutcome::Refused(self.refused(decision, report));
            }
        };
        GateOutcome::Passed(wait, Passed { permits, report })
    }

    /// The quotas to report to the client.
    ///
    /// Of each rule if the gate returns them, otherwise of the binding rule.
    fn quota_report(&self, binding: &Decision, each: &[Decision]) -> QuotaReport {
        if self.responses.fields == Fields::None {
            return QuotaReport::default();
        }
        if let [rule] = &*self.rules {
            return QuotaReport::of(rule.report(0, binding).into_iter());
        }
        let decisions = if each.is_empty() { std::slice::from_ref(binding) } else { each };
        QuotaReport::of(decisions.iter().filter_map(|decision| {
            let (number, rule) = (0..).zip(&self.rules).find(|(_, rule)| rule.id == decision.rule)?;
            rule.report(number, decision)
        }))
    }

    fn refused(&self, decision: Decision, report: QuotaReport) -> Box<Refusal> {
        let rule = self.rules.iter().find(|rule| rule.id == decision.rule).unwrap_or(&self.rules[0]);
        count(&rule.counts.refused);
        Box::new(Refusal::new(rule, RefusalReason::Limit(decision), report, &self.responses))
    }

    /// A refusal without a decision of a rule.
    #[cold]
    fn refusal(&self, rule: &HttpRule, reason: RefusalReason) -> Box<Refusal> {
        if reason != RefusalReason::MissingKey {
            count(&rule.counts.refused);
        }
        Box::new(Refusal::new(rule, reason, QuotaReport::default(), &self.responses))
    }

    fn queue_full(&self, checks: &RuleChecks) -> Box<Refusal> {
        let enforced = checks.list[..checks.len].iter().find(|check| !check.is_shadow);
        let first = enforced.map_or(0, |check| check.rule.into());
        self.refusal(&self.rules[first], RefusalReason::QueueFull)
    }

    /// Counts whether a shadow rule would have refused, and keeps its permits.
    fn count_shadow(
        &self,
        check: &RuleCheck,
        answer: Result<Admission, InvalidRequest>,
        passed: &mut Passed,
    ) {
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
fn ready(answer: Answer<'_>) -> Option<Result<Admission, InvalidRequest>> {
    match answer {
        Answer::Ready(answer) => Some(answer),
        Answer::Pending(_) => None,
    }
}

/// The offset in the buffer where a key begins or ends.
#[inline]
fn offset(mark: usize) -> u16 {
    u16::try_from(mark).expect("at most eight keys, and long ones are hashed")
}

/// The outcome of the enforced rules.
enum GateOutcome {
    Passed(Option<tidegate_core::Wait>, Passed),
    Refused(Box<Refusal>),
}

impl Waiting {
    /// Waits for the gate. `None` if the request has to wait and the queue is full.
    async fn wait(&self, parts: &[Part<'_>]) -> Option<Result<Admission, InvalidRequest>> {
        let mut waiting = self.gate.decide_within(parts, self.at_most);
        let mut guard = None;
        poll_fn(|cx| match waiting.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if guard.is_some() => Poll::Pending,
            Poll::Pending => {
                guard = self.enter();
                if guard.is_some() { Poll::Pending } else { Poll::Ready(None) }
            }
        })
        .await
    }
}

impl RuleChecks {
    #[inline]
    fn new() -> Self {
        RuleChecks { keys: KeyBuf::new(), list: [RuleCheck::default(); MAX_RULES], len: 0 }
    }

    fn push(&mut self, check: RuleCheck) {
        if let Some(free) = self.list.get_mut(self.len) {
            *free = check;
            self.len += 1;
        }
    }

    fn part(&self, check: &RuleCheck) -> Part<'_> {
        Part::of(check.id).key(self.keys.between(check.from.into(), check.to.into())).cost(check.cost)
    }

    /// The parts for the rules that can refuse, and how many there are.
    fn enforced(&self) -> ([Part<'_>; MAX_RULES], usize) {
        let mut parts = [Part::of(RuleId(0)); MAX_RULES];
        let mut enforced = 0;
        for check in self.list[..self.len].iter().filter(|check| !check.is_shadow) {
            parts[enforced] = self.part(check);
            enforced += 1;
        }
        (parts, enforced)
    }

    fn shadows(&self) -> impl Iterator<Item = &RuleCheck> {
        self.list[..self.len].iter().filter(|check| check.is_shadow)
    }
}

impl Limits {
    /// Builds the response to a refused request.
    #[must_use]
    pub fn refusal_response(&self, head: &Head<'_>, refusal: &Refusal) -> ::http::Response<Vec<u8>> {
        self.0.responses.refuse(head, refusal, &self.0.rules)
    }

    /// Adds the fields with the remaining quota to a response of the service.
    pub fn add_fields<B>(&self, response: &mut ::http::Response<B>, report: &QuotaReport) {
        if !report.is_none() {
            let status = response.status();
            let headers = response.headers_mut();
            self.0.responses.add_service_fields(status, headers, &self.0.rules, report.as_slice());
        }
    }
}
