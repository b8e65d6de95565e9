//! # Host backoff
//!
//! A host that requests a wait is not called again before the wait is over, by any client that shares the layer: if one
//! request was refused, the next request would be refused, too. Each host has its own backoff.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::{Request, Response};

use crate::http::{Head, KeyBuf, KeyPart, Timer, by, retry_after_of};
use tidegate_core::{Micros, Wait};

/// The maximum number of hosts that are remembered.
const MAX_HOSTS: usize = 1_024;

/// The hosts with a backoff, and the instant at which it ends.
pub(super) struct HostBackoff {
    pub(super) timer: Arc<dyn Timer>,
    until: Mutex<HashMap<Vec<u8>, Micros>>,
    /// Whether a host has ever requested a wait. If not, the map is not locked.
    has_backoffs: AtomicBool,
}

impl HostBackoff {
    pub(super) fn new(timer: Arc<dyn Timer>) -> Self {
        HostBackoff { timer, until: Mutex::default(), has_backoffs: AtomicBool::new(false) }
    }

    /// Returns the remaining backoff of a host. `None` if it may be called now.
    pub(super) fn remaining<A>(&self, request: &Request<A>) -> Option<Wait> {
        if !self.has_backoffs.load(Ordering::Acquire) {
            return None;
        }
        let until = *self.lock().get(&host_of(request))?;
        let remaining = until.since(self.timer.now());
        (remaining > 0).then_some(Wait::micros(remaining))
    }

    /// Records the wait that the response of a host requests.
    pub(super) fn record<B>(&self, host: Vec<u8>, response: &Response<B>) {
        let Some(wait) = retry_after_of(response.status(), response.headers()) else { return };
        let now = self.timer.now();
        let until = now.plus(Micros::from(wait).get());
        let mut hosts = self.lock();
        if hosts.len() >= MAX_HOSTS && !hosts.contains_key(&host) {
            make_room(&mut hosts, now);
        }
        let longest = hosts.entry(host).or_insert(until);
        *longest = until.max(*longest);
        self.has_backoffs.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Micros>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the hosts with an expired backoff, or else the host with the earliest end.
fn make_room(hosts: &mut HashMap<Vec<u8>, Micros>, now: Micros) {
    hosts.retain(|_, until| *until > now);
    if hosts.len() >= MAX_HOSTS {
        let first = hosts.iter().min_by_key(|(_, until)| **until).map(|(host, _)| host.clone());
        first.map(|host| hosts.remove(&host));
    }
}

/// The key of the called host. Requests without a host share one key.
pub(super) fn host_of<A>(request: &Request<A>) -> Vec<u8> {
    let mut key = KeyBuf::new();
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
