//! A server with a wall clock that the test moves.
//!
//! Redis decides by its own clock, and the clocks of machines are set: forward, and back by an hour. To see
//! what happens to limits then, a small library (`clock_shim.c`) is loaded into the server before the C
//! library and answers in its place when the server reads the time of day. Everything in the server follows:
//! `TIME`, scripts, and the expiry of keys.
//!
//! ```text
//!   test ── writes ──► a file ◄── mapped by ── shim ◄── what time is it? ── redis-server
//! ```
//!
//! The server sees a change no later than at the next command it is sent. This needs Linux and a C compiler.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::{Kind, Server, Setup};

const MICROS: i64 = 1_000_000;

/// A [`Server`] with a clock that can be stepped and held. The setting outlasts a restart.
#[derive(Debug)]
pub(crate) struct Clocked {
    server: Server,
    file: fs::File,
    setting: Setting,
}

/// The setting of the shim: the clock is `offset` ahead, or stands still at `held` if that is not zero. In
/// microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    offset: i64,
    held: i64,
}

impl Server {
    /// Like [`start`](Server::start), with a clock that can be moved. It is correct until then.
    pub(crate) fn start_with_clock(kind: Kind, extra: &[&str]) -> Clocked {
        // Redis's allocator has a thread that waits for a time of day; it would spin while the clock is
        // behind.
        let extra = [extra, &["--jemalloc-bg-thread", "no"]].concat();
        let setup = Setup::new(kind, &extra);
        let path = setup.folder().join("clock");
        let file = fs::File::create(&path).expect("the folder is new");
        let setting = Setting::default();
        setting.write(&file);
        let shim = compile(setup.folder());
        let setup = setup.variable("LD_PRELOAD", shim).variable("TIDEGATE_CLOCK", path);
        Clocked { server: Server::start_as(setup), file, setting }
    }
}

impl Clocked {
    /// Steps the clock by so many seconds, forward or back.
    pub(crate) fn step(&mut self, seconds: i64) {
        self.step_micros(seconds * MICROS);
    }

    /// Steps the clock, whether it runs or is held.
    pub(crate) fn step_micros(&mut self, micros: i64) {
        let Setting { offset, held } = self.setting;
        let held = if held == 0 { 0 } else { held + micros };
        self.set(Setting { offset: offset + micros, held });
    }

    /// Stops the clock at this instant, in microseconds since 1970: everything after it happens at that very
    /// instant.
    pub(crate) fn hold_at(&mut self, micros: i64) {
        assert!(micros > 0, "a clock is held after 1970, not at {micros}");
        self.set(Setting { held: micros, ..self.setting });
    }

    /// Lets a held clock run again, from where it would be if it had never been held.
    pub(crate) fn run(&mut self) {
        self.set(Setting { held: 0, ..self.setting });
    }

    /// The server's time, in microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        let answer = self.cli(&["TIME"]);
        let (seconds, micros) = answer.split_once('\n').expect("TIME answers two numbers");
        let number = |text: &str| text.parse::<i64>().expect("TIME answers numbers");
        number(seconds) * MICROS + number(micros)
    }

    fn set(&mut self, setting: Setting) {
        self.setting = setting;
        setting.write(&self.file);
    }
}

impl Deref for Clocked {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl DerefMut for Clocked {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}

impl Setting {
    /// Writes the setting twice, one after the other, so that the shim can detect a partial write.
    fn write(self, file: &fs::File) {
        let bytes = [self.offset.to_ne_bytes(), self.held.to_ne_bytes()].concat();
        for at in [0, 16] {
            file.write_all_at(&bytes, at).expect("a file of 32 bytes can be written");
        }
    }
}

/// Compiles the shim in the folder of its server: it is removed together with the server.
fn compile(folder: &Path) -> PathBuf {
    let source = folder.join("clock_shim.c");
    let library = folder.join("clock_shim.so");
    fs::write(&source, include_str!("clock_shim.c")).expect("the folder can be written");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
    let made = made.expect("a C compiler is needed: apt-get install gcc libc6-dev");
    assert!(made.status.success(), "compiling the shim: {}", String::from_utf8_lossy(&made.stderr));
    library
}
