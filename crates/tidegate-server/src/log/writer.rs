//! # Lines are written by a thread of their own
//!
//! Whoever reads the log may stop reading without going away: a pager, a collector that hangs. A write then blocks for as long as
//! that lasts. So each stream has a queue and a thread that writes what is in it:
//!
//! ```text
//!   any thread ──► queue, at most 1024 lines ──► thread ──► standard output
//!                    └─ full: the line is dropped and counted
//! ```
//!
//! At the end of the process the queues are written out, within a time limit.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Where a line goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// The lines that wait to be written to one stream.
#[derive(Debug, Default)]
struct Queue {
    lines: Mutex<Lines>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Lines {
    waiting: VecDeque<String>,
    is_writing: bool,
}

const MOST_LINES: usize = 1024;

static OUTPUT: OnceLock<Arc<Queue>> = OnceLock::new();
static ERROR: OnceLock<Arc<Queue>> = OnceLock::new();

/// Writes a text soon, in one piece. Never blocks: a text that finds the queue full is dropped and counted.
pub(crate) fn write(stream: Stream, text: String) {
    let queue = match stream {
        Stream::Output => OUTPUT.get_or_init(|| Queue::start(io::stdout())),
        Stream::Error => ERROR.get_or_init(|| Queue::start(io::stderr())),
    };
    queue.push(text);
}

/// Waits until everything is written, but not longer than this.
pub(crate) fn flush(within: Duration) {
    let until = Instant::now() + within;
    for queue in [&OUTPUT, &ERROR].into_iter().filter_map(OnceLock::get) {
        queue.flush(until.saturating_duration_since(Instant::now()));
    }
}

/// How many lines were dropped because nobody read the log.
pub(crate) fn dropped() -> u64 {
    [&OUTPUT, &ERROR]
        .into_iter()
        .filter_map(OnceLock::get)
        .map(|queue| queue.dropped.load(Ordering::Relaxed))
        .sum()
}

impl Queue {
    /// A queue with a thread that writes its lines. Without a thread nothing is ever written, and lines are dropped.
    fn start(to: impl Write + Send + 'static) -> Arc<Self> {
        let queue = Arc::new(Queue::default());
        let its = Arc::clone(&queue);
        let _ = thread::Builder::new().name("log".to_owned()).spawn(move || its.run(to));
        queue
    }

    fn push(&self, line: String) {
        let mut lines = self.lock();
        if lines.waiting.len() >= MOST_LINES {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        lines.waiting.push_back(line);
        self.changed.notify_all();
    }

    fn run(&self, mut to: impl Write) {
        let mut lines = self.lock();
        loop {
            let Some(line) = lines.waiting.pop_front() else {
                lines = self.changed.wait(lines).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            lines.is_writing = true;
            drop(lines);
            // Whoever reads may go away: that is no error.
            let _ = to.write_all(line.as_bytes()).and_then(|()| to.flush());
            lines = self.lock();
            lines.is_writing = false;
            self.changed.notify_all();
        }
    }

    fn flush(&self, within: Duration) {
        let is_busy = |lines: &mut Lines| lines.is_writing || !lines.waiting.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), within, is_busy));
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Writes what it is given once it may.
    struct Stalled {
        go: mpsc::Receiver<()>,
        written: mpsc::Sender<String>,
    }

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            let _ = self.written.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stalled_reader_blocks_nobody_and_what_does_not_fit_is_counted() {
        let ((go, may), (written, texts)) = (mpsc::channel(), mpsc::channel());
        let queue = Queue::start(Stalled { go: may, written });
        queue.push("0".to_owned());
        while !queue.lock().is_writing {
            thread::yield_now();
        }
        (1..=MOST_LINES + 3).for_each(|number| queue.push(number.to_string()));
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 3);
        queue.flush(Duration::from_millis(1)); // gives up
        drop(go); // from now on the reader reads
        queue.flush(Duration::from_secs(60));
        let expected: Vec<_> = (0..=MOST_LINES).map(|number| number.to_string()).collect();
        assert_eq!(texts.try_iter().collect::<Vec<_>>(), expected);
    }
}
