//! # Looking after a service that runs
//!
//! Twice a second somebody has a look: whether the file or a certificate has changed, whose lease is over, how many
//! decisions there were, whether Redis is there, and whether anybody had to be turned away. What is worth a word is said
//! once, when it begins and when it ends, however many requests it is about.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::clock::Clock;
use tokio::signal::unix::Signal;
use tokio::task::JoinHandle;

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
    log: Log,
    looking: Looking<C>,
    outages: Outages,
    /// How many connections were turned away by then, by protocol.
    turned_away: [u64; Protocol::ALL.len()],
}

/// The files that may change, or a look at them that is under way: a file system may hang, and nobody is to wait for it.
enum Looking<C> {
    Not(Box<Files<C>>),
    UnderWay(JoinHandle<Box<Files<C>>>),
}

/// The files that may change.
pub(super) struct Files<C> {
    pub(super) file: Option<Watching>,
    pub(super) reloader: Option<Arc<Reloader<C>>>,
    pub(super) certificates: Vec<Arc<Certificates>>,
}

/// How often it is looked after.
const EVERY: Duration = Duration::from_millis(500);
/// A look at files that takes longer goes on beside everything else.
const LONG: Duration = Duration::from_secs(1);

impl<C: Clock + Clone + Send + Sync + 'static> Attendant<C> {
    pub(super) fn new(engine: Arc<Engine<C>>, files: Files<C>, outages: Outages, log: Log) -> Self {
        let (looking, turned_away) = (Looking::Not(Box::new(files)), Default::default());
        Attendant { engine, log, looking, outages, turned_away }
    }

    /// Never ends.
    pub(super) async fn attend(mut self, mut hangup: Signal) {
        let mut is_told = false;
        loop {
            tokio::select! {
                _ = hangup.recv() => is_told = true,
                () = tokio::time::sleep(EVERY) => {}
            }
            self.engine.free_overdue(); // of places that are counted in Redis, too, for which others ask elsewhere
            crate::metrics::look(&self.engine);
            self.look_at_redis();
            self.look_at_doors();
            if is_told {
                notify(RELOADING, self.log);
            }
            self.looking = match self.looking {
                Looking::UnderWay(look) => self::wait(look).await,
                Looking::Not(files) => {
                    let (engine, log, told) = (self.engine.clone(), self.log, std::mem::take(&mut is_told));
                    let look = move || {
                        let mut files = files;
                        files.look(&engine, told, log);
                        if told {
                            notify(READY, log); // also if the file is bad: the one before it is in force
                        }
                        files
                    };
                    self::wait(tokio::task::spawn_blocking(look)).await
                }
            };
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

async fn wait<C>(mut look: JoinHandle<Box<Files<C>>>) -> Looking<C> {
    match tokio::time::timeout(LONG, &mut look).await {
        Ok(Ok(files)) => Looking::Not(files),
        Ok(Err(_)) => Looking::Not(Box::new(Files { file: None, reloader: None, certificates: Vec::new() })), // it panicked
        Err(_) => Looking::UnderWay(look),
    }
}

impl<C: Clock + Clone + Send + Sync + 'static> Files<C> {
    /// What is told is done by the reloader, all or nothing; what has changed, as it comes. Blocks.
    fn look(&mut self, engine: &Engine<C>, is_told: bool, log: Log) {
        let is_due = self.file.as_mut().is_some_and(|file| file.is_due(is_told));
        self.say_whether_it_is_there(engine, log);
        match &self.reloader {
            Some(reloader) if is_told => drop(reloader.reload_all()), // it says it itself
            Some(reloader) if is_due => drop(reloader.reload_and_say()),
            None if is_told && self.certificates.is_empty() => {
                log.warn("there is no file to read again; start with --config FILE").say();
            }
            _ => self.certificates.iter().for_each(|certificates| certificates.refresh(is_told, log)),
        }
    }

    fn say_whether_it_is_there(&self, engine: &Engine<C>, log: Log) {
        let Some(file) = &self.file else { return };
        let is_missing = !file.is_there();
        if engine.meter().is_file_missing.swap(is_missing, Ordering::Relaxed) == is_missing {
            return;
        }
        let name = file.path().display().to_string();
        if is_missing {
            log.warn(format!("{name} is gone; the rules in force stay")).with("file", name).say();
        } else {
            log.info(format!("{name} is there again")).with("file", name).say();
        }
    }
}
