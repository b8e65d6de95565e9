//! # Reading the file again
//!
//! Three things make the service read its file again: the file has changed, somebody has sent `SIGHUP`, or an
//! administrator asks for it. All of it is read and checked before anything happens; then it is put in force at once,
//! or, if anything is wrong with it, not at all.
//!
//! Whether the file has changed is asked of the path and not of the file: in Kubernetes a mounted file is a link to a
//! link, and a change is another link. What the path leads to has another number then, or another time, or another
//! length. It is read when it has stayed the same for one look, so that a file which is just being written is not
//! read in the middle.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use tidegate::SteadyClock;
use tidegate::clock::Clock;
use tokio::runtime::Handle;

use super::tls::{Certificates, Unusable};
use crate::config::command::read;
use crate::config::fault::Colours;
use crate::config::flags::Given;
use crate::config::{Listener, Loaded, Store};
use crate::engine::Engine;
use crate::log::Log;
use crate::rules::{Compiled, Diff};

/// Reads the file again.
#[derive(Debug)]
pub struct Reloader<C = SteadyClock> {
    path: PathBuf,
    given: Given,
    engine: Arc<Engine<C>>,
    /// What was read when the service started, and stays so until it starts again.
    listeners: Vec<Listener>,
    store: Store,
    /// What doors show, to be read again when somebody says so.
    certificates: Vec<Arc<Certificates>>,
    log: Log,
    /// Where the connections of a store live: as long as the service, and longer than the threads that answer.
    runtime: Option<Handle>,
    /// One at a time: whoever has read the file last has the last word.
    reloading: Mutex<()>,
}

/// Why a file was not put in force. The rules before it are.
#[derive(Debug)]
pub enum Unread {
    /// Everything that is wrong with it.
    Faults(Box<Loaded>),
    /// It is a configuration, but its rules cannot be put in force.
    Rules(String),
    /// It names certificates that cannot be used.
    Certificates(Vec<Unusable>),
}

/// What a path leads to, as far as can be seen from outside.
pub(super) type Look = Option<(u64, u64, i64, i64, u64)>;

/// A file that may change.
#[derive(Debug)]
pub(crate) struct Watching {
    path: PathBuf,
    /// When it was last read.
    read: Look,
    /// When it was last looked at.
    last: Look,
}

impl<C: Clock + Clone + Send + Sync + 'static> Reloader<C> {
    /// For the file at `path`, with what was said beside it, of an engine that was made from it. Inside the tokio runtime that
    /// lives as long as the service.
    pub fn new(
        path: PathBuf,
        given: Given,
        engine: Arc<Engine<C>>,
        listeners: Vec<Listener>,
        store: Store,
    ) -> Self {
        let (certificates, log, reloading) = Default::default();
        let runtime = Handle::try_current().ok();
        Reloader { path, given, engine, listeners, store, certificates, log, runtime, reloading }
    }

    /// The same, for doors that show these certificates.
    #[must_use]
    pub fn certificates(self, certificates: Vec<Arc<Certificates>>) -> Self {
        Reloader { certificates, ..self }
    }

    /// The same, and what becomes of it is said there.
    #[must_use]
    pub fn log(self, log: Log) -> Self {
        Reloader { log, ..self }
    }

    /// Reads the file again and puts its rules in force, if all of it is right. Blocks: call it where that is allowed.
    ///
    /// Tells what became of the limits, and what else has changed in the file but waits for the next start.
    ///
    /// # Errors
    ///
    /// [`Unread`]. Then nothing has changed.
    pub fn reload(&self) -> Result<(Diff, Vec<&'static str>), Unread> {
        self.reload_with(&[])
    }

    /// As [`reload`](Reloader::reload), with the certificates: all of it is put in force, or nothing. Says what came of
    /// it where the service says everything.
    ///
    /// # Errors
    ///
    /// [`Unread`]. Then nothing has changed.
    pub fn reload_all(&self) -> Result<(Diff, Vec<&'static str>), Unread> {
        self.said(self.reload_with(&self.certificates))
    }

    /// As [`reload`](Reloader::reload), and says what came of it where the service says everything.
    ///
    /// # Errors
    ///
    /// As [`reload`](Reloader::reload).
    pub fn reload_and_say(&self) -> Result<(Diff, Vec<&'static str>), Unread> {
        self.said(self.reload())
    }

    fn reload_with(&self, certificates: &[Arc<Certificates>]) -> Result<(Diff, Vec<&'static str>), Unread> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let reloaded = read_anew(certificates).and_then(|anew| {
            let reloaded = self.put_in_force()?;
            certificates.iter().zip(anew).for_each(|(shown, anew)| shown.put_in_force(anew, self.log));
            Ok(reloaded)
        });
        self.engine.meter().reloaded(reloaded.is_ok());
        reloaded
    }

    fn put_in_force(&self) -> Result<(Diff, Vec<&'static str>), Unread> {
        let mut loaded = read(&self.path, &self.given);
        let Some(config) = loaded.config.take() else { return Err(Unread::Faults(Box::new(loaded))) };
        let changes = [
            (config.listeners != self.listeners, "where it listens"),
            (config.store != self.store, "where it keeps its counts"),
        ];
        let _runtime = self.runtime.as_ref().map(Handle::enter);
        let diff = self.engine.replace(Compiled::new(config.rules));
        let diff = diff.map_err(|invalid| Unread::Rules(invalid.to_string()))?;
        Ok((diff, changes.iter().filter(|(changed, _)| *changed).map(|(_, what)| *what).collect()))
    }

    fn said(
        &self,
        reloaded: Result<(Diff, Vec<&'static str>), Unread>,
    ) -> Result<(Diff, Vec<&'static str>), Unread> {
        let (name, log) = (self.path.display().to_string(), self.log);
        match &reloaded {
            Ok((diff, waiting)) => {
                let message = format!("{name} is in force: {diff}");
                log.info(message).with("file", &*name).with("changes", diff.to_string()).say();
                for what in waiting {
                    let message = format!("{what} has changed in {name}, too; restart for that");
                    log.warn(message).with("file", &*name).say();
                }
            }
            Err(unread) => {
                let message = format!("{name} is not in force; the rules before it are");
                log.warn(message).with("file", name).detail(unread.to_string()).say();
            }
        }
        reloaded
    }
}

/// All of them, or what is wrong with each that cannot be used.
fn read_anew(certificates: &[Arc<Certificates>]) -> Result<Vec<ServerConfig>, Unread> {
    let (mut anew, mut unusable) = (Vec::new(), Vec::new());
    for certificates in certificates {
        match certificates.anew() {
            Ok(config) => anew.push(config),
            Err(why) => unusable.push(why),
        }
    }
    if unusable.is_empty() { Ok(anew) } else { Err(Unread::Certificates(unusable)) }
}

impl Watching {
    /// The file as it is now, to be called before it is read: what changes while it is being read counts as a change.
    pub(crate) fn of(path: &Path) -> Self {
        let now = look(path);
        Watching { path: path.to_owned(), read: now, last: now }
    }

    /// Whether it was there at the last look.
    pub(super) fn is_there(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is to be read: because somebody said so, or because it is another one than was last read, and has
    /// stayed so since the last look.
    pub(crate) fn is_due(&mut self, is_told: bool) -> bool {
        let seen = look(&self.path);
        let has_changed = seen.is_some() && seen != self.read && seen == self.last;
        self.last = seen;
        if is_told || has_changed {
            self.read = seen;
        }
        is_told || has_changed
    }
}

pub(super) fn look(path: &Path) -> Look {
    let seen = fs::metadata(path).ok()?;
    Some((seen.dev(), seen.ino(), seen.mtime(), seen.mtime_nsec(), seen.len()))
}

impl std::fmt::Display for Unread {
    /// Each fault in the lines it is about.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unread::Faults(loaded) => f.write_str(&loaded.faults.text(&loaded.source, Colours::None)),
            Unread::Rules(invalid) => writeln!(f, "tidegate: {invalid}"),
            Unread::Certificates(unusable) => {
                unusable.iter().try_for_each(|why| writeln!(f, "tidegate: {why}"))
            }
        }
    }
}

impl std::error::Error for Unread {}

#[cfg(test)]
mod tests {
    use super::Watching;

    #[test]
    fn a_file_that_changes_while_it_is_read_for_the_first_time_is_read_again_once_it_stays() {
        let file = tempfile::NamedTempFile::new().expect("there is room");
        let mut watching = Watching::of(file.path());
        std::fs::write(file.path(), "rules: []").expect("written");
        let due: Vec<_> = (0..4).map(|_| watching.is_due(false)).collect();
        assert_eq!(due, [false, true, false, false]);
        assert!(watching.is_due(true), "whoever says so is right");
    }
}
