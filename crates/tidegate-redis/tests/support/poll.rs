//! Waits for what another process does, without a guess at how long it takes: polls again and again, but not
//! for ever.

use std::thread;
use std::time::Duration;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// Enough tries that a slow machine does not run out of them either, only a condition that never holds.
const TRIES: usize = 3_000;

/// Polls until there is a result.
///
/// # Panics
///
/// If there is none after many tries; the message names the condition.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    for _ in 0..TRIES {
        if let Some(answer) = poll() {
            return answer;
        }
        thread::sleep(PAUSE);
    }
    panic!("{what}: not after {TRIES} tries");
}
