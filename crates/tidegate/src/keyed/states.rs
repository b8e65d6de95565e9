//! # What the clones of a keyed limiter share
//!
//! The table of all states, the algorithm in force, and what was promised for later. A decision takes the short cut if it
//! can: the key is there, its state is one word, and the setting is the first. Else it goes the long way, and if somebody
//! has reserved [ahead] of the clock, past what is promised.

use std::hash::Hash;
use std::sync::Arc;

use super::step::KeyedStep;
use crate::ahead::{self, Ahead, DEFAULT_MAX_WAITING, Home};
use crate::fingerprint::{AsText, Secrets};
use crate::gate::Key;
use crate::regime::{Regimes, is_marked};
use crate::shared::When;
use crate::sync::Mutex;
use crate::table::{OnFull, Sketch, Stats, Table};
use crate::verb::Verb;
use tidegate_core::{Algorithm, Micros};

/// What the clones of a keyed limiter share.
#[derive(Debug)]
pub(crate) struct Keyed<A> {
    pub(super) secrets: Secrets,
    /// The fingerprint of the empty key.
    everybodys: u64,
    pub(crate) regimes: Regimes<Regime<A>>,
    pub(super) changing: Mutex<()>,
    pub(super) ahead: Ahead<A>,
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
pub(crate) struct Regime<A> {
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
        let regimes = Regimes::new(Regime { algorithm, table: Arc::new(table), since: Micros::ZERO });
        let secrets = Secrets::draw();
        let everybodys = secrets.fingerprint(&AsText(&[]));
        let ahead = Ahead::new(SHARDS, max_waiting);
        Keyed { secrets, everybodys, regimes, changing: Mutex::new(()), ahead, settings }
    }

    pub(crate) fn current(&self) -> &Regime<A> {
        self.regimes.get(self.regimes.current())
    }

    pub(crate) fn stats(&self, now: Micros) -> Stats {
        let Regime { algorithm, table, .. } = self.current();
        let stats = table.stats_with(table.sketch().stats(|cell| algorithm.idle_at(cell), now));
        Stats { bytes: self.bytes(), ..stats }
    }

    /// The memory of the limiter, with the tables of earlier settings, which are kept.
    fn bytes(&self) -> usize {
        let (mut bytes, mut before) = (size_of::<Self>() + self.ahead.bytes(), None);
        for Regime { table, .. } in self.regimes.all() {
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
    pub(super) fn apply_at_once<V: Verb>(
        &self,
        fingerprint: u64,
        verb: &V,
        when: impl FnOnce() -> When,
    ) -> Option<V::Answer> {
        if self.regimes.current() != FIRST {
            return None;
        }
        let Regime { algorithm, table, .. } = self.regimes.get(FIRST);
        let (regimes, number) = (&self.regimes, FIRST);
        table.apply_at_once(fingerprint, || KeyedStep { algorithm, verb, when: when(), regimes, number })
    }

    /// The short cut by a setting that comes with the call.
    #[inline]
    pub(super) fn apply_plan_at_once<V: Verb>(
        &self,
        plan: &A,
        fingerprint: u64,
        verb: &V,
        when: impl FnOnce() -> When,
    ) -> Option<V::Answer> {
        if self.regimes.current() != FIRST {
            return None;
        }
        let Regime { algorithm, table, .. } = self.regimes.get(FIRST);
        if (plan.words(), algorithm.words()) != (1, 1) {
            return None;
        }
        let (regimes, number) = (&self.regimes, FIRST);
        let step = || KeyedStep { algorithm: plan, verb, when: when(), regimes, number };
        table.apply_at_once(fingerprint, step)
    }

    /// The long way, for newcomers, larger states, later settings, and those who did not get through at once.
    pub(super) fn apply<V: Verb>(
        &self,
        plan: Option<&A>,
        fingerprint: u64,
        verb: &V,
        when: When,
    ) -> V::Answer {
        loop {
            let answer = if self.is_marked() {
                ahead::apply(self, plan, fingerprint, verb, when)
            } else {
                self.apply_while(false, plan, fingerprint, verb, when)
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    /// Does it to the state, as long as nobody sets the mark or takes it away.
    fn apply_while<V: Verb>(
        &self,
        marked: bool,
        plan: Option<&A>,
        fingerprint: u64,
        verb: &V,
        when: When,
    ) -> Option<V::Answer> {
        loop {
            let number = self.regimes.current();
            if is_marked(number) != marked {
                return None;
            }
            let Regime { algorithm, table, since } = self.regimes.get(number);
            let plan = plan.filter(|plan| plan.words() == algorithm.words());
            let (algorithm, when) = (plan.unwrap_or(algorithm), when.not_before(*since));
            let step = || KeyedStep { algorithm, verb, when, regimes: &self.regimes, number };
            let at_once = if number == FIRST { None } else { table.apply_at_once(fingerprint, step) };
            let answer = at_once.or_else(|| table.apply(fingerprint, &step()));
            if answer.is_some() {
                return answer;
            }
        }
    }

    /// Carries out a verb that may give back, for one key of a policy.
    pub(crate) fn apply_to<V: Verb>(&self, key: Key<'_>, verb: &V, when: When) -> V::Answer {
        let fingerprint = self.fingerprint_of(key);
        let answer = self.apply(None, fingerprint, verb, when);
        self.current().table.look_for_idle_again(fingerprint);
        answer
    }

    pub(super) fn look_for_idle_again<Q: Hash + ?Sized>(&self, key: &Q) {
        self.current().table.look_for_idle_again(self.secrets.fingerprint(key));
    }
}

impl<A: Algorithm> Home for Keyed<A> {
    type Algorithm = A;

    fn ahead(&self) -> &Ahead<A> {
        &self.ahead
    }

    fn algorithm(&self) -> &A {
        &self.current().algorithm
    }

    fn is_marked(&self) -> bool {
        is_marked(self.regimes.current())
    }

    fn mark(&self) {
        self.regimes.mark();
    }

    fn unmark(&self) {
        self.regimes.unmark();
    }

    fn gave_back(&self, fingerprint: u64) {
        self.current().table.look_for_idle_again(fingerprint);
    }

    fn apply_under_lock<V: Verb>(
        &self,
        plan: Option<&A>,
        fingerprint: u64,
        verb: &V,
        when: When,
    ) -> V::Answer {
        loop {
            if let Some(answer) = self.apply_while(self.is_marked(), plan, fingerprint, verb, when) {
                return answer;
            }
        }
    }
}
