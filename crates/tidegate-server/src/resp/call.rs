//! # The commands
//!
//! One table: name, how many arguments (with the name), who runs it, and when it may be run. What is not here does not
//! exist.

use std::ops::RangeInclusive;

use tidegate::clock::Clock;

use super::parse::Request;
use super::reply::Reply;
use super::session::{Flow, Session};

/// A command.
pub(crate) struct Call<C> {
    pub(crate) name: &'static str,
    pub(crate) args: RangeInclusive<usize>,
    pub(crate) run: Run<C>,
    when: When,
}

pub(crate) type Run<C> = fn(&mut Session<C>, Request<'_>, &mut Reply<'_>) -> Flow;

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// By those who may ask; between `MULTI` and `EXEC` it waits for its turn.
    Known,
    /// By those who may reset keys; between `MULTI` and `EXEC` it waits for its turn.
    Changes,
    /// By those who may ask; never waits.
    AtOnce,
    /// By everybody; between `MULTI` and `EXEC` it waits.
    Anybody,
    /// By everybody, and never waits.
    AnybodyAtOnce,
}

const MANY: usize = usize::MAX;

impl<C> Call<C> {
    const fn new(name: &'static str, args: RangeInclusive<usize>, run: Run<C>, when: When) -> Self {
        Call { name, args, run, when }
    }

    pub(crate) fn is_for_strangers(&self) -> bool {
        matches!(self.when, When::Anybody | When::AnybodyAtOnce)
    }

    pub(crate) fn is_change(&self) -> bool {
        self.when == When::Changes
    }

    pub(crate) fn is_immediate(&self) -> bool {
        matches!(self.when, When::AtOnce | When::AnybodyAtOnce)
    }
}

struct Calls<C>(std::marker::PhantomData<C>);

impl<C: Clock + Send + Sync + 'static> Calls<C> {
    /// The commonest first.
    const ALL: &'static [Call<C>] = &[
        Call::new("CL.THROTTLE", 5..=6, Session::cl_throttle, When::Known),
        Call::new("TG.CHECK", 3..=MANY, Session::tg_check, When::Known),
        Call::new("TG.PEEK", 3..=MANY, Session::tg_peek, When::Known),
        Call::new("TG.REFUND", 3..=MANY, Session::tg_refund, When::Known),
        Call::new("TG.RESET", 3..=MANY, Session::tg_reset, When::Changes),
        Call::new("TG.ACQUIRE", 3..=MANY, Session::tg_acquire, When::Known),
        Call::new("TG.RENEW", 2..=2, Session::tg_renew, When::Known),
        Call::new("TG.RELEASE", 2..=2, Session::tg_release, When::Known),
        Call::new("TG.LEASE", 4..=MANY, Session::tg_lease, When::Known),
        Call::new("TG.RETURN", 5..=MANY, Session::tg_return, When::Known),
        Call::new("THROTTLE", 5..=6, Session::throttle, When::Known),
        Call::new("GCRA", 5..=7, Session::gcra, When::Known),
        Call::new("DEL", 2..=MANY, Session::del, When::Changes),
        Call::new("UNLINK", 2..=MANY, Session::del, When::Changes),
        Call::new("EXISTS", 2..=MANY, Session::exists, When::Known),
        Call::new("TTL", 2..=2, Session::ttl, When::Known),
        Call::new("PTTL", 2..=2, Session::pttl, When::Known),
        Call::new("TYPE", 2..=2, Session::kind, When::Known),
        Call::new("DBSIZE", 1..=1, Session::dbsize, When::Known),
        Call::new("PING", 1..=2, Session::ping, When::Known),
        Call::new("ECHO", 2..=2, Session::echo, When::Known),
        Call::new("SELECT", 2..=2, Session::select, When::Known),
        Call::new("HELLO", 1..=MANY, Session::hello, When::AnybodyAtOnce),
        Call::new("AUTH", 2..=MANY, Session::auth, When::Anybody),
        Call::new("CLIENT", 2..=MANY, Session::client, When::Known),
        Call::new("MULTI", 1..=1, Session::multi, When::AtOnce),
        Call::new("EXEC", 1..=1, Session::exec, When::AtOnce),
        Call::new("DISCARD", 1..=1, Session::discard, When::AtOnce),
        Call::new("WATCH", 2..=MANY, Session::watch, When::AtOnce),
        Call::new("UNWATCH", 1..=1, Session::unwatch, When::Known),
        Call::new("RESET", 1..=1, Session::reset, When::AnybodyAtOnce),
        Call::new("QUIT", 1..=MANY, Session::quit, When::AnybodyAtOnce),
        Call::new("COMMAND", 1..=MANY, Session::command, When::Known),
        Call::new("INFO", 1..=MANY, Session::info, When::Known),
        Call::new("CONFIG", 2..=MANY, Session::config, When::Known),
        Call::new("CLUSTER", 2..=MANY, Session::cluster, When::Known),
        Call::new("READONLY", 1..=1, Session::cluster, When::Known),
        Call::new("READWRITE", 1..=1, Session::cluster, When::Known),
        Call::new("MODULE", 2..=MANY, Session::module, When::Known),
        Call::new("TG.CASE", 3..=3, Session::tg_case, When::Known),
    ];
}

/// The command of this name, in capitals or not.
pub(crate) fn find<C: Clock + Send + Sync + 'static>(request: Request<'_>) -> Option<&'static Call<C>> {
    let name = request.name();
    Calls::<C>::ALL.iter().find(|call| call.name.as_bytes().eq_ignore_ascii_case(name))
}

/// A whole number as people write it: `4`, `+4`, `004`, `-4`; no spaces, nothing else.
#[inline]
pub(crate) fn whole(text: &[u8]) -> Option<i64> {
    // Nearly all are a few digits.
    if (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit) {
        return Some(text.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')));
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn numbers_are_read_as_redis_cell_reads_them() {
        let good = [
            ("4", 4),
            ("+4", 4),
            ("004", 4),
            ("-4", -4),
            ("-0", 0),
            ("999999999999999999", 999_999_999_999_999_999),
        ];
        assert!(good.iter().all(|(text, number)| whole(text.as_bytes()) == Some(*number)));
        assert_eq!(whole(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(whole(b"-9223372036854775808"), Some(i64::MIN));
        let bad: [&[u8]; 10] =
            [b"", b" 4", b"4 ", b"0x4", b"4.0", b"--4", b"+-4", b"9223372036854775808", b"\xff", b"\xd9\xa4"];
        assert!(bad.iter().all(|text| whole(text).is_none()));
    }
}
