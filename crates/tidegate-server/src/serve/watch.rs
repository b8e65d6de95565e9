//! # Who has been silent for too long
//!
//! A timer for each request would cost more than the answer. Instead each thread has a number that goes up a few times per
//! time-out; a connection notes it when something happens, and somebody compares.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use super::Settings;

/// What a thread knows of one connection, and can tell it.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The number of the thread when something last happened.
    active: AtomicU64,
    is_stalled: AtomicU8,
    /// What it has been told.
    told: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    /// To answer what has arrived, and go.
    Finish,
    /// To go.
    Leave,
}

/// How many ticks make which time-out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    pub(crate) tick: Duration,
    idle: u64,
    stalled: u64,
}

/// A time-out is so many ticks, so it is this part too long at most.
const TICKS: u32 = 8;

impl Ticks {
    pub(crate) fn of(settings: &Settings) -> Self {
        let shorter = settings.idle.min(settings.stalled);
        let tick = (shorter / TICKS).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let ticks = |timeout: Duration| {
            u64::try_from(timeout.as_micros().div_ceil(tick.as_micros())).unwrap_or(u64::MAX)
        };
        Ticks { tick, idle: ticks(settings.idle), stalled: ticks(settings.stalled) }
    }

    /// Whether it has been silent for too long.
    pub(crate) fn is_over(&self, watched: &Watched, now: u64) -> bool {
        let silent = now.saturating_sub(watched.active.load(Ordering::Relaxed));
        let is_stalled = watched.is_stalled.load(Ordering::Relaxed) != 0;
        silent > if is_stalled { self.stalled } else { self.idle }
    }
}

impl Watched {
    pub(crate) fn new(now: u64) -> Self {
        let (is_stalled, told, waker) = Default::default();
        Watched { active: AtomicU64::new(now), is_stalled, told, waker }
    }

    /// Something was read.
    pub(crate) fn active(&self, now: u64) {
        self.active.store(now, Ordering::Relaxed);
    }

    /// It waits for the client to take its replies.
    pub(crate) fn stalled(&self, now: u64) {
        if self.is_stalled.swap(1, Ordering::Relaxed) == 0 {
            self.active(now);
        }
    }

    /// The client took some of them.
    pub(crate) fn moved(&self, now: u64) {
        if self.is_stalled.load(Ordering::Relaxed) != 0 {
            self.is_stalled.store(0, Ordering::Relaxed);
            self.active(now);
        }
    }

    /// Tells the connection, and wakes it.
    pub(crate) fn tell(&self, told: Told) {
        let told = match told {
            Told::Nothing => return,
            Told::Finish => 1,
            Told::Leave => 2,
        };
        self.told.fetch_max(told, Ordering::SeqCst);
        if let Some(waker) = self.waker().take() {
            waker.wake();
        }
    }

    pub(crate) fn told(&self) -> Told {
        match self.told.load(Ordering::SeqCst) {
            0 => Told::Nothing,
            1 => Told::Finish,
            _ => Told::Leave,
        }
    }

    /// What it has been told; if nothing, it will be woken.
    pub(crate) fn poll_told(&self, cx: &Context<'_>) -> Told {
        let mut waker = self.waker();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        self.told()
    }

    fn waker(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
