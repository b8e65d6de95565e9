//! # Looking after a service that runs
//!
//! Twice a second somebody has a look: whether the file or a certificate has changed, whose lease is over, how many
//! decisions there were, whether Redis is there, and whether anybody had to be turned away. What is worth a word is said
//! once, when it begins and when it ends, however many requests it is about.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::Clock;
use tokio::signal::unix::Signal;

use super::notify::{READY, RELOADING, notify};
use super::outage::Outages;
use super::reload::Watching;
use super::{Certificates, Reloader};
use crate::config::Protocol;
use crate::engine::Engine;
use crate::log::Log;

/// Whoever looks after it.
pub(super) struct Attendant<C> {
    engine: Arc<Engine<C>>,
    reloader: Option<Arc<Reloader<C>>>,
    certificates: Vec<Arc<Certificates>>,
    log: Log,
    file: Option<Watching>,
    outages: Outages,
    /// How many connections were turned away by then, by protocol.
    turned_away: [u64; Protocol::ALL.len()],
}

/// How often it is looked after.
const EVERY: Duration = Duration::from_millis(500);

impl<C: Clock + Clone + Send + Sync + 'static> Attendant<C> {
    pub(super) fn new(
        engine: Arc<Engine<C>>,
        reloader: Option<Arc<Reloader<C>>>,
        file: Option<Watching>,
        certificates: Vec<Arc<Certificates>>,
        outages: Outages,
        log: Log,
    ) -> Self {
        let turned_away = Default::default();
        Attendant { engine, reloader, certificates, log, file, outages, turned_away }
    }

    /// Never ends.
    pub(super) async fn attend(mut self, mut hangup: Signal) {
        loop {
            let is_told = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(EVERY) => false,
            };
            self.engine.free_overdue(); // of places that are counted in Redis, too, for which others ask elsewhere
            crate::metrics::look(&self.engine);
            self.look_at_redis();
            self.look_at_doors();
            if is_told {
                notify(RELOADING, self.log);
            }
            self.look_at_files(is_told).await;
            if is_told {
                notify(READY, self.log); // also if the file is bad: the one before it is in force
            }
        }
    }

    /// What is told is done by the reloader, all or nothing; what has changed, as it comes.
    async fn look_at_files(&mut self, is_told: bool) {
        let is_due = self.file.as_mut().is_some_and(|file| file.is_due(is_told));
        match &self.reloader {
            Some(reloader) if is_told || is_due => {
                let reloader = reloader.clone();
                let reload = move || if is_told { reloader.reload_all() } else { reloader.reload_and_say() };
                let _ = tokio::task::spawn_blocking(reload).await; // it says it itself
            }
            None if is_told && self.certificates.is_empty() => {
                self.log.warn("there is no file to read again; start with --config FILE").say();
            }
            _ => self.certificates.iter().for_each(|certificates| certificates.refresh(is_told, self.log)),
        }
    }

    fn look_at_redis(&mut self) {
        if let Some(health) = self.engine.in_force().redis() {
            self.outages.look(&health);
        }
    }

    fn look_at_doors(&mut self) {
        for (protocol, before) in Protocol::ALL.into_iter().zip(&mut self.turned_away) {
            let now = self.engine.meter().door(protocol).turned_away.load(Ordering::Relaxed);
            let (more, name) = (now - *before, protocol.name());
            *before = now;
            if more > 0 {
                let message =
                    format!("{more} connections for {name} were turned away; allow more by --connections");
                self.log.warn(message).with("protocol", name).with("connections", more).say();
            }
        }
    }
}
