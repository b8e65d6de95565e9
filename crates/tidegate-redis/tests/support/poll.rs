//! Waiting for what another process does, without a guess at how long it takes: ask again and again, but not for
//! ever.

use std::thread;
use std::time::Duration;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// So many that only what will never happen runs out of them, on a slow machine too.
const TRIES: usize = 3_000;

/// Asks until there is an answer.
///
/// # Panics
///
/// If there is none after many tries; the message says what was waited for.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..TRIES {
        if let Some(answer) = ask() {
            return answer;
        }
        thread::sleep(PAUSE);
    }
    panic!("{what}: not after {TRIES} tries");
}
