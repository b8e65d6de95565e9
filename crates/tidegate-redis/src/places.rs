//! # Places that are held here and counted there
//!
//! A permit in this process is a value that is dropped; a place in Redis is an entry with an owner and an expiry. While the
//! value lives a task renews the entry, three times in each lease; when it is dropped the entry is released. Who is killed
//! does neither, and the place is free when the lease is over.

use std::sync::Arc;

use tidegate::Held;
use tokio::task::AbortHandle;

use crate::gate::Shared;
use crate::wire::{Line, Verb};

/// The places that one request holds.
#[derive(Debug)]
pub(crate) struct Places {
    held: Option<Arc<Entry>>,
    renewing: AbortHandle,
}

/// Where they are written down, and under which name.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: Vec<u8>,
    /// The string and the number of each rule.
    pub(crate) keys: Vec<(Vec<u8>, usize)>,
}

impl Places {
    pub(crate) fn hold(entry: Entry) -> Self {
        let entry = Arc::new(entry);
        let runtime = entry.shared.runtime.clone();
        let renewing = runtime.spawn(renew(entry.clone())).abort_handle();
        Places { held: Some(entry), renewing }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.renewing.abort();
        if let Some(entry) = self.held.take() {
            let runtime = entry.shared.runtime.clone();
            runtime.spawn(async move { entry.ask(Verb::Release).await });
        }
    }
}

impl Held for Places {
    fn succeeded(self: Box<Self>) {}

    fn overloaded(self: Box<Self>) {}
}

async fn renew(entry: Arc<Entry>) {
    let lease = entry.keys.iter().map(|(_, rule)| entry.shared.rules[*rule].lease).min().unwrap_or_default();
    loop {
        tokio::time::sleep(lease / 3).await;
        entry.ask(Verb::Renew).await;
    }
}

impl Entry {
    /// Whatever comes of it: what cannot be renewed or released ends with its lease.
    async fn ask(&self, verb: Verb) {
        for (key, rule) in &self.keys {
            let line = [Line { key: key.clone(), cost: 1, rule: &self.shared.rules[*rule].described }];
            let _ = self.shared.send_in_time(self.shared.link_of(&line), verb, &line, Some(&self.id)).await;
        }
    }
}
