//! # Limits on requests
//!
//! A gate, the rules of it that a request must pass, and the response to requests that do not. [`Limits`] are built
//! once and shared by all layers in front of services or clients: see `tidegate::tower`. Clones are handles on the same
//! limits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::http::{Response, StatusCode};

use super::answer::{Answers, Refusal};
use super::fast_path::{Direct, FastPath};
use super::fields::{Fields, Unit, is_name};
use super::head::Head;
use super::invalid::InvalidLimits;
use super::key::RuleKey;
use super::retry::Jitter;
use super::rule::{Expose, HttpRule, RuleStats};
use super::timer::Timer;
use crate::gate::{Gate, WaitingGate};
use crate::wait::Sleep;
use tidegate_core::{Micros, Quota, Wait};

/// The maximum number of rules in front of one service.
pub(super) const MOST_RULES: usize = 8;
const MAX_WAITING: usize = 1_024;

/// The rules that requests must pass, all or nothing, and the response to refusals.
///
/// ```
/// use tidegate::http::{Fields, KeyPart, Limits, by};
/// use tidegate::{Policy, Quota};
///
/// const USER: Quota = Quota::per_minute(100);
///
/// let policy = Policy::builder()
///     .rule("everybody", Quota::per_second(5_000))
///     .rule("user", USER)
///     .build()?;
/// let limits = Limits::over(policy)
///     .rule("everybody", by::global())
///     .rule("user", by::header("x-api-key").secret().or_refuse()).quota(USER)
///     .fields(Fields::Draft11)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A key that may be missing needs a fallback. Without one this does not compile:
///
/// ```compile_fail
/// use tidegate::http::{Limits, by};
/// use tidegate::{Limiter, Quota};
/// let limits = Limits::over(Limiter::new(Quota::per_second(1))).rule("user", by::header("x-user")).build();
/// ```
#[derive(Clone)]
pub struct Limits(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) gate: Box<dyn Gate>,
    pub(super) waiting: Option<Waiting>,
    pub(super) timer: Option<Arc<dyn Timer>>,
    pub(super) rules: Box<[HttpRule]>,
    pub(super) skip: Option<Skip>,
    pub(super) answers: Answers,
    /// Whether there is a single rule, and it is enforced and decides immediately.
    pub(super) is_single: bool,
    pub(super) fast_path: FastPath,
}

pub(super) type Skip = Box<dyn Fn(&Head<'_>) -> bool + Send + Sync>;

/// The gate at which requests wait, and how many wait.
pub(super) struct Waiting {
    pub(super) gate: Arc<dyn WaitingGate>,
    pub(super) at_most: Duration,
    max_waiting: usize,
    count: AtomicUsize,
}

/// Counts one waiting request until it is dropped.
pub(super) struct Place<'a>(&'a AtomicUsize);

/// Builds [`Limits`]: see [`Limits::over`].
///
/// Settings of a rule, such as [`cost`](LimitsBuilder::cost), apply to the last [`rule`](LimitsBuilder::rule) before
/// them.
#[must_use = "a builder does nothing until `build`"]
pub struct LimitsBuilder<G> {
    gate: Arc<G>,
    rules: Vec<HttpRule>,
    waiting: Option<(Arc<dyn WaitingGate>, Duration)>,
    max_waiting: usize,
    timer: Option<Arc<dyn Timer>>,
    skip: Option<Skip>,
    answers: Answers,
    /// The name of a rule setting that was given before the first rule.
    too_early: Option<&'static str>,
}

impl Limits {
    /// Starts to build limits by the rules of this gate, with no rules yet.
    pub fn over<G: Gate + 'static>(gate: G) -> LimitsBuilder<G> {
        LimitsBuilder {
            gate: Arc::new(gate),
            rules: Vec::new(),
            waiting: None,
            max_waiting: MAX_WAITING,
            timer: <dyn Timer>::usual(),
            skip: None,
            answers: Answers::default(),
            too_early: None,
        }
    }

    /// Limits by a gate with a single rule, with this key and default settings.
    ///
    /// Clients know the rule as `default`. If the gate names its rules, the rule must have that name, too.
    ///
    /// ```
    /// use tidegate::http::{KeyPart, Limits, by};
    /// use tidegate::{KeyedLimiter, Quota};
    /// let limiter = KeyedLimiter::<str>::new(Quota::per_second(10).burst(20));
    /// let limits = Limits::on(limiter, by::header("x-api-key").secret().or_refuse())?;
    /// # Ok::<(), tidegate::http::InvalidLimits>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LimitsBuilder::build`].
    pub fn on<G: Gate + 'static>(gate: G, key: impl RuleKey) -> Result<Self, InvalidLimits> {
        Limits::over(gate).rule("default", key).build()
    }

    /// The counters of each rule.
    #[must_use]
    pub fn stats(&self) -> Vec<RuleStats> {
        self.0.rules.iter().map(HttpRule::stats).collect()
    }

    /// The clock that requests wait on.
    #[cfg(feature = "tower")]
    pub(crate) fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.0.timer.clone()
    }

    /// How many requests are waiting now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting.as_ref().map_or(0, |waiting| waiting.count.load(Ordering::Relaxed))
    }
}

impl<G: Gate + 'static> LimitsBuilder<G> {
    /// Adds a rule of the gate that requests must pass, with this key.
    ///
    /// Clients know the rule by the same name.
    pub fn rule(mut self, name: &str, key: impl RuleKey) -> Self {
        let key = Arc::new(key);
        let shortcut = Direct { gate: self.gate.clone(), key: key.clone() };
        self.rules.push(HttpRule::new(name, key, Box::new(shortcut)));
        self
    }

    /// Sets the cost of a request under the rule; 1 by default.
    pub fn cost(self, cost: impl Fn(&Head<'_>) -> u32 + Send + Sync + 'static) -> Self {
        self.with_rule("cost", |rule| rule.cost = Some(Arc::new(cost)))
    }

    /// Makes the rule a shadow: it never refuses.
    ///
    /// What it would have done is counted in [`Limits::stats`].
    pub fn shadow(self) -> Self {
        self.with_rule("shadow", |rule| rule.is_shadow = true)
    }

    /// Sets how much of the rule is reported to clients; everything by default.
    pub fn expose(self, expose: Expose) -> Self {
        self.with_rule("expose", |rule| rule.expose = expose)
    }

    /// Sets the quota that is reported to clients: the limit and its period.
    ///
    /// Without it the report has the most that can pass at the same instant.
    pub fn quota(self, quota: Quota) -> Self {
        self.with_rule("quota", |rule| rule.quota = Some(quota))
    }

    /// Sets what the rule counts, as reported to clients; requests by default.
    pub fn unit(self, unit: Unit) -> Self {
        self.with_rule("unit", |rule| rule.unit = unit)
    }

    /// Sets the status of the rule's refusals.
    ///
    /// The default is 429, and 503 if too many requests of all clients are in progress.
    pub fn status(self, status: StatusCode) -> Self {
        self.with_rule("status", |rule| rule.status = Some(status))
    }

    /// Does not limit requests for which this is true: health checks, for instance.
    pub fn skip_if(self, skip: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        LimitsBuilder { skip: Some(Box::new(skip)), ..self }
    }

    /// Makes requests that may not pass now wait, for at most this long.
    ///
    /// A request is refused immediately if that cannot suffice.
    pub fn wait_at_most(self, at_most: Duration) -> Self
    where
        G: WaitingGate,
    {
        LimitsBuilder { waiting: Some((self.gate.clone(), at_most)), ..self }
    }

    /// Sets how many requests may wait at the same time; 1,024 by default.
    ///
    /// Any further request that would have to wait is refused.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        LimitsBuilder { max_waiting, ..self }
    }

    /// Sets the clock for requests that a rule allows only after a wait.
    ///
    /// With the feature `tokio` the default is the steady clock. Without a clock such requests are refused.
    pub fn timer<C>(self, clock: C) -> Self
    where
        C: Sleep + Send + Sync + 'static,
        C::Sleeping: 'static,
    {
        LimitsBuilder { timer: Some(Arc::new(clock)), ..self }
    }

    /// Sets the fields that tell clients their remaining quota, with every response.
    ///
    /// The default is no fields. The fields report each rule that is [exposed](Expose) and that the request had to
    /// pass, in the order of the rules. If requests may [wait](LimitsBuilder::wait_at_most), or the gate only knows the
    /// binding rule, they report only the binding rule.
    pub fn fields(mut self, fields: Fields) -> Self {
        self.answers.fields = fields;
        self
    }

    /// Lets scripts in browsers read these fields, by `Access-Control-Expose-Headers`.
    pub fn readable_in_browsers(mut self) -> Self {
        self.answers.in_browsers = true;
        self
    }

    /// Delays retries of refused requests by up to this many percent, to spread them.
    pub fn jitter(mut self, percent: u8) -> Self {
        self.answers.jitter = Jitter::new(percent);
        self
    }

    /// Sets the retry time if too many requests are in progress, or wait already.
    ///
    /// It is unknown when a permit will be free. The default is a second; about as long as requests take is a good
    /// choice.
    pub fn retry_when_busy_after(mut self, wait: Duration) -> Self {
        self.answers.when_busy = Wait::micros(Micros::from(wait).get());
        self
    }

    /// Sets the page for browsers: requests that ask for HTML are refused with it.
    pub fn page(mut self, html: impl Into<String>) -> Self {
        self.answers.page = Some(html.into());
        self
    }

    /// Replaces the whole response to a refused request.
    pub fn answer(
        mut self,
        answer: impl Fn(&Head<'_>, &Refusal) -> Response<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        self.answers.replaced = Some(Box::new(answer));
        self
    }

    /// Builds the limits.
    ///
    /// # Errors
    ///
    /// [`InvalidLimits`], if there are no rules or too many, the gate lacks a rule, a rule is added twice, a key or a
    /// name is invalid, or a setting of a rule comes before the first rule.
    pub fn build(self) -> Result<Limits, InvalidLimits> {
        let rules = self.checked()?;
        let LimitsBuilder { gate, waiting, max_waiting, timer, skip, answers, .. } = self;
        let is_single =
            matches!(&*self.rules, [rule] if !rule.is_shadow) && waiting.is_none() && gate.is_immediate();
        let fast_path = match &*self.rules {
            [rule] if is_single && skip.is_none() => rule.fast_path(answers.fields),
            _ => FastPath::None,
        };
        let mut shared = Shared {
            is_single,
            fast_path,
            waiting: waiting.map(|(gate, at_most)| Waiting {
                gate,
                at_most,
                max_waiting,
                count: AtomicUsize::new(0),
            }),
            gate: Box::new(gate),
            timer,
            rules: self.rules.into(),
            skip,
            answers,
        };
        shared.rules.iter_mut().zip(rules).for_each(|(rule, id)| rule.id = id);
        shared.answers.prepare(&shared.rules);
        Ok(Limits(Arc::new(shared)))
    }

    /// The ids of the rules, if everything is valid.
    fn checked(&self) -> Result<Vec<tidegate_core::RuleId>, InvalidLimits> {
        if let Some(said) = self.too_early {
            return Err(InvalidLimits::BeforeAnyRule { said });
        }
        match self.rules.len() {
            0 => return Err(InvalidLimits::NoRules),
            rules if rules > MOST_RULES => return Err(InvalidLimits::TooManyRules { rules }),
            _ => {}
        }
        let mut ids = Vec::new();
        for rule in &self.rules {
            let name = || rule.name.to_string();
            if !is_name(&rule.name) {
                return Err(InvalidLimits::NotAName { rule: name() });
            }
            rule.key.check_key().map_err(|why| InvalidLimits::Key { rule: name(), why })?;
            let id = self.gate.rule(&rule.name).ok_or_else(|| InvalidLimits::UnknownRule { rule: name() })?;
            if ids.contains(&id) {
                return Err(InvalidLimits::SameRule { rule: name() });
            }
            ids.push(id);
        }
        Ok(ids)
    }

    fn with_rule(mut self, said: &'static str, set: impl FnOnce(&mut HttpRule)) -> Self {
        match self.rules.last_mut() {
            Some(rule) => set(rule),
            None => self.too_early = self.too_early.or(Some(said)),
        }
        self
    }
}

// === impl Waiting ===

impl Waiting {
    /// Counts one more waiting request, if the maximum allows it.
    pub(super) fn enter(&self) -> Option<Place<'_>> {
        let one_more = |count| (count < self.max_waiting).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Place(&self.count))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("rules", &self.0.rules)
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

impl<G> fmt::Debug for LimitsBuilder<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}
