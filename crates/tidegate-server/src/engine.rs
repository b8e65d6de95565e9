//! # The engine: one answer for every protocol
//!
//! Clients come by different doors, and behind all of them there is one engine. It has the rules that are in force, the
//! limits that come with a call, and the places that are held; doors only translate.
//!
//! ```text
//!   RESP ──┐                 ┌─ InForce: which rules, and their states, here or in Redis
//!   HTTP ──┼──►  Engine  ────┼─ limits that come with the call, here or in Redis      (Throttle)
//!   gRPC ──┘                 └─ who holds which places, until when
//! ```
//!
//! A door asks in three steps: it takes the rules that are in force, puts a [`Question`] to them, and gets an
//! [`Answer`]:
//!
//! ```
//! use tidegate_server::config::{Config, Format};
//! use tidegate_server::engine::{Engine, Verdict};
//! use tidegate_server::rules::{Call, Compiled};
//!
//! let file = "rules: [{name: per user, match: {user: '*'}, key: user, quota: 2/min}]";
//! let config = Config::load("tidegate.yaml", file.as_bytes(), Format::Yaml, &|_| None).config.unwrap();
//! let engine = Engine::of(Compiled::new(config.rules), &config.store)?;
//!
//! let rules = engine.in_force();
//! let call = Call::of(&[("user", "alice"), ("path", "/")]);
//! let decided = rules.ask().call(&call).check().now().expect("in memory")?;
//! let Verdict::Limited(decision) = decided.verdict else { panic!("there is a rule for it") };
//! assert_eq!((decision.remaining(), rules.name(decision.rule)), (1, "per user"));
//!
//! let by_name = rules.ask().rule(0, [b"alice".as_slice()].into_iter(), None); // as `TG.CHECK` does: the same count
//! assert_eq!(by_name.check().now().expect("in memory")?.decision().map(|decision| decision.remaining()), Some(0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Rules are [replaced](Engine::replace) all at once. Who has taken the old ones finishes with them, and charges the
//! same states; see [`in_force`].

mod answer;
mod blocks;
mod grants;
mod id;
pub mod in_force;
mod inspect;
mod lend;
mod memory;
pub(crate) mod meter;
mod places;
mod question;
mod redis;
mod refused;
mod rules;
mod share;
pub(crate) mod tally;
mod testing;
mod throttle;
mod throttles;
mod verdict;
mod window;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tidegate::clock::Clock;
use tidegate::{SteadyClock, Wait};
use tidegate_redis::{Error, RedisGate};

use crate::config::Store as StoreConfig;
use crate::rules::{Compiled, Diff};
pub use answer::Answer;
use blocks::Blocks;
pub use blocks::{Block, TooManyBlocks};
use grants::Grants;
pub use grants::{GrantId, NoGrantId};
pub use in_force::{InForce, Watched};
pub use inspect::Left;
use meter::Meter;
use places::Places;
pub(crate) use places::{MOST_PERMITS, MOST_PERMITS_OF_RULE};
pub use places::{NoPlaceId, PlaceId};
pub use question::Question;
pub use refused::RefusedKey;
pub use rules::{InvalidRules, Rules};
pub use tally::Counted;
pub use testing::Case;
pub use throttle::{InvalidThrottle, Throttle, Throttled};
use throttles::Throttles;
pub use verdict::{Acquired, Decided, Explanation, Fault, Lent, Loan, RuleExplained, Verdict};
use window::Budget;
pub(crate) use window::{Permit, in_order};

/// So many bytes may a value of a request have, whichever the protocol.
pub(crate) const LONGEST_VALUE: usize = 4 << 10;

/// Decides for all clients.
///
/// ```
/// use tidegate::Quota;
/// use tidegate_server::engine::{Engine, Rules};
///
/// let engine = Engine::new(Rules::new().rate("user", Quota::per_minute(2)))?;
/// let rules = engine.in_force();
/// let user = rules.rule(b"user").expect("it was just added");
/// let decided = rules.ask().rule(user, [b"alice".as_slice()].into_iter(), None).check();
/// assert_eq!(decided.now().expect("in memory")?.decision().map(|decision| decision.remaining()), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<C = SteadyClock> {
    force: ArcSwap<InForce<C>>,
    throttles: Arc<Throttles<C>>,
    places: Arc<Places>,
    blocks: Arc<Blocks>,
    meter: Arc<Meter>,
    budget: Budget,
    clock: C,
    store: StoreConfig,
    /// One at a time.
    replacing: Mutex<()>,
    /// How those who test it set the time and the rules, if it was made for that.
    set: Option<testing::Set<C>>,
}

impl Engine {
    /// An engine with these rules, in memory, on the steady clock.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] if the rules are none.
    pub fn new(rules: Rules) -> Result<Self, InvalidRules> {
        Engine::with_clock(rules, SteadyClock::new())
    }

    /// An engine with the rules of a file, which keeps its counts where the file says. Inside a tokio runtime if that
    /// is Redis; it need not be there yet.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] if the rules are none, or no gate to this Redis can be made.
    pub fn of(compiled: Compiled, store: &StoreConfig) -> Result<Self, InvalidRules> {
        Engine::start(compiled, store, SteadyClock::new())
    }
}

impl<C: Clock + Clone> Engine<C> {
    /// The same as [`new`](Engine::new) on another clock.
    ///
    /// # Errors
    ///
    /// As [`new`](Engine::new).
    pub fn with_clock(rules: Rules, clock: C) -> Result<Self, InvalidRules> {
        let (compiled, store) = rules.compiled()?;
        Engine::start(compiled, &store, clock)
    }

    /// The same as [`of`](Engine::of) on another clock, which decides where counts are in memory.
    ///
    /// # Errors
    ///
    /// As [`of`](Engine::of).
    pub fn start(compiled: Compiled, store: &StoreConfig, clock: C) -> Result<Self, InvalidRules> {
        let throttles = Arc::new(Throttles::new(store, clock.clone()));
        let (places, blocks, meter) = <(Arc<Places>, Arc<Blocks>, Arc<Meter>)>::default();
        let budget = Budget::of(store);
        let beside =
            (places.clone(), blocks.clone(), meter.clone(), Arc::<Grants>::default(), budget.clone());
        let force = InForce::first(compiled, store, beside, clock.clone())?;
        let (force, replacing) = (ArcSwap::from_pointee(force), Mutex::new(()));
        let store = store.clone();
        Ok(Engine { force, throttles, places, blocks, meter, budget, clock, store, replacing, set: None })
    }

    /// Puts other rules in force, all at once. A limit that is [the same](crate::rules::Identity) goes on with its
    /// counts, also if its numbers have changed: what was used stays used. Who asks meanwhile is answered by the old
    /// rules or by the new ones, and charges the same states. Blocks while states are converted, in the order of a
    /// tenth of a second for a million keys of a limit that has changed; nobody who asks waits for more than that.
    /// Where counts are in Redis, blocks for a moment until the new connections stand.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`]. Then nothing has changed.
    pub fn replace(&self, compiled: Compiled) -> Result<Diff, InvalidRules> {
        let _one_at_a_time = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.force.load_full();
        let diff = compiled.diff(old.compiled());
        let next = old.reload(compiled, &self.store)?;
        self.force.store(Arc::new(next));
        Ok(diff)
    }
}

impl<C: Clock> Engine<C> {
    /// The rules that are in force now. Hold them for one request and no longer: the next one may be for others.
    ///
    /// Takes no lock, and waits for nobody.
    pub fn in_force(&self) -> Guard<Arc<InForce<C>>> {
        self.force.load()
    }

    /// Holds what `id` holds for another lease, and tells how long that is. `None` if it holds nothing any more: its
    /// lease was over.
    pub fn renew(&self, id: PlaceId) -> Answer<Option<Duration>> {
        Answer::Ready(self.places.renew(id, self.clock.now()))
    }

    /// Gives back what `id` holds; whether it still held anything.
    pub fn release(&self, id: PlaceId) -> Answer<bool> {
        Answer::Ready(self.places.release(id, self.clock.now()))
    }

    /// Gives back all places whose lease is over. Whoever asks for a place here does so first; call it now and then
    /// where places are counted in Redis, for those who ask elsewhere.
    pub fn free_overdue(&self) {
        while self.places.free_overdue(self.clock.now()) {}
        self.blocks.forget_overdue(self.clock.now());
    }

    /// Refuses every request of a key by a rule, for so long, whatever is left of its limits. In this process alone.
    ///
    /// # Errors
    ///
    /// [`TooManyBlocks`] if as many keys are blocked as can be.
    pub fn block(&self, rule: &str, key: &[u8], lasting: Duration) -> Result<(), TooManyBlocks> {
        let (now, lasting) = (self.clock.now(), u64::try_from(lasting.as_micros()).unwrap_or(u64::MAX));
        self.blocks.block(rule, key, now.plus(lasting), now)
    }

    /// Lets a key be asked for again; whether it was blocked.
    pub fn unblock(&self, rule: &str, key: &[u8]) -> bool {
        self.blocks.unblock(rule, key, self.clock.now())
    }

    /// For how long a key is still blocked, if it is.
    pub fn blocked(&self, rule: &str, key: &[u8]) -> Option<Duration> {
        self.blocks.left(rule, key, || self.clock.now())
    }

    /// All keys that are blocked.
    pub fn blocks(&self) -> Vec<Block> {
        self.blocks.all(self.clock.now())
    }

    /// The keys that were refused most, in the order of how often; no more than so many.
    #[must_use]
    pub fn most_refused(&self, most: usize) -> Vec<RefusedKey> {
        self.meter.refused.most(most)
    }

    /// Tells whoever asks `/readyz` that nobody new should come, because the service is about to end. All are answered
    /// as before.
    pub fn drain(&self) {
        self.meter.drain();
    }

    /// Gives back what was leased from Redis and is unspent: at the end, when nobody asks any more.
    pub async fn give_back(&self) {
        let rules = self.force.load_full();
        rules.give_back().await;
    }

    /// Waits for the first answer of the store, at most its `connect_timeout`. Returns at once where counts are in memory.
    ///
    /// # Errors
    ///
    /// [`Error`]: why the store did not answer in time. Decisions are made without it until it does.
    pub async fn connect(&self) -> Result<(), Error> {
        let StoreConfig::Redis(config) = &self.store else { return Ok(()) };
        let Some(gate) = self.force.load().gate().cloned() else { return Ok(()) };
        if gate.ready(config.connect_timeout).await {
            return Ok(());
        }
        Err(gate.health().last_error.unwrap_or(Error::timeout()))
    }

    /// A permit for one request more of a pipeline, beyond its first, that sends so many commands at once; `None` if they are to
    /// wait for each other.
    pub(crate) fn permit(&self, commands: u32) -> Option<Permit> {
        self.budget.permit(commands)
    }

    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// How many keys are limited by the call in this process. Where counts are in Redis, these are those that were
    /// counted here while it was away.
    #[must_use]
    pub fn keys(&self) -> u64 {
        u64::try_from(self.throttles.len()).unwrap_or(u64::MAX)
    }

    /// How often permits were refused because too many are held.
    pub(crate) fn permits_refused(&self) -> u64 {
        self.places.refused()
    }

    /// No more ids than these hold permits: in all, and of each rule.
    pub fn bound_permits(&self, all: usize, of_rule: usize) {
        self.places.bound(all, of_rule);
    }

    /// How many requests hold places.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.len()
    }
}

impl<C: Clock + Send + Sync + 'static> Engine<C> {
    /// Decides by a limit that comes with the call. These are counted where the rules are; while that is a Redis that
    /// does not answer, the store says what becomes of them.
    #[inline]
    pub fn throttle(&self, key: &[u8], call: Throttle) -> Answer<Throttled> {
        if let Some(gate) = self.redis() {
            return self.throttles.ask(gate, key, call, &self.meter);
        }
        let decision = self.throttles.decide(key, call);
        self.meter.throttled(&decision);
        Answer::Ready(decision.into())
    }

    /// How long until a key that was limited by the call owes nothing; `None` if it owes nothing. A [`Fault`] if the
    /// store does not answer.
    pub fn owes(&self, key: &[u8]) -> Answer<Result<Option<Wait>, Fault>> {
        match self.redis() {
            Some(gate) => throttles::owes_there(gate, key),
            None => Answer::Ready(Ok(self.throttles.owes(key))),
        }
    }

    /// Forgets a key that was limited by the call; whether it owed anything. A [`Fault`] if the store does not answer.
    pub fn forget(&self, key: &[u8]) -> Answer<Result<bool, Fault>> {
        match self.redis() {
            Some(gate) => throttles::forget_there(gate, key),
            None => Answer::Ready(Ok(self.throttles.forget(key))),
        }
    }

    /// Where counts are, if that is not here.
    #[inline]
    fn redis(&self) -> Option<RedisGate> {
        match self.store {
            StoreConfig::Memory { .. } => None,
            StoreConfig::Redis(_) => self.force.load().gate().cloned(),
        }
    }
}

impl<C> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.force.load();
        f.debug_struct("Engine").field("limits", &rules.compiled().limits().len()).finish_non_exhaustive()
    }
}
