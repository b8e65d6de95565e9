//! Permits and their wait queue, two threads: acquire, wait, release, give up and resize.
//!
//! A lost wake-up leaves a thread parked for ever, which loom reports as a deadlock.

use std::future::poll_fn;
use std::sync::Arc as StateCell;
use std::task::{Context, Poll, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};

use super::{INTERRUPTIONS, both, model};
use crate::concurrency::slots::{Acquiring, Slots};
use crate::wait::block;

/// Permits, and how many of them are in use: never more than `most`.
struct Site {
    slots: Slots,
    at_work: AtomicU32,
    most: u32,
}

fn site(limit: u32, most: u32) -> Arc<Site> {
    Arc::new(Site { slots: Slots::new(limit, 2), at_work: AtomicU32::new(0), most })
}

impl Site {
    /// Uses `cost` permits that were acquired, and releases them.
    fn work(&self, cost: u32) {
        let others = self.at_work.fetch_add(cost, Ordering::Relaxed);
        assert!(others + cost <= self.most, "{cost} more than {others}");
        self.at_work.fetch_sub(cost, Ordering::Relaxed);
        self.slots.give_back(cost);
    }

    /// Ends the use of a permit that was acquired without [`Site::work`].
    fn work_ends(&self) {
        self.at_work.fetch_sub(1, Ordering::Relaxed);
        self.slots.give_back(1);
    }

    /// Acquires permits as a limiter does: immediately, or after waiting in the queue.
    fn acquire(&self, cost: u32) {
        if !self.slots.try_take(cost) {
            let mut place = Acquiring::new(&self.slots, cost);
            block(poll_fn(|cx| place.poll(cx))).expect("the waiter passes eventually");
        }
    }

    fn acquire_and_work(&self, cost: u32) {
        self.acquire(cost);
        self.work(cost);
    }

    /// Joins the queue and gives up immediately, unless the permits were granted.
    fn give_up(&self, cost: u32) {
        let mut place = Acquiring::new(&self.slots, cost);
        let first = place.poll(&mut Context::from_waker(Waker::noop()));
        drop(place);
        if first == Poll::Ready(Ok(())) {
            self.work(cost);
        }
    }

    fn assert_at_rest(&self, limit: u32) {
        let usage = self.slots.usage();
        assert_eq!((usage.limit, usage.in_use, usage.waiting), (limit, 0, 0));
        assert!(self.slots.try_take(limit), "the waiters bit is clear and every permit is free");
    }
}

#[test]
fn two_acquirers_never_exceed_the_limit() {
    for cost in [1, 2] {
        model(INTERRUPTIONS, move || {
            let site = site(2, 2);
            both(&site, |site| site.acquire_and_work(2), move |site| site.acquire_and_work(cost));
            site.assert_at_rest(2);
        });
    }
}

#[test]
fn last_permit_is_taken_once() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        let taken = |site: &Site| site.slots.try_take(1);
        let (one, other) = both(&site, taken, taken);
        assert!(one != other, "exactly one gets the permit");
        site.slots.give_back(1);
        site.assert_at_rest(1);
    });
}

#[test]
fn release_wakes_a_waiter_that_is_joining_the_queue() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        site.acquire(1);
        both(&site, |site| site.acquire_and_work(1), |site| site.slots.give_back(1));
        site.assert_at_rest(1);
    });
}

/// The waiter gives up while the permit is handed over to it.
#[test]
fn permit_granted_to_a_waiter_that_gives_up_is_not_lost() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        site.acquire(1);
        both(&site, |site| site.give_up(1), |site| site.slots.give_back(1));
        site.assert_at_rest(1);
    });
}

/// A small request with enough permits waits behind a large one that gives up.
#[test]
fn waiter_that_gives_up_wakes_the_next() {
    model(INTERRUPTIONS, || {
        let site = site(2, 2);
        site.acquire(1);
        both(&site, |site| site.give_up(2), |site| site.acquire_and_work(1));
        site.slots.give_back(1);
        site.assert_at_rest(2);
    });
}

#[test]
fn concurrent_releases_serve_a_waiter_that_needs_both() {
    model(INTERRUPTIONS, || {
        let site = site(2, 2);
        site.acquire(2);
        let mut place = Acquiring::new(&site.slots, 2);
        assert!(place.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        both(&site, |site| site.slots.give_back(1), |site| site.slots.give_back(1));
        assert_eq!(place.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
        drop(place);
        site.work(2);
        site.assert_at_rest(2);
    });
}

#[test]
fn try_acquire_does_not_overtake_a_waiter() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        site.acquire(1);
        let mut place = Acquiring::new(&site.slots, 1);
        assert!(place.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let ((), overtook) = both(&site, |site| site.slots.give_back(1), |site| site.slots.try_take(1));
        assert!(!overtook);
        assert_eq!(place.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
        site.work(1);
        site.assert_at_rest(1);
    });
}

#[test]
fn raised_limit_wakes_a_waiter_that_is_joining_the_queue() {
    model(INTERRUPTIONS, || {
        let site = site(1, 2);
        site.acquire(1);
        site.at_work.fetch_add(1, Ordering::Relaxed);
        both(&site, |site| site.acquire_and_work(1), |site| site.slots.resize(2));
        site.work_ends();
        site.assert_at_rest(2);
    });
}

/// The new limit holds after both, in either order, and no permit was lost or doubled.
#[test]
fn lowered_limit_and_concurrent_release_lose_no_permit() {
    model(INTERRUPTIONS, || {
        let site = site(2, 2);
        site.acquire(2);
        both(&site, |site| site.slots.give_back(2), |site| site.slots.resize(1));
        site.assert_at_rest(1);
    });
}

#[test]
fn pause_and_resume_leaves_no_waiter_behind() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        both(
            &site,
            |site| site.acquire_and_work(1),
            |site| {
                site.slots.resize(0);
                site.slots.resize(1);
            },
        );
        site.assert_at_rest(1);
    });
}

/// What is done under a permit is visible to the next holder of the permit.
#[test]
fn work_under_a_permit_is_visible_to_its_next_holder() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        let work = StateCell::new(loom::cell::UnsafeCell::new(0));
        let add = |site: &Site, work: &loom::cell::UnsafeCell<u32>| {
            site.acquire(1);
            work.with_mut(|_| ()); // loom reports an error if both threads could do this concurrently
            site.slots.give_back(1);
        };
        let same = work.clone();
        both(&site, move |site| add(site, &same), move |site| add(site, &work));
        site.assert_at_rest(1);
    });
}
