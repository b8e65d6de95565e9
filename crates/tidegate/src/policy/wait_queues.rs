//! # Those who wait for a policy
//!
//! A limiter promises a turn by charging its state ahead of the clock. Over several states that would be wrong: alice, who
//! waits an hour for her own bucket, would have everybody's charged an hour ahead, and nobody could pass before. So who waits
//! for a policy has charged nothing. It stands in line at the state that refused it:
//!
//! ```text
//!   everybody        ◄─ 7 ◄─ 9          each by its number, in the order in which they began to wait
//!   user, "alice"    ◄─ 3 ◄─ 5 ◄─ 8     3 tries again when alice's bucket has enough for it
//!   at work          ◄─ 4               4 tries again when a permit comes back
//! ```
//!
//! The rule is one sentence: *nobody takes from a state at which somebody with a lower number stands.* Who only checks has no
//! number, and gives way to everybody. So the first of a line is not starved by those who want less, and whoever tries again
//! asks for everything in one step, as a check does.
//!
//! Those who have not waited must not pay for those who do. The number of a rule's setting, which every decision reads,
//! carries a [mark](crate::versioned) while there is a line at any of the rule's states; who finds it goes the long way, and
//! that is where lines are looked at.

use std::collections::BTreeMap;
use std::task::Waker;

use super::{Limit, Limits};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use tidegate_core::{Algorithm, Micros, RuleId};

/// A state: that of one key under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueId {
    pub(super) rule: RuleId,
    pub(super) fingerprint: u64,
}

/// All the lines of a policy, in cache lines of their own: who comes and goes there must not slow down those who decide.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WaitQueues {
    standing: Mutex<Waiter>,
    /// How many wait. Changed under the lock only.
    waiting: AtomicUsize,
    max_waiting: usize,
}

#[derive(Debug, Default)]
struct Waiter {
    waiters: BTreeMap<u64, Waker>,
    /// By state, who stands there, and when it will try again as far as that is known.
    queues: BTreeMap<QueueId, BTreeMap<u64, Micros>>,
    next: u64,
}

impl WaitQueues {
    pub(super) fn new(max_waiting: usize) -> Self {
        WaitQueues { standing: Mutex::default(), waiting: AtomicUsize::new(0), max_waiting }
    }

    pub(super) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// How many wait.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// A number, and how to reach whoever has it. `None` if too many wait.
    pub(super) fn enter(&self, waker: &Waker) -> Option<u64> {
        let mut standing = lock(&self.standing);
        if standing.waiters.len() >= self.max_waiting {
            return None;
        }
        let number = standing.next;
        standing.next += 1;
        standing.waiters.insert(number, waker.clone());
        self.waiting.store(standing.waiters.len(), Ordering::Release);
        Some(number)
    }

    /// Gives a number up. Its holder stands nowhere any more.
    pub(super) fn exit(&self, number: u64) {
        let mut standing = lock(&self.standing);
        let waker = standing.waiters.remove(&number);
        self.waiting.store(standing.waiters.len(), Ordering::Release);
        drop(standing);
        drop(waker); // without the lock: it may run anything
    }

    /// Whether `number` is first wherever it stands. If not, `waker` is who will be woken when that may have changed.
    pub(super) fn is_first(&self, number: u64, spots: impl Iterator<Item = QueueId>, waker: &Waker) -> bool {
        let mut standing = lock(&self.standing);
        let known = standing.waiters.get_mut(&number).filter(|known| !known.will_wake(waker));
        let before = known.map(|known| std::mem::replace(known, waker.clone()));
        let mut firsts =
            spots.map(|queue_id| standing.first(queue_id).is_none_or(|(first, _)| first == number));
        let first = firsts.all(|first| first);
        drop(standing);
        drop(before);
        first
    }

    /// When the first who stands at `queue_id` will try again, if that is somebody to whom the holder of `number`, or who has
    /// none, must give way.
    pub(super) fn first_before(&self, queue_id: QueueId, number: Option<u64>) -> Option<Micros> {
        let (first, again) = lock(&self.standing).first(queue_id)?;
        number.is_none_or(|number| first < number).then_some(again)
    }

    /// Wakes the first at each of a rule's states, or at one of them: something was given back there.
    pub(super) fn call(&self, rule: RuleId, fingerprint: Option<u64>) {
        let (least, most) = fingerprint.map_or((0, u64::MAX), |one| (one, one));
        let spots = QueueId { rule, fingerprint: least }..=QueueId { rule, fingerprint: most };
        let standing = lock(&self.standing);
        let firsts = standing.queues.range(spots).filter_map(|(queue_id, _)| standing.first_waker(*queue_id));
        let called: Vec<Waker> = firsts.collect();
        drop(standing);
        called.into_iter().for_each(Waker::wake);
    }
}

impl Waiter {
    fn first(&self, queue_id: QueueId) -> Option<(u64, Micros)> {
        let (number, again) = self.queues.get(&queue_id)?.first_key_value()?;
        Some((*number, *again))
    }

    fn first_waker(&self, queue_id: QueueId) -> Option<Waker> {
        self.waiters.get(&self.first(queue_id)?.0).cloned()
    }

    fn has_lines(&self, rule: RuleId) -> bool {
        let spots = QueueId { rule, fingerprint: 0 }..=QueueId { rule, fingerprint: u64::MAX };
        self.queues.range(spots).next().is_some()
    }
}

impl<A: Algorithm> Limits<A> {
    /// Takes `number`'s place in the line at `queue_id`, or says anew when its holder will try again.
    pub(super) fn enqueue(&self, number: u64, queue_id: QueueId, again: Micros) {
        let mut standing = lock(&self.queues.standing);
        if let Limit::Rate(keyed) = self.limit(queue_id.rule)
            && !standing.has_lines(queue_id.rule)
        {
            keyed.versions.set_slow_path();
        }
        standing.queues.entry(queue_id).or_default().insert(number, again);
    }

    /// Gives up `number`'s place in the line at `queue_id`, and calls whoever is first there now.
    pub(super) fn dequeue(&self, number: u64, queue_id: QueueId) {
        let next = self.remove(number, queue_id);
        if let Some(next) = next {
            next.wake();
        }
    }

    fn remove(&self, number: u64, queue_id: QueueId) -> Option<Waker> {
        let mut standing = lock(&self.queues.standing);
        let wait_queues = standing.queues.get_mut(&queue_id)?;
        let was_first = wait_queues.first_key_value().is_some_and(|(first, _)| *first == number);
        wait_queues.remove(&number)?;
        if wait_queues.is_empty() {
            standing.queues.remove(&queue_id);
        }
        if let Limit::Rate(keyed) = self.limit(queue_id.rule)
            && !standing.has_lines(queue_id.rule)
        {
            keyed.versions.clear_slow_path();
        }
        if was_first { standing.first_waker(queue_id) } else { None }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Who decides takes the long way only as long as somebody stands in line at the same rule.

    use super::super::{Limit, Policy};
    use crate::clock::ManualClock;
    use crate::gate::Part;
    use crate::versioned::is_slow_path;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;
    use tidegate_core::{Quota, Rule, RuleId};

    const RULES: [RuleId; 2] = [RuleId(0), RuleId(1)];

    fn marks(policy: &Policy<Rule, ManualClock>) -> [bool; 2] {
        RULES.map(|rule| match policy.shared.limit(rule) {
            Limit::Rate(keyed) => is_slow_path(keyed.versions.current()),
            Limit::Concurrency(_) => false,
        })
    }

    #[test]
    fn a_rule_is_marked_while_somebody_stands_at_one_of_its_states() {
        let clock = ManualClock::new();
        let rules = Policy::builder().rule("slow", Quota::per_hour(1)).rule("fast", Quota::per_second(1));
        let policy = rules.build().expect("a valid policy").with_clock(clock.clone());
        let [slow, fast] = RULES.map(Part::of);
        let (a, b) = ([slow.key("a"), fast], [slow.key("b")]);
        assert!(policy.check(&a).is_ok_and(|admission| admission.is_allowed()));
        assert!(policy.check(&b).is_ok_and(|admission| admission.is_allowed()));
        let mut cx = Context::from_waker(Waker::noop());
        {
            let (mut first, mut second) = (pin!(policy.acquire(&a)), pin!(policy.acquire(&b)));
            assert_eq!(marks(&policy), [false, false]);
            assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
            assert_eq!(marks(&policy), [true, false]);
            clock.advance(Duration::from_secs(3_600));
            assert!(policy.check(&[fast]).is_ok_and(|admission| admission.is_allowed()));
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert_eq!(marks(&policy), [true, true], "it stands at the other, and keeps its place");
            clock.advance(Duration::from_secs(1));
            assert!(first.as_mut().poll(&mut cx).is_ready());
            assert_eq!(marks(&policy), [true, false], "somebody stands at another key");
        }
        assert_eq!(marks(&policy), [false, false], "the other has left");
        assert!(policy.shared.queues.standing.lock().is_ok_and(|standing| standing.queues.is_empty()));
    }
}
