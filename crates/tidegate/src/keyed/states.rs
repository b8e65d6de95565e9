//! # What the clones of a keyed limiter share
//!
//! The table of all states, the algorithm in force, and what was promised for later. A decision takes the short cut if it
//! can: the key is there, its state is one word, and the setting is the first. Else it goes the long way, and if somebody
//! has [reserved](crate::reservation) ahead of the clock, past what is promised.

use std::hash::Hash;
use std::sync::Arc;

use super::step::KeyedStep;
use crate::fingerprint::{AsText, Secrets};
use crate::gate::Key;
use crate::operation::Operation;
use crate::reservation::{self, DEFAULT_MAX_WAITING, Reservations, StateStore};
use crate::state_cell::DecisionTime;
use crate::sync::Mutex;
use crate::table::{OnFull, Sketch, Stats, Table};
use crate::versioned::{Versions, is_slow_path};
use tidegate_core::{Algorithm, Micros};

/// What the clones of a keyed limiter share.
#[derive(Debug)]
pub(crate) struct Keyed<A> {
    pub(super) secrets: Secrets,
    /// The fingerprint of the empty key.
    everybodys: u64,
    pub(crate) versions: Versions<Version<A>>,
    pub(super) changing: Mutex<()>,
    pub(super) reservations: Reservations<A>,
    pub(super) settings: Settings,
}

/// What a limiter was told about its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) max_keys: usize,
    pub(crate) on_full: OnFull,
    pub(crate) max_waiting: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let (max_keys, max_waiting) = (DEFAULT_MAX_KEYS, DEFAULT_MAX_WAITING);
        Settings { max_keys, on_full: OnFull::default(), max_waiting }
    }
}

/// An algorithm and the table of its states. Settings whose states have the same size share a table.
#[derive(Debug)]
pub(crate) struct Version<A> {
    pub(crate) algorithm: A,
    pub(crate) table: Arc<Table>,
    /// When it was put in force. Judged at an earlier instant, a state would have owed at the pace of the wrong setting.
    pub(crate) since: Micros,
}

/// The number of the setting that a limiter was made with.
pub(crate) const FIRST: usize = 0;
/// The cap of a limiter that was not told one.
pub(crate) const DEFAULT_MAX_KEYS: usize = 1 << 22;
/// So many locks for what is promised, so that threads with different keys seldom meet while somebody waits.
const SHARDS: usize = 64;

impl<A: Algorithm> Keyed<A> {
    pub(crate) fn new(algorithm: A, settings: Settings) -> Self {
        let Settings { max_keys, on_full, max_waiting } = settings;
        let words = algorithm.words();
        let table = Table::new(max_keys, words).with_sketch(Sketch::new(max_keys, words, on_full));
        let versions = Versions::new(Version { algorithm, table: Arc::new(table), since: Micros::ZERO });
        let secrets = Secrets::draw();
        let everybodys = secrets.fingerprint(&AsText(&[]));
        let reservations = Reservations::new(SHARDS, max_waiting);
        Keyed { secrets, everybodys, versions, changing: Mutex::new(()), reservations, settings }
    }

    pub(crate) fn current(&self) -> &Version<A> {
        self.versions.get(self.versions.current())
    }

    pub(crate) fn stats(&self, now: Micros) -> Stats {
        let Version { algorithm, table, .. } = self.current();
        let stats = table.stats_with(table.sketch().stats(|cell| algorithm.idle_at(cell), now));
        Stats { bytes: self.bytes(), ..stats }
    }

    /// The memory of the limiter, with the tables of earlier settings, which are kept.
    fn bytes(&self) -> usize {
        let (mut bytes, mut before) = (size_of::<Self>() + self.reservations.bytes(), None);
        for Version { table, .. } in self.versions.all() {
            if before.is_none_or(|before| !Arc::ptr_eq(before, table)) {
                bytes += size_of::<Table>() + table.bytes();
            }
            before = Some(table);
        }
        bytes
    }

    /// The fingerprint of a request's key, for policies.
    #[inline]
    pub(crate) fn fingerprint_of(&self, key: Key<'_>) -> u64 {
        match key.bytes() {
            [] => self.everybodys,
            bytes => match <[u8; 8]>::try_from(bytes) {
                // Most likely a number, and those are permuted, which is faster and makes no two of them meet.
                Ok(eight) => self.secrets.fingerprint(&u64::from_le_bytes(eight)),
                Err(_) => self.secrets.fingerprint(&AsText(bytes)),
            },
        }
    }

    /// The short cut, for whoever may take it. The clock is read while the key's line is on its way from memory.
    ///
    /// Only by the first setting: every instruction here counts, because the fewer there are, the more of the next decision the
    /// processor begins while it waits for this one's memory.
    #[inline(always)]
    pub(super) fn apply_fast<V: Operation>(
        &self,
        fingerprint: u64,
        operation: &V,
        when: impl FnOnce() -> DecisionTime,
    ) -> Option<V::Answer> {
        if self.versions.current() != FIRST {
            return None;
        }
        let Version { algorithm, table, .. } = self.versions.get(FIRST);
        let (versions, number) = (&self.versions, FIRST);
        table.apply_fast(fingerprint, || KeyedStep { algorithm, operation, when: when(), versions, number })
    }

    /// The short cut by a setting that comes with the call.
    #[inline]
    pub(super) fn apply_plan_fast<V: Operation>(
        &self,
        plan: &A,
        fingerprint: u64,
        operation: &V,
        when: impl FnOnce() -> DecisionTime,
    ) -> Option<V::Answer> {
        if self.versions.current() != FIRST {
            return None;
        }
        let Version { algorithm, table, .. } = self.versions.get(FIRST);
        if (plan.words(), algorithm.words()) != (1, 1) {
            return None;
        }
        let (versions, number) = (&self.versions, FIRST);
        let step = || KeyedStep { algorithm: plan, operation, when: when(), versions, number };
        table.apply_fast(fingerprint, step)
    }

    /// The long way, for newcomers, larger states, later settings, and those who did not get through at once.
    pub(super) fn apply<V: Operation>(
        &self,
        plan: Option<&A>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        loop {
            let answer = if self.is_slow_path() {
                reservation::apply(self, plan, fingerprint, operation, when)
            } else {
                self.apply_while(false, plan, fingerprint, operation, when)
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    /// Does it to the state, as long as nobody sets the mark or takes it away.
    fn apply_while<V: Operation>(
        &self,
        marked: bool,
        plan: Option<&A>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> Option<V::Answer> {
        loop {
            let number = self.versions.current();
            if is_slow_path(number) != marked {
                return None;
            }
            let Version { algorithm, table, since } = self.versions.get(number);
            let plan = plan.filter(|plan| plan.words() == algorithm.words());
            let (algorithm, when) = (plan.unwrap_or(algorithm), when.not_before(*since));
            let step = || KeyedStep { algorithm, operation, when, versions: &self.versions, number };
            let fast_path = if number == FIRST { None } else { table.apply_fast(fingerprint, step) };
            let answer = fast_path.or_else(|| table.apply(fingerprint, &step()));
            if answer.is_some() {
                return answer;
            }
        }
    }

    /// Carries out a verb that may give back, for one key of a policy.
    pub(crate) fn apply_to<V: Operation>(
        &self,
        key: Key<'_>,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        let fingerprint = self.fingerprint_of(key);
        let answer = self.apply(None, fingerprint, operation, when);
        self.current().table.allow_eviction_scan(fingerprint);
        answer
    }

    pub(super) fn allow_eviction_scan<Q: Hash + ?Sized>(&self, key: &Q) {
        self.current().table.allow_eviction_scan(self.secrets.fingerprint(key));
    }
}

impl<A: Algorithm> StateStore for Keyed<A> {
    type Algorithm = A;

    fn reservations(&self) -> &Reservations<A> {
        &self.reservations
    }

    fn algorithm(&self) -> &A {
        &self.current().algorithm
    }

    fn is_slow_path(&self) -> bool {
        is_slow_path(self.versions.current())
    }

    fn set_slow_path(&self) {
        self.versions.set_slow_path();
    }

    fn clear_slow_path(&self) {
        self.versions.clear_slow_path();
    }

    fn refunded(&self, fingerprint: u64) {
        self.current().table.allow_eviction_scan(fingerprint);
    }

    fn apply_under_lock<V: Operation>(
        &self,
        plan: Option<&A>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        loop {
            if let Some(answer) = self.apply_while(self.is_slow_path(), plan, fingerprint, operation, when) {
                return answer;
            }
        }
    }
}
