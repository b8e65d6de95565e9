//! # State shared by the clones of a keyed limiter
//!
//! The clones share the table of all states, the current algorithm, and the reservations. A decision takes the fast
//! path if it can: the key is in the table, its state is one word, and the version is the first. Otherwise it takes the
//! slow path, which honours [reservations](crate::reservation) if there are any.

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

/// State shared by the clones of a keyed limiter.
#[derive(Debug)]
pub(crate) struct Keyed<A> {
    pub(super) secrets: Secrets,
    /// The fingerprint of the empty key, which is the global key.
    global_key: u64,
    pub(crate) versions: Versions<Version<A>>,
    pub(super) changing: Mutex<()>,
    pub(super) reservations: Reservations<A>,
}

/// The configured bounds of a limiter.
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

/// An algorithm and the table of its states.
///
/// Versions with states of the same size share a table.
#[derive(Debug)]
pub(crate) struct Version<A> {
    pub(crate) algorithm: A,
    pub(crate) table: Arc<Table>,
    /// When this version became current.
    ///
    /// At an earlier instant, a state would be judged by the rate of the wrong version.
    pub(crate) since: Micros,
}

/// The number of the version with which a limiter is created.
pub(crate) const FIRST: usize = 0;
/// The default maximum number of keys.
pub(crate) const DEFAULT_MAX_KEYS: usize = 1 << 22;
/// The number of shards for reservations.
///
/// So many locks make threads with different keys seldom contend while there are reservations.
const SHARDS: usize = 64;

impl<A: Algorithm> Keyed<A> {
    pub(crate) fn new(algorithm: A, settings: Settings) -> Self {
        let Settings { max_keys, on_full, max_waiting } = settings;
        let words = algorithm.words();
        let table = Table::new(max_keys, words).with_sketch(Sketch::new(max_keys, words, on_full));
        let versions = Versions::new(Version { algorithm, table: Arc::new(table), since: Micros::ZERO });
        let secrets = Secrets::draw();
        let global_key = secrets.fingerprint(&AsText(&[]));
        let reservations = Reservations::new(SHARDS, max_waiting);
        Keyed { secrets, global_key, versions, changing: Mutex::new(()), reservations }
    }

    pub(crate) fn current(&self) -> &Version<A> {
        self.versions.get(self.versions.current())
    }

    pub(crate) fn stats(&self, now: Micros) -> Stats {
        let Version { algorithm, table, .. } = self.current();
        let stats = table.stats_with(table.sketch().stats(|cell| algorithm.idle_at(cell), now));
        Stats { bytes: self.bytes(), ..stats }
    }

    /// Returns the memory of the limiter in bytes.
    ///
    /// It includes the tables of earlier versions, which are kept.
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

    /// Returns the fingerprint of a request's key, for policies.
    #[inline]
    pub(crate) fn fingerprint_of(&self, key: Key<'_>) -> u64 {
        match key.bytes() {
            [] => self.global_key,
            bytes => match <[u8; 8]>::try_from(bytes) {
                // Most likely a number. Numbers are permuted, which is faster, and no two of them collide.
                Ok(eight) => self.secrets.fingerprint(&u64::from_le_bytes(eight)),
                Err(_) => self.secrets.fingerprint(&AsText(bytes)),
            },
        }
    }

    /// Executes an operation on the fast path.
    ///
    /// The clock is read while the key's cache line is being loaded.
    ///
    /// Only for the first version. Every instruction counts here: the fewer there are, the more of the next decision
    /// the processor starts while it waits for the memory of this one.
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

    /// Executes an operation on the fast path, by an algorithm that comes with the call.
    #[inline]
    pub(super) fn apply_per_call_fast<V: Operation>(
        &self,
        per_call: &A,
        fingerprint: u64,
        operation: &V,
        when: impl FnOnce() -> DecisionTime,
    ) -> Option<V::Answer> {
        if self.versions.current() != FIRST {
            return None;
        }
        let Version { algorithm, table, .. } = self.versions.get(FIRST);
        if (per_call.words(), algorithm.words()) != (1, 1) {
            return None;
        }
        let (versions, number) = (&self.versions, FIRST);
        let step = || KeyedStep { algorithm: per_call, operation, when: when(), versions, number };
        table.apply_fast(fingerprint, step)
    }

    /// Executes an operation on the slow path.
    ///
    /// It is for new keys, wide states, later versions, and operations that missed the fast path.
    pub(super) fn apply<V: Operation>(
        &self,
        per_call: Option<&A>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        loop {
            let answer = if self.is_slow_path() {
                reservation::apply(self, per_call, fingerprint, operation, when)
            } else {
                self.apply_while(false, per_call, fingerprint, operation, when)
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    /// Executes an operation as long as the slow-path flag equals `marked`.
    fn apply_while<V: Operation>(
        &self,
        marked: bool,
        per_call: Option<&A>,
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
            let per_call = per_call.filter(|per_call| per_call.words() == algorithm.words());
            let (algorithm, when) = (per_call.unwrap_or(algorithm), when.not_before(*since));
            let step = || KeyedStep { algorithm, operation, when, versions: &self.versions, number };
            let fast_path = if number == FIRST { None } else { table.apply_fast(fingerprint, step) };
            let answer = fast_path.or_else(|| table.apply(fingerprint, &step()));
            if answer.is_some() {
                return answer;
            }
        }
    }

    /// Executes an operation that may refund, for one key of a policy.
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
        per_call: Option<&A>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        loop {
            if let Some(answer) =
                self.apply_while(self.is_slow_path(), per_call, fingerprint, operation, when)
            {
                return answer;
            }
        }
    }
}
