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
fn one_of_two_waits_for_the_other() {
    for cost in [1, 2] {
        model(INTERRUPTIONS, move || {
            let site = site(2, 2);
            both(&site, |site| site.acquire_and_work(2), move |site| site.acquire_and_work(cost));
            site.assert_at_rest(2);
        });
    }
}

#[test]
fn the_last_slot_is_taken_once() {
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
fn whoever_gives_back_calls_whoever_is_about_to_wait() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        site.acquire(1);
        both(&site, |site| site.acquire_and_work(1), |site| site.slots.give_back(1));
        site.assert_at_rest(1);
    });
}

/// The waiter gives up while the permit is handed over to it.
#[test]
fn a_slot_handed_to_somebody_who_gives_up_is_not_lost() {
    model(INTERRUPTIONS, || {
        let site = site(1, 1);
        site.acquire(1);
        both(&site, |site| site.give_up(1), |site| site.slots.give_back(1));
        site.assert_at_rest(1);
    });
}

/// A small request with enough permits waits behind a large one that gives up.
#[test]
fn who_gives_up_calls_whoever_was_behind() {
    model(INTERRUPTIONS, || {
        let site = site(2, 2);
        site.acquire(1);
        both(&site, |site| site.give_up(2), |site| site.acquire_and_work(1));
        site.slots.give_back(1);
        site.assert_at_rest(2);
    });
}

#[test]
fn two_give_backs_at_once_serve_whoever_waits_for_both() {
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
fn nobody_from_outside_overtakes_whoever_waits() {
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
fn a_higher_limit_calls_whoever_is_about_to_wait() {
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
fn a_lower_limit_and_a_give_back_meet() {
    model(INTERRUPTIONS, || {
        let site = site(2, 2);
        site.acquire(2);
        both(&site, |site| site.slots.give_back(2), |site| site.slots.resize(1));
        site.assert_at_rest(1);
    });
}

#[test]
fn a_pause_that_ends_leaves_nobody_behind() {
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
fn the_work_of_one_is_seen_by_the_next() {
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
