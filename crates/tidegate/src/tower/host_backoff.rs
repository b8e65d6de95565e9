//! # Host backoff
//!
//! A host that asks for a wait is not called again before the wait is over, by any client that shares the layer: if one
//! request was refused, the next one would be, too. Each host has a backoff of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::{Request, Response};

use crate::http::{Head, KeyPart, KeyText, Timer, by, retry_after_of};
use tidegate_core::{Micros, Wait};

/// The maximum number of hosts that are remembered.
const MOST_HOSTS: usize = 1_024;

/// The hosts that must not be called yet, and until when.
pub(super) struct HostBackoff {
    pub(super) timer: Arc<dyn Timer>,
    until: Mutex<HashMap<Vec<u8>, Micros>>,
    /// Whether a host has ever asked for a wait. If not, the map is not locked.
    any: AtomicBool,
}

impl HostBackoff {
    pub(super) fn new(timer: Arc<dyn Timer>) -> Self {
        HostBackoff { timer, until: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// How long this host must not be called; `None` if it may be called now.
    pub(super) fn left<A>(&self, request: &Request<A>) -> Option<Wait> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let until = *self.lock().get(&host_of(request))?;
        let left = until.since(self.timer.now());
        (left > 0).then_some(Wait::micros(left))
    }

    /// Records the wait that the response of a host asks for.
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

/// Removes the hosts with a wait that is over; if none is, the one that ends first.
fn make_room(holds: &mut HashMap<Vec<u8>, Micros>, now: Micros) {
    holds.retain(|_, until| *until > now);
    if holds.len() >= MOST_HOSTS {
        let first = holds.iter().min_by_key(|(_, until)| **until).map(|(host, _)| host.clone());
        first.map(|host| holds.remove(&host));
    }
}

/// The key of the called host. Requests without a host share one key.
pub(super) fn host_of<A>(request: &Request<A>) -> Vec<u8> {
    let mut key = KeyText::new();
    let _ = by::host().write(&Head::of(request), &mut key);
    key.bytes().to_vec()
}

/// The wait as a duration to sleep, if it is at most `longest`.
pub(super) fn at_most(wait: Wait, longest: Duration) -> Option<Duration> {
    Some(wait.duration()).filter(|wait| *wait <= longest)
}

impl fmt::Debug for HostBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBackoff").field("hosts", &self.lock().len()).finish_non_exhaustive()
    }
}
