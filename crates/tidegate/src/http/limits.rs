//! # Limits on requests
//!
//! A gate, the rules of it that a request has to pass, and what is done with those that do not. [`Limits`] are built
//! once and shared by whatever stands in front of a service or a client: see the layers in `tidegate::tower`. Clones
//! are handles on the same limits.

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

/// So many rules may stand in front of one service.
pub(super) const MOST_RULES: usize = 8;
const MAX_WAITING: usize = 1_024;

/// What requests have to pass, all of it or nothing, and what becomes of those that may not.
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
/// A key that may be missing has to come with a choice:
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
    /// Whether there is a single rule, and it is enforced and decides at once.
    pub(super) is_single: bool,
    pub(super) fast_path: FastPath,
}

pub(super) type Skip = Box<dyn Fn(&Head<'_>) -> bool + Send + Sync>;

/// Where those wait who may not pass yet.
pub(super) struct Waiting {
    pub(super) gate: Arc<dyn WaitingGate>,
    pub(super) at_most: Duration,
    max_waiting: usize,
    count: AtomicUsize,
}

/// One of those who wait.
pub(super) struct Place<'a>(&'a AtomicUsize);

/// Limits on their way: what [`Limits::over`] returns.
///
/// What is said after a [`rule`](LimitsBuilder::rule) and before the next goes for that rule.
#[must_use = "a builder does nothing until `build`"]
pub struct LimitsBuilder<G> {
    gate: Arc<G>,
    rules: Vec<HttpRule>,
    waiting: Option<(Arc<dyn WaitingGate>, Duration)>,
    max_waiting: usize,
    timer: Option<Arc<dyn Timer>>,
    skip: Option<Skip>,
    answers: Answers,
    /// Something that goes for a rule was said before there was one.
    too_early: Option<&'static str>,
}

impl Limits {
    /// Limits by the rules of this gate. No rules yet.
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

    /// Limits by a gate of a single rule, with this key, and everything else as usual. Clients know the rule as
    /// `default`; in a gate that has names for its rules, it has to be called that, too.
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

    /// What became of requests, by rule.
    #[must_use]
    pub fn stats(&self) -> Vec<RuleStats> {
        self.0.rules.iter().map(HttpRule::stats).collect()
    }

    /// The clock that they wait by.
    #[cfg(feature = "tower")]
    pub(crate) fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.0.timer.clone()
    }

    /// How many wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting.as_ref().map_or(0, |waiting| waiting.count.load(Ordering::Relaxed))
    }
}

impl<G: Gate + 'static> LimitsBuilder<G> {
    /// Requests have to pass this rule of the gate, with this key. Clients know the rule by the same name.
    pub fn rule(mut self, name: &str, key: impl RuleKey) -> Self {
        let key = Arc::new(key);
        let shortcut = Direct { gate: self.gate.clone(), key: key.clone() };
        self.rules.push(HttpRule::new(name, key, Box::new(shortcut)));
        self
    }

    /// What a request costs under the rule; 1 unless said otherwise.
    pub fn cost(self, cost: impl Fn(&Head<'_>) -> u32 + Send + Sync + 'static) -> Self {
        self.with_rule("cost", |rule| rule.cost = Some(Arc::new(cost)))
    }

    /// The rule is only tried out: it never refuses, and what it would have done is counted in [`Limits::stats`].
    pub fn shadow(self) -> Self {
        self.with_rule("shadow", |rule| rule.is_shadow = true)
    }

    /// How much clients are told of the rule; everything unless said otherwise.
    pub fn expose(self, expose: Expose) -> Self {
        self.with_rule("expose", |rule| rule.expose = expose)
    }

    /// The quota that clients are told: so much in so long. Without it they are told the most that can pass at once.
    pub fn quota(self, quota: Quota) -> Self {
        self.with_rule("quota", |rule| rule.quota = Some(quota))
    }

    /// What the rule counts, for clients to know; requests unless said otherwise.
    pub fn unit(self, unit: Unit) -> Self {
        self.with_rule("unit", |rule| rule.unit = unit)
    }

    /// The status of the rule's refusals. Unless said otherwise it is 429, and 503 where too many are at work whoever
    /// they are.
    pub fn status(self, status: StatusCode) -> Self {
        self.with_rule("status", |rule| rule.status = Some(status))
    }

    /// Requests of which this is true are not limited: health checks, for instance.
    pub fn skip_if(self, skip: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        LimitsBuilder { skip: Some(Box::new(skip)), ..self }
    }

    /// Who may not pass now waits, for at most so long, and is refused at once if that cannot suffice.
    pub fn wait_at_most(self, at_most: Duration) -> Self
    where
        G: WaitingGate,
    {
        LimitsBuilder { waiting: Some((self.gate.clone(), at_most)), ..self }
    }

    /// At most so many wait at the same time; 1,024 unless said otherwise. Whoever else would have to is refused.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        LimitsBuilder { max_waiting, ..self }
    }

    /// By which clock those wait whom a rule lets pass only after a while. With the feature `tokio` that is the
    /// steady clock unless said otherwise. Without any they are refused instead.
    pub fn timer<C>(self, clock: C) -> Self
    where
        C: Sleep + Send + Sync + 'static,
        C::Sleeping: 'static,
    {
        LimitsBuilder { timer: Some(Arc::new(clock)), ..self }
    }

    /// In which words clients are told what is left, with every response; in none unless said otherwise.
    ///
    /// They are told of each rule that is [shown](Expose) and that the request had to pass, in the order of the rules.
    /// Of requests that may [wait](LimitsBuilder::wait_at_most), and by a gate that only knows what was binding, they are
    /// told that.
    pub fn fields(mut self, fields: Fields) -> Self {
        self.answers.fields = fields;
        self
    }

    /// Lets scripts in browsers read these fields, by `Access-Control-Expose-Headers`.
    pub fn readable_in_browsers(mut self) -> Self {
        self.answers.in_browsers = true;
        self
    }

    /// Sends those who were refused back up to so many percent later than need be, to spread them.
    pub fn jitter(mut self, percent: u8) -> Self {
        self.answers.jitter = Jitter::new(percent);
        self
    }

    /// When those are sent back who were refused because too many are at work, or wait already: nobody can say when
    /// there will be room. A second unless said otherwise; about as long as requests take is a good choice.
    pub fn retry_when_busy_after(mut self, wait: Duration) -> Self {
        self.answers.when_busy = Wait::micros(Micros::from(wait).get());
        self
    }

    /// The page for browsers: who asks for HTML is refused with this.
    pub fn page(mut self, html: impl Into<String>) -> Self {
        self.answers.page = Some(html.into());
        self
    }

    /// Replaces everything that a refused request is answered with.
    pub fn answer(
        mut self,
        answer: impl Fn(&Head<'_>, &Refusal) -> Response<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        self.answers.replaced = Some(Box::new(answer));
        self
    }

    /// The limits.
    ///
    /// # Errors
    ///
    /// [`InvalidLimits`], if the gate lacks a rule, a rule is named twice, or something cannot be a key or a name.
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

    /// The numbers of the rules, if all is well.
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
    /// A place among those who wait, if there is one.
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
