//! # How many files may be open
//!
//! To the system a connection is a file, and it lets a process have so many of them: often 1,024, which is less than the
//! connections that are let in here. Whoever comes when none is left is not even turned away. They wait, nobody says
//! why, and meanwhile the configuration cannot be read again nor a Redis be reached. So no more are let in than there
//! are files for, and the rest is told so, like everybody who is one too many.

use std::fs;

use super::Settings;

/// Files that are no connections: listeners, the configuration, certificates, Redis, whoever is just turned away.
const OTHERS: usize = 32;
/// Those of each thread.
const OF_A_THREAD: usize = 4;

/// How many files may be open, if there is a bound and it is less than these settings take.
pub(super) fn too_few(settings: &Settings) -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    bound(&limits).filter(|files| room(*files, settings.threads()) < settings.connections)
}

/// How many connections there is room for, at least one.
pub(super) fn room(files: usize, threads: usize) -> usize {
    let others = OTHERS.saturating_add(OF_A_THREAD.saturating_mul(threads));
    files.saturating_sub(others).max(1)
}

/// The first of the two numbers: the one that counts, and not the one it may be raised to.
fn bound(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{bound, room};

    #[test]
    fn the_bound_is_read_as_the_system_writes_it() {
        let limits =
            |files: &str| format!("Limit  Soft Limit  Hard Limit  Units\nMax open files  {files}  files\n");
        assert_eq!(bound(&limits("1024  1048576")), Some(1_024));
        assert_eq!(bound(&limits("unlimited  unlimited")), None);
        assert_eq!(bound("Max cpu time  1  1  seconds\n"), None);
    }

    #[test]
    fn some_are_left_for_what_is_no_connection() {
        assert_eq!([room(1_024, 2), room(64, 1), room(3, 8)], [984, 28, 1]);
    }
}
