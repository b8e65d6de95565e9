//! Waiting for a policy, two threads: one joins the wait queue, the other does what the first waits for.
//!
//! Time stands still, so no timer wakes a waiter: a lost wake-up leaves a thread waiting for ever, which loom reports
//! as a deadlock. Threads wait on a condition variable of their own here and do not park: loom forgets an unpark that
//! arrives while the thread waits for a lock, and a waiter in the queue tries once more between storing its waker and
//! going to sleep.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc as Shared;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Arc, Condvar, Mutex};
use tidegate_core::{ClockKind, Micros, Quota, RuleId, TokenBucket};

use super::{both, model};
use crate::clock::Clock;
use crate::gate::Part;
use crate::policy::{Policy, PolicyBuilder};
use crate::wait::Sleep;

/// A clock that stands still, with a sleep that never ends.
#[derive(Clone, Copy)]
struct Still;

impl Clock for Still {
    const KIND: ClockKind = ClockKind::Monotonic;

    fn now(&self) -> Micros {
        Micros::ZERO
    }
}

impl Sleep for Still {
    type Sleeping = std::future::Pending<()>;

    fn sleep_until(&self, _: Micros) -> Self::Sleeping {
        std::future::pending()
    }
}

type Waited = Policy<TokenBucket, Still>;

const RATE: RuleId = RuleId(0);
const AT_WORK: RuleId = RuleId(1);
/// The number of preemptions. The models are large, so it is small.
const INTERRUPTIONS: usize = 2;

/// Creates a policy with two per hour, of which `used` are used, and two permits.
fn policy(used: u32) -> Arc<Waited> {
    let rules = PolicyBuilder::new().rule("rate", Quota::per_hour(2)).concurrency("at work", 2).max_keys(4);
    let policy = rules.clock(Still).build().expect("a valid policy");
    assert!(policy.check_parts(&[rate(used)]).expect("a valid request").is_allowed());
    Arc::new(policy)
}

fn rate(cost: u32) -> Part<'static> {
    Part::of(RATE).cost(cost)
}

fn at_work(cost: u32) -> Part<'static> {
    Part::of(AT_WORK).cost(cost)
}

fn left(policy: &Waited, part: Part<'_>) -> u64 {
    policy.peek(&[part.cost(0)]).expect("a valid request").remaining()
}

/// Wakes a thread, also one that does not sleep yet.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().expect("no panic");
        while !*rung {
            rung = self.heard.wait(rung).expect("no panic");
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Shared<Self>) {
        *self.rung.lock().expect("no panic") = true;
        self.heard.notify_one();
    }
}

/// Waits until the request passes, and releases its permits.
fn wait_for(policy: &Waited, request: &[Part<'_>]) {
    let bell = Shared::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut waits = pin!(policy.wait(request, Micros::MAX));
    loop {
        match waits.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return drop(answer.expect("the request passes eventually")),
            Poll::Pending => bell.wait(),
        }
    }
}

/// Starts to wait and gives up. Returns whether the request passed before.
fn give_up(policy: &Waited, request: &[Part<'_>]) -> bool {
    let waits = pin!(policy.wait(request, Micros::MAX));
    waits.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn assert_at_rest(policy: &Waited, rate_left: u64) {
    assert_eq!((policy.waiting(), left(policy, rate(0)), left(policy, at_work(0))), (0, rate_left, 2));
    if rate_left > 0 {
        assert!(policy.check_parts(&[rate(1)]).expect("a valid request").is_allowed(), "the queue is empty");
    }
}

#[test]
fn released_permit_wakes_a_waiter_that_is_joining_the_queue() {
    model(INTERRUPTIONS, || {
        let policy = policy(1);
        let busy = policy.check_parts(&[at_work(1)]).expect("a valid request");
        both(&policy, |policy| wait_for(policy, &[rate(1), at_work(2)]), move |_| drop(busy));
        assert_at_rest(&policy, 0);
    });
}

#[test]
fn refund_wakes_a_waiter_that_is_joining_the_queue() {
    model(INTERRUPTIONS, || {
        let policy = policy(2);
        let refund = |policy: &Waited| policy.refund(&[rate(1)]).expect("a valid request");
        both(&policy, |policy| wait_for(policy, &[rate(1)]), refund);
        assert_at_rest(&policy, 0);
    });
}

#[test]
fn raised_limit_wakes_a_waiter_that_is_joining_the_queue() {
    model(INTERRUPTIONS, || {
        let policy = policy(1);
        let busy = policy.check_parts(&[at_work(2)]).expect("a valid request");
        let resize = |policy: &Waited| policy.resize("at work", 3).expect("there is such a rule");
        both(&policy, |policy| wait_for(policy, &[at_work(1)]), resize);
        drop(busy);
        assert_eq!((policy.waiting(), left(&policy, at_work(0))), (0, 3));
    });
}

/// The second request could pass, but waits behind a first that needs two and gives up.
#[test]
fn waiter_that_gives_up_wakes_the_next() {
    model(1, || {
        let policy = policy(1);
        let (passed, ()) =
            both(&policy, |policy| give_up(policy, &[rate(2)]), |policy| wait_for(policy, &[rate(1)]));
        assert!(!passed, "only one is left");
        assert_at_rest(&policy, 0);
    });
}

/// Like the model before, in the queue for permits.
#[test]
fn waiter_that_gives_up_on_permits_wakes_the_next() {
    model(INTERRUPTIONS, || {
        let policy = policy(1);
        let busy = policy.check_parts(&[at_work(1)]).expect("a valid request");
        let (passed, ()) = both(
            &policy,
            |policy| give_up(policy, &[at_work(2)]),
            |policy| wait_for(policy, &[at_work(1), rate(1)]),
        );
        assert!(!passed, "only one is left");
        drop(busy);
        assert_at_rest(&policy, 0);
    });
}

/// A check races with a waiter that joins and leaves the queue.
///
/// The remaining quota shows which was charged.
#[test]
fn waiter_that_gives_up_charges_nothing() {
    model(1, || {
        let policy = policy(1);
        let check = |policy: &Waited| policy.check_parts(&[rate(1)]).expect("a valid request").is_allowed();
        let (passed, checked) = both(&policy, |policy| give_up(policy, &[rate(2)]), check);
        assert!(!passed, "only one is left");
        assert_at_rest(&policy, u64::from(!checked));
    });
}
