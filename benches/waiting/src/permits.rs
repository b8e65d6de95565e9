//! A permit taken and given back, while nobody waits.

use std::hint::black_box;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bench_harness::case::{Case, each};
use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::measure;
use bench_harness::turns::Turns;
use tidegate::{ConcurrencyLimiter, KeyedConcurrencyLimiter};
use tokio::sync::Semaphore;

const FLOOR: &str = "floor: one word";
const TOKIO: &str = "tokio, Semaphore";
const TIDEGATE: &str = "**tidegate**";
const KEYED: &str = "**tidegate**, one key";

const TRY: &str = "try_acquire";
const TRY_TWO: &str = "try_acquire, 2 threads";
const ASYNC: &str = "async, free";

const LIMIT: u32 = 100;

pub(crate) fn section(turns: &Turns) -> Section {
    let cases = [
        floor(TRY, 1),
        tokio(TRY, 1),
        tidegate(TRY, 1),
        keyed(TRY),
        floor(TRY_TWO, 2),
        tokio(TRY_TWO, 2),
        tidegate(TRY_TWO, 2),
        tokio_async(ASYNC),
        tidegate_async(ASYNC),
    ];
    let title = "Permits";
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for taking a permit and giving it back, on each thread.",
        measured: measure(title, &cases, turns),
        goals: [TRY, TRY_TWO, ASYNC].map(|what| Goal::same(what, TIDEGATE, TOKIO, 1.0, 0.7)).into(),
    }
}

/// A cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Word(AtomicU64);

fn floor(what: &'static str, threads: usize) -> Case {
    let word = Word(AtomicU64::new(LIMIT.into()));
    Case::new(what, FLOOR, move |n| {
        each(&word, n, |Word(word)| {
            let taken =
                word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |free| free.checked_sub(1)).is_ok();
            if black_box(taken) {
                word.fetch_add(1, Ordering::Release);
            }
            taken
        })
    })
    .threads(threads)
}

fn tokio(what: &'static str, threads: usize) -> Case {
    let slots = Semaphore::new(LIMIT as usize);
    Case::new(what, TOKIO, move |n| each(&slots, n, |slots| black_box(slots.try_acquire()).is_ok()))
        .threads(threads)
}

fn tidegate(what: &'static str, threads: usize) -> Case {
    let slots = ConcurrencyLimiter::new(LIMIT);
    Case::new(what, TIDEGATE, move |n| each(&slots, n, |slots| black_box(slots.try_acquire()).is_ok()))
        .threads(threads)
}

fn keyed(what: &'static str) -> Case {
    let slots = KeyedConcurrencyLimiter::<u64>::new(LIMIT);
    Case::new(what, KEYED, move |n| each(&slots, n, |slots| black_box(slots.try_acquire(&7)).is_ok()))
}

fn tokio_async(what: &'static str) -> Case {
    let slots = Semaphore::new(LIMIT as usize);
    Case::new(what, TOKIO, move |n| each(&slots, n, |slots| is_at_once(slots.acquire())))
}

fn tidegate_async(what: &'static str) -> Case {
    let slots = ConcurrencyLimiter::new(LIMIT);
    Case::new(what, TIDEGATE, move |n| each(&slots, n, |slots| is_at_once(slots.acquire())))
}

/// Whether a permit is there at the first poll; it is given back.
#[inline]
fn is_at_once<T, E>(acquire: impl Future<Output = Result<T, E>>) -> bool {
    let first = pin!(acquire).poll(&mut Context::from_waker(Waker::noop()));
    matches!(black_box(first), Poll::Ready(Ok(_)))
}
