//! # What a connection talks
//!
//! A connection reads and writes, and does not know what is said. A session is given bytes and writes bytes, and does
//! not know where they come from. This is all they have to do with each other, whichever the protocol.

use tidegate::clock::Clock;

use crate::engine::meter::DoorMeter;
use crate::resp::{Places, Ran, Session};

/// A client's conversation, in one protocol.
pub(crate) trait Talk {
    /// Answers all whole requests in `bytes`, behind what is in `out`. Places are where arguments are noted, by
    /// protocols that have some.
    fn run(&mut self, bytes: &[u8], places: &mut Places, out: &mut Vec<u8>) -> Ran;

    /// What is counted here.
    fn door(&self) -> &DoorMeter;

    /// The service is about to end: where the protocol has a word for it, the client is told with the next answer.
    fn finish(&mut self) {}

    /// How many bytes it keeps of requests that have begun.
    fn kept(&self) -> usize {
        0
    }

    /// Whether a request has begun that has to be finished in time, given what is left of what has arrived.
    fn has_begun(&self, left: &[u8]) -> bool {
        let _ = left;
        false
    }
}

impl<C: Clock + Send + Sync + 'static> Talk for Session<C> {
    #[inline]
    fn run(&mut self, bytes: &[u8], places: &mut Places, out: &mut Vec<u8>) -> Ran {
        Session::run(self, bytes, places, out)
    }

    fn door(&self) -> &DoorMeter {
        self.service.door()
    }

    fn kept(&self) -> usize {
        Session::kept(self)
    }

    /// Who has begun a command, or a transaction, has to finish it in time.
    fn has_begun(&self, left: &[u8]) -> bool {
        !left.is_empty() || self.transaction.is_some()
    }
}
