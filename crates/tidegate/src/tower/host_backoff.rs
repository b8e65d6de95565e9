//! # Holding off
//!
//! Whoever asks us to wait is not called again before that time is up, by anybody who shares the layer: that one
//! request was refused says the same of the next. Each host is held off from on its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::{Request, Response};

use crate::http::{Head, KeyPart, KeyText, Timer, by, retry_after_of};
use tidegate_core::{Micros, Wait};

/// So many hosts are remembered.
const MOST_HOSTS: usize = 1_024;

/// Whom not to call yet.
pub(super) struct HostBackoff {
    pub(super) timer: Arc<dyn Timer>,
    until: Mutex<HashMap<Vec<u8>, Micros>>,
    /// Whether there are any. Mostly there are none, and nobody looks further.
    any: AtomicBool,
}

impl HostBackoff {
    pub(super) fn new(timer: Arc<dyn Timer>) -> Self {
        HostBackoff { timer, until: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// For how long this host is not to be called; `None` if it may be now.
    pub(super) fn left<A>(&self, request: &Request<A>) -> Option<Wait> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let until = *self.lock().get(&host_of(request))?;
        let left = until.since(self.timer.now());
        (left > 0).then_some(Wait::micros(left))
    }

    /// Heeds what the response of a host says.
    pub(super) fn heed<B>(&self, host: Vec<u8>, response: &Response<B>) {
        let Some(wait) = retry_after_of(response.status(), response.headers()) else { return };
        let now = self.timer.now();
        let until = now.plus(Micros::from(wait).get());
        let mut holds = self.lock();
        if holds.len() >= MOST_HOSTS && !holds.contains_key(&host) {
            make_room(&mut holds, now);
        }
        let longest = holds.entry(host).or_insert(until);
        *longest = until.max(*longest);
        self.any.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Micros>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets those whose time is up, and if that is nobody, the one whose time is up first.
fn make_room(holds: &mut HashMap<Vec<u8>, Micros>, now: Micros) {
    holds.retain(|_, until| *until > now);
    if holds.len() >= MOST_HOSTS {
        let first = holds.iter().min_by_key(|(_, until)| **until).map(|(host, _)| host.clone());
        first.map(|host| holds.remove(&host));
    }
}

/// Who is called. Requests that do not say are all of one host.
pub(super) fn host_of<A>(request: &Request<A>) -> Vec<u8> {
    let mut key = KeyText::new();
    let _ = by::host().write(&Head::of(request), &mut key);
    key.bytes().to_vec()
}

/// As long as [`Wait`] tells, for sleeping.
pub(super) fn at_most(wait: Wait, longest: Duration) -> Option<Duration> {
    Some(wait.duration()).filter(|wait| *wait <= longest)
}

impl fmt::Debug for HostBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holds").field("hosts", &self.lock().len()).finish_non_exhaustive()
    }
}
