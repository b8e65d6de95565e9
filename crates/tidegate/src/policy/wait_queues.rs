//! # Wait queues of a policy
//!
//! A single limiter grants a reservation by charging its state ahead of the clock. Over several states that would be
//! wrong: if alice waits an hour for her own bucket, the global bucket would be charged an hour ahead, and no other
//! request could pass before. So a waiter of a policy charges nothing. It waits in the queue of the state that refused
//! it:
//!
//! ```text
//!   global           ◄─ 7 ◄─ 9          waiters by number, in the order in which they began to wait
//!   user, "alice"    ◄─ 3 ◄─ 5 ◄─ 8     3 tries again when alice's bucket has enough for it
//!   concurrency      ◄─ 4               4 tries again when a permit is returned
//! ```
//!
//! There is one rule: *a request takes nothing from a state while a waiter with a lower number is in its queue.* A
//! plain check has no number and yields to every waiter. So requests of lower cost cannot starve the first waiter of a
//! queue. A retry asks for all parts in one step, as a check does.
//!
//! Requests that do not wait must not pay for queues. The version number of a rule, which every decision reads, carries
//! a [slow-path flag](crate::versioned) while any state of the rule has a queue. A decision that finds the flag takes
//! the slow path, and only the slow path looks at queues.
//!
//! The price: the next waiter is woken when the one before it has passed. A limit with a burst of 1 loses the
//! quota that refills while a waiter wakes up. The length of a wait depends on the waiters ahead, so a wait
//! is refused in advance only for reasons that no other waiter can change.

use std::collections::BTreeMap;
use std::task::Waker;

use super::{Limit, RuleStates};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use tidegate_core::{Algorithm, Micros, RuleId};

/// Identifies the queue of one state: one key under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueId {
    pub(super) rule: RuleId,
    pub(super) fingerprint: u64,
}

/// All wait queues of a policy.
///
/// Aligned to cache lines of its own, so that waiters that come and go do not slow down decisions.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WaitQueues {
    queues: Mutex<Queues>,
    /// The number of waiters. Changed only under the lock.
    waiting: AtomicUsize,
    max_waiting: usize,
}

#[derive(Debug, Default)]
struct Queues {
    waiters: BTreeMap<u64, Waker>,
    /// For each state, the waiters in its queue, and when each will try again as far as known.
    queues: BTreeMap<QueueId, BTreeMap<u64, Micros>>,
    next: u64,
}

impl WaitQueues {
    pub(super) fn new(max_waiting: usize) -> Self {
        WaitQueues { queues: Mutex::default(), waiting: AtomicUsize::new(0), max_waiting }
    }

    pub(super) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Returns the number of waiters.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Registers a waiter and returns its number; `None` if too many wait.
    pub(super) fn enter(&self, waker: &Waker) -> Option<u64> {
        let mut queues = lock(&self.queues);
        if queues.waiters.len() >= self.max_waiting {
            return None;
        }
        let number = queues.next;
        queues.next += 1;
        queues.waiters.insert(number, waker.clone());
        self.waiting.store(queues.waiters.len(), Ordering::Release);
        Some(number)
    }

    /// Removes the registration of a waiter, which must be in no queue any more.
    pub(super) fn exit(&self, number: u64) {
        let mut queues = lock(&self.queues);
        let waker = queues.waiters.remove(&number);
        self.waiting.store(queues.waiters.len(), Ordering::Release);
        drop(queues);
        drop(waker); // without the lock: dropping a waker may run arbitrary code
    }

    /// Whether `number` is first in all of its queues. If not, `waker` is woken when that may have changed.
    pub(super) fn is_first(
        &self,
        number: u64,
        queue_ids: impl Iterator<Item = QueueId>,
        waker: &Waker,
    ) -> bool {
        let mut queues = lock(&self.queues);
        let known = queues.waiters.get_mut(&number).filter(|known| !known.will_wake(waker));
        let before = known.map(|known| std::mem::replace(known, waker.clone()));
        let mut firsts =
            queue_ids.map(|queue_id| queues.first(queue_id).is_none_or(|(first, _)| first == number));
        let first = firsts.all(|first| first);
        drop(queues);
        drop(before);
        first
    }

    /// When the first waiter at `queue_id` tries again, if the request must yield to it.
    ///
    /// A request with a `number` yields to waiters with lower numbers. A request without a number yields to every
    /// waiter.
    pub(super) fn first_before(&self, queue_id: QueueId, number: Option<u64>) -> Option<Micros> {
        let (first, again) = lock(&self.queues).first(queue_id)?;
        number.is_none_or(|number| first < number).then_some(again)
    }

    /// Wakes the first waiter of one state, or of each state of a rule.
    ///
    /// Called when quota may have become available there.
    pub(super) fn call(&self, rule: RuleId, fingerprint: Option<u64>) {
        let (least, most) = fingerprint.map_or((0, u64::MAX), |one| (one, one));
        let queue_ids = QueueId { rule, fingerprint: least }..=QueueId { rule, fingerprint: most };
        let queues = lock(&self.queues);
        let firsts = queues.queues.range(queue_ids).filter_map(|(queue_id, _)| queues.first_waker(*queue_id));
        let called: Vec<Waker> = firsts.collect();
        drop(queues);
        called.into_iter().for_each(Waker::wake);
    }
}

impl Queues {
    fn first(&self, queue_id: QueueId) -> Option<(u64, Micros)> {
        let (number, again) = self.queues.get(&queue_id)?.first_key_value()?;
        Some((*number, *again))
    }

    fn first_waker(&self, queue_id: QueueId) -> Option<Waker> {
        self.waiters.get(&self.first(queue_id)?.0).cloned()
    }

    fn has_lines(&self, rule: RuleId) -> bool {
        let queue_ids = QueueId { rule, fingerprint: 0 }..=QueueId { rule, fingerprint: u64::MAX };
        self.queues.range(queue_ids).next().is_some()
    }
}

impl<A: Algorithm> RuleStates<A> {
    /// Adds waiter `number` to the queue at `queue_id`, or updates when it will try again.
    pub(super) fn enqueue(&self, number: u64, queue_id: QueueId, again: Micros) {
        let mut queues = lock(&self.queues.queues);
        if let Limit::Rate(keyed) = self.limit(queue_id.rule)
            && !queues.has_lines(queue_id.rule)
        {
            keyed.versions.set_slow_path();
        }
        queues.queues.entry(queue_id).or_default().insert(number, again);
    }

    /// Removes waiter `number` from the queue at `queue_id`, and wakes the new first waiter.
    pub(super) fn dequeue(&self, number: u64, queue_id: QueueId) {
        let next = self.remove(number, queue_id);
        if let Some(next) = next {
            next.wake();
        }
    }

    fn remove(&self, number: u64, queue_id: QueueId) -> Option<Waker> {
        let mut queues = lock(&self.queues.queues);
        let wait_queues = queues.queues.get_mut(&queue_id)?;
        let was_first = wait_queues.first_key_value().is_some_and(|(first, _)| *first == number);
        wait_queues.remove(&number)?;
        if wait_queues.is_empty() {
            queues.queues.remove(&queue_id);
        }
        if let Limit::Rate(keyed) = self.limit(queue_id.rule)
            && !queues.has_lines(queue_id.rule)
        {
            keyed.versions.clear_slow_path();
        }
        if was_first { queues.first_waker(queue_id) } else { None }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Decisions take the slow path only while a waiter is in a queue of the same rule.

    use super::super::{Limit, Policy};
    use crate::clock::ManualClock;
    use crate::gate::Part;
    use crate::versioned::is_slow_path;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;
    use tidegate_core::{Micros, Quota, Rule, RuleId};

    const RULES: [RuleId; 2] = [RuleId(0), RuleId(1)];

    fn marks(policy: &Policy<Rule, ManualClock>) -> [bool; 2] {
        RULES.map(|rule| match policy.shared.limit(rule) {
            Limit::Rate(keyed) => is_slow_path(keyed.versions.current()),
            Limit::Concurrency(_) => false,
        })
    }

    #[test]
    fn slow_path_flag_is_set_while_a_waiter_is_queued_at_the_rule() {
        let clock = ManualClock::new();
        let rules = Policy::builder().rule("slow", Quota::per_hour(1)).rule("fast", Quota::per_second(1));
        let policy = rules.clock(clock.clone()).build().expect("a valid policy");
        let [slow, fast] = RULES.map(Part::of);
        let (a, b) = ([slow.key("a"), fast], [slow.key("b")]);
        assert!(policy.check_parts(&a).is_ok_and(|admission| admission.is_allowed()));
        assert!(policy.check_parts(&b).is_ok_and(|admission| admission.is_allowed()));
        let mut cx = Context::from_waker(Waker::noop());
        {
            let (mut first, mut second) =
                (pin!(policy.wait(&a, Micros::MAX)), pin!(policy.wait(&b, Micros::MAX)));
            assert_eq!(marks(&policy), [false, false]);
            assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
            assert_eq!(marks(&policy), [true, false]);
            clock.advance(Duration::from_secs(3_600));
            assert!(policy.check_parts(&[fast]).is_ok_and(|admission| admission.is_allowed()));
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert_eq!(marks(&policy), [true, true], "the waiter is queued at both rules");
            clock.advance(Duration::from_secs(1));
            assert!(first.as_mut().poll(&mut cx).is_ready());
            assert_eq!(marks(&policy), [true, false], "another key of the rule still has a waiter");
        }
        assert_eq!(marks(&policy), [false, false], "no waiters are left");
        assert!(policy.shared.queues.queues.lock().is_ok_and(|queues| queues.queues.is_empty()));
    }
}
