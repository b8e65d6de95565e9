//! # Limits on requests
//!
//! [`Limits`] combine a gate, the rules of that gate that a request is checked against, and the responses to refused
//! requests. They are built once and shared by all layers in front of services or clients: see `tidegate::tower`.
//! Clones are handles on the same limits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::http::{Response, StatusCode};

use super::fast_path::{DirectCheck, FastPath};
use super::fields::{Fields, Unit, is_valid_name};
use super::head::Head;
use super::invalid::InvalidLimits;
use super::jitter::Jitter;
use super::key::RuleKey;
use super::refusal::{Refusal, ResponseConfig};
use super::rule::{Expose, HttpRule, RuleStats};
use super::timer::Timer;
use crate::gate::{Gate, WaitingGate};
use crate::wait::Sleep;
use tidegate_core::{Micros, Quota, Wait};

/// The maximum number of rules of one [`Limits`].
pub(super) const MAX_RULES: usize = 8;
const MAX_WAITING: usize = 1_024;

/// Rules that every request is checked against, and the responses to refused requests.
///
/// A request passes only if all rules allow it. If one rule refuses it, no rule is charged.
///
/// ```
/// use tidegate::http::{Fields, KeyPart, Limits, by};
/// use tidegate::{Policy, Quota};
///
/// const USER: Quota = Quota::per_minute(100);
///
/// let policy = Policy::builder()
///     .rule("global", Quota::per_second(5_000))
///     .rule("user", USER)
///     .build()?;
/// let limits = Limits::builder(policy)
///     .rule("global", by::global())
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
/// let limits = Limits::builder(Limiter::new(Quota::per_second(1))).rule("user", by::header("x-user")).build();
/// ```
#[derive(Clone)]
pub struct Limits(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) gate: Box<dyn Gate>,
    pub(super) waiting: Option<Waiting>,
    pub(super) timer: Option<Arc<dyn Timer>>,
    pub(super) rules: Box<[HttpRule]>,
    pub(super) skip: Option<Skip>,
    pub(super) responses: ResponseConfig,
    /// Whether there is a single rule, and it is enforced and decides immediately.
    pub(super) is_single: bool,
    pub(super) fast_path: FastPath,
}

pub(super) type Skip = Box<dyn Fn(&Head<'_>) -> bool + Send + Sync>;

/// The queue of requests at the gate: its bounds, and its length.
pub(super) struct Waiting {
    pub(super) gate: Arc<dyn WaitingGate>,
    pub(super) at_most: Duration,
    max_waiting: usize,
    count: AtomicUsize,
}

/// Counts one waiting request until it is dropped.
pub(super) struct WaitingGuard<'a>(&'a AtomicUsize);

/// Builds [`Limits`]. Created by [`Limits::builder`].
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
    responses: ResponseConfig,
    /// The name of a rule setting that was given before the first rule.
    setting_before_rule: Option<&'static str>,
}

impl Limits {
    /// Starts building limits on this gate. At least one rule must be added.
    pub fn builder<G: Gate + 'static>(gate: G) -> LimitsBuilder<G> {
        LimitsBuilder {
            gate: Arc::new(gate),
            rules: Vec::new(),
            waiting: None,
            max_waiting: MAX_WAITING,
            timer: <dyn Timer>::default_timer(),
            skip: None,
            responses: ResponseConfig::default(),
            setting_before_rule: None,
        }
    }

    /// Builds limits with a single rule of this gate, this key and default settings.
    ///
    /// The rule is reported to clients as `default`. If the gate names its rules, the rule must have that name, too.
    ///
    /// ```
    /// use tidegate::http::{KeyPart, Limits, by};
    /// use tidegate::{KeyedLimiter, Quota};
    /// let limiter = KeyedLimiter::<str>::new(Quota::per_second(10).burst(20));
    /// let limits = Limits::single(limiter, by::header("x-api-key").secret().or_refuse())?;
    /// # Ok::<(), tidegate::http::InvalidLimits>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LimitsBuilder::build`].
    pub fn single<G: Gate + 'static>(gate: G, key: impl RuleKey) -> Result<Self, InvalidLimits> {
        Limits::builder(gate).rule("default", key).build()
    }

    /// Returns the counters of each rule.
    #[must_use]
    pub fn stats(&self) -> Vec<RuleStats> {
        self.0.rules.iter().map(HttpRule::stats).collect()
    }

    /// The clock that requests wait on.
    #[cfg(feature = "tower")]
    pub(crate) fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.0.timer.clone()
    }

    /// Returns the number of requests that are waiting now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting.as_ref().map_or(0, |waiting| waiting.count.load(Ordering::Relaxed))
    }
}

impl<G: Gate + 'static> LimitsBuilder<G> {
    /// Adds a rule of the gate, with the key that it limits requests by.
    ///
    /// The rule is reported to clients under the same name.
    pub fn rule(mut self, name: &str, key: impl RuleKey) -> Self {
        let key = Arc::new(key);
        let fast_path = DirectCheck { gate: self.gate.clone(), key: key.clone() };
        self.rules.push(HttpRule::new(name, key, Box::new(fast_path)));
        self
    }

    /// Sets the cost of a request under the rule; 1 by default.
    pub fn cost(self, cost: impl Fn(&Head<'_>) -> u32 + Send + Sync + 'static) -> Self {
        self.with_rule("cost", |rule| rule.cost = Some(Arc::new(cost)))
    }

    /// Makes the rule a shadow: it is only observed, and never refuses a request.
    ///
    /// [`Limits::stats`] counts the requests that it would have allowed or refused.
    pub fn shadow(self) -> Self {
        self.with_rule("shadow", |rule| rule.is_shadow = true)
    }

    /// Sets how much of the rule is reported to clients; everything by default.
    pub fn expose(self, expose: Expose) -> Self {
        self.with_rule("expose", |rule| rule.expose = expose)
    }

    /// Sets the quota that is reported to clients: the limit and its period.
    ///
    /// Without it, the limit of the decision is reported (for a bucket, its burst), and no period.
    pub fn quota(self, quota: Quota) -> Self {
        self.with_rule("quota", |rule| rule.quota = Some(quota))
    }

    /// Sets what the rule counts, as reported to clients; requests by default.
    pub fn unit(self, unit: Unit) -> Self {
        self.with_rule("unit", |rule| rule.unit = unit)
    }

    /// Sets the status of the rule's refusals.
    ///
    /// The default is 429, or 503 if a concurrency limit that all clients share is reached.
    pub fn status(self, status: StatusCode) -> Self {
        self.with_rule("status", |rule| rule.status = Some(status))
    }

    /// Exempts requests for which this closure returns `true`: health checks, for instance.
    pub fn skip_if(self, skip: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        LimitsBuilder { skip: Some(Box::new(skip)), ..self }
    }

    /// Makes requests over the limit wait in a queue, for at most this long.
    ///
    /// A request that would have to wait longer is refused immediately.
    pub fn wait_at_most(self, at_most: Duration) -> Self
    where
        G: WaitingGate,
    {
        LimitsBuilder { waiting: Some((self.gate.clone(), at_most)), ..self }
    }

    /// Sets how many requests may wait at the same time; 1,024 by default.
    ///
    /// When the queue is full, further requests that would have to wait are refused.
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

    /// Sets the header fields that report the remaining quota in every response.
    ///
    /// The default is no fields. The fields report each rule that is [exposed](Expose) and that applied to the request,
    /// in the order of the rules. If requests may [wait](LimitsBuilder::wait_at_most), or the gate returns only the
    /// binding decision, they report only the binding rule.
    pub fn fields(mut self, fields: Fields) -> Self {
        self.responses.fields = fields;
        self
    }

    /// Lets scripts in browsers read these fields, with `Access-Control-Expose-Headers`.
    pub fn readable_in_browsers(mut self) -> Self {
        self.responses.expose_to_browsers = true;
        self
    }

    /// Adds up to this many percent of jitter to retry times, to spread retries.
    pub fn jitter(mut self, percent: u8) -> Self {
        self.responses.jitter = Jitter::new(percent);
        self
    }

    /// Sets the retry time when a concurrency limit is reached or the queue is full.
    ///
    /// In these cases it is unknown when a permit will be free. The default is a second. A good choice is the usual
    /// duration of a request.
    pub fn retry_when_busy_after(mut self, wait: Duration) -> Self {
        self.responses.when_busy = Wait::micros(Micros::from(wait).get());
        self
    }

    /// Sets an HTML page as the body of refusals to browsers.
    ///
    /// Requests that prefer HTML to JSON in `Accept` get it.
    pub fn page(mut self, html: impl Into<String>) -> Self {
        self.responses.page = Some(html.into());
        self
    }

    /// Replaces the whole response to a refused request.
    pub fn refusal_response(
        mut self,
        response: impl Fn(&Head<'_>, &Refusal) -> Response<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        self.responses.custom = Some(Box::new(response));
        self
    }

    /// Builds the limits.
    ///
    /// # Errors
    ///
    /// [`InvalidLimits`], if there are no rules or too many, the gate has no rule of a name, a rule is added twice, a
    /// key or a name is invalid, or a setting of a rule comes before the first rule.
    pub fn build(self) -> Result<Limits, InvalidLimits> {
        let ids = self.rule_ids()?;
        let LimitsBuilder { gate, waiting, max_waiting, timer, skip, responses, .. } = self;
        let is_single =
            matches!(&*self.rules, [rule] if !rule.is_shadow) && waiting.is_none() && gate.is_immediate();
        let fast_path = match &*self.rules {
            [rule] if is_single && skip.is_none() => rule.fast_path(responses.fields),
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
            responses,
        };
        shared.rules.iter_mut().zip(ids).for_each(|(rule, id)| rule.id = id);
        shared.responses.prepare(&shared.rules);
        Ok(Limits(Arc::new(shared)))
    }

    /// Returns the ids of the rules, if everything is valid.
    fn rule_ids(&self) -> Result<Vec<tidegate_core::RuleId>, InvalidLimits> {
        if let Some(setting) = self.setting_before_rule {
            return Err(InvalidLimits::SettingBeforeRule { setting });
        }
        match self.rules.len() {
            0 => return Err(InvalidLimits::NoRules),
            rules if rules > MAX_RULES => return Err(InvalidLimits::TooManyRules { rules }),
            _ => {}
        }
        let mut ids = Vec::new();
        for rule in &self.rules {
            let name = || rule.name.to_string();
            if !is_valid_name(&rule.name) {
                return Err(InvalidLimits::InvalidName { rule: name() });
            }
            rule.key.check_key().map_err(|error| InvalidLimits::InvalidKey { rule: name(), error })?;
            let id = self.gate.rule(&rule.name).ok_or_else(|| InvalidLimits::UnknownRule { rule: name() })?;
            if ids.contains(&id) {
                return Err(InvalidLimits::DuplicateRule { rule: name() });
            }
            ids.push(id);
        }
        Ok(ids)
    }

    fn with_rule(mut self, setting: &'static str, set: impl FnOnce(&mut HttpRule)) -> Self {
        match self.rules.last_mut() {
            Some(rule) => set(rule),
            None => self.setting_before_rule = self.setting_before_rule.or(Some(setting)),
        }
        self
    }
}

// === impl Waiting ===

impl Waiting {
    /// Counts one more waiting request, if the maximum allows it.
    pub(super) fn enter(&self) -> Option<WaitingGuard<'_>> {
        let one_more = |count| (count < self.max_waiting).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(WaitingGuard(&self.count))
    }
}

impl Drop for WaitingGuard<'_> {
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
