//! A permit at an even pace, when there is nothing to wait for.

use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bench_harness::case::{Case, each};
use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::measure;
use bench_harness::turns::Turns;
use leaky_bucket::RateLimiter;
use tidegate::{Limiter, Pacer, Quota};

const LEAKY_BUCKET: &str = "leaky-bucket";
const TIDEGATE: &str = "**tidegate**, Pacer";
const BLOCKING: &str = "**tidegate**, Pacer, acquire_blocking";
const LIMITER: &str = "**tidegate**, Limiter";

const ACQUIRE: &str = "acquire";
const ACQUIRE_TWO: &str = "acquire, 2 threads";

pub(crate) fn section(turns: &Turns) -> Section {
    let cases = [
        leaky_bucket(ACQUIRE, 1),
        pacer(ACQUIRE, 1),
        pacer_blocking(ACQUIRE),
        limiter(ACQUIRE, 1),
        leaky_bucket(ACQUIRE_TWO, 2),
        pacer(ACQUIRE_TWO, 2),
        limiter(ACQUIRE_TWO, 2),
    ];
    let title = "Waiting for a rate, when there is nothing to wait for";
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for one `acquire` that is ready at its first poll, or one `acquire_blocking` that does not block, on \
               each thread.",
        measured: measure(title, &cases, turns),
        goals: vec![Goal::same(ACQUIRE, TIDEGATE, LEAKY_BUCKET, 0.7, 0.5)],
    }
}

/// As it is made by default, with more tokens than a run can use.
fn leaky_bucket(what: &'static str, threads: usize) -> Case {
    let many = 1 << 40;
    let interval = Duration::from_millis(100);
    let limiter = RateLimiter::builder().max(many).initial(many).refill(1 << 30).interval(interval).build();
    Case::new(what, LEAKY_BUCKET, move |n| {
        each(&limiter, n, |limiter| matches!(first_poll(limiter.acquire_one()), Poll::Ready(())))
    })
    .threads(threads)
}

/// A billion a second: the next is due a thousandth of a microsecond later.
fn pacer(what: &'static str, threads: usize) -> Case {
    let pacer = Pacer::new(Quota::per_second(1_000_000_000));
    Case::new(what, TIDEGATE, move |n| {
        each(&pacer, n, |pacer| matches!(first_poll(pacer.acquire()), Poll::Ready(Ok(_))))
    })
    .threads(threads)
}

/// The same, for threads.
fn pacer_blocking(what: &'static str) -> Case {
    let pacer = Pacer::new(Quota::per_second(1_000_000_000));
    Case::new(what, BLOCKING, move |n| {
        each(&pacer, n, |pacer| black_box(pacer.request().acquire_blocking()).is_ok())
    })
}

/// A million a second, and a billion at once.
fn limiter(what: &'static str, threads: usize) -> Case {
    let limiter = Limiter::new(Quota::per_second(1_000_000).burst(1_000_000_000));
    Case::new(what, LIMITER, move |n| {
        each(&limiter, n, |limiter| matches!(first_poll(limiter.acquire()), Poll::Ready(Ok(_))))
    })
    .threads(threads)
}

#[inline]
fn first_poll<F: Future>(future: F) -> Poll<F::Output> {
    black_box(pin!(future).poll(&mut Context::from_waker(Waker::noop())))
}
