//! # `MULTI` … `EXEC`
//!
//! Clients send pipelines between the two. The commands in between wait, and `EXEC` runs them one after the other, their
//! replies in one array. That is all: other clients may ask in between. What has to pass several limits, all or nothing, is
//! *one* command, `TG.CHECK` with `AND`.

use tidegate::clock::Clock;

use super::parse::{Places, Request};
use super::reply::Reply;
use super::session::{Flow, Session};

/// The commands since `MULTI`.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    commands: Vec<Queued>,
    bytes: usize,
    /// One of them was wrong, so none will be run.
    is_spoilt: bool,
}

/// A command that waits, its arguments end to end.
#[derive(Debug)]
pub(crate) struct Queued {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Transaction {
    /// About how much memory its commands take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Queued {
    fn of(request: Request<'_>) -> Self {
        Queued {
            bytes: request.args(0).flatten().copied().collect(),
            lengths: request.args(0).map(<[u8]>::len).collect(),
        }
    }

    pub(crate) fn request<'a>(&'a self, places: &'a mut Places) -> Request<'a> {
        places.end_to_end(self.lengths.iter().copied());
        places.request(&self.bytes)
    }

    /// About how much memory it takes.
    fn size(&self) -> usize {
        size_of::<Queued>() + self.bytes.len() + size_of_val(self.lengths.as_slice())
    }
}

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn multi(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        if self.transaction.is_some() {
            reply.error("ERR MULTI calls can not be nested");
        } else {
            self.transaction = Some(Transaction::default());
            reply.ok();
        }
        Flow::Next
    }

    pub(crate) fn enqueue(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let most = self.service.bounds.request;
        let Some(transaction) = &mut self.transaction else { return Flow::Next };
        let queued = Queued::of(request);
        transaction.bytes += queued.size();
        if transaction.bytes > most {
            *transaction = Transaction { is_spoilt: true, bytes: most, commands: Vec::new() };
            reply.error(format!("ERR the transaction takes more than {most} bytes; send a smaller one"));
        } else {
            transaction.commands.push(queued);
            reply.word("QUEUED");
        }
        Flow::Next
    }

    /// A transaction in which something was wrong is not run.
    pub(crate) fn spoil(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_spoilt = true;
        }
    }

    pub(crate) fn exec(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match self.transaction.take() {
            None => reply.error("ERR EXEC without MULTI"),
            Some(transaction) if transaction.is_spoilt => {
                reply.error("EXECABORT Transaction discarded because of previous errors.");
            }
            Some(transaction) => {
                reply.array(transaction.commands.len());
                self.queued.extend(transaction.commands);
            }
        }
        Flow::Next
    }

    pub(crate) fn discard(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match self.transaction.take() {
            None => reply.error("ERR DISCARD without MULTI"),
            Some(_) => reply.ok(),
        }
        Flow::Next
    }

    /// Nothing that could be watched ever spoils a transaction.
    pub(crate) fn watch(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        if self.transaction.is_some() {
            reply.error("ERR WATCH inside MULTI is not allowed");
        } else {
            reply.ok();
        }
        Flow::Next
    }

    pub(crate) fn unwatch(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        reply.ok();
        Flow::Next
    }
}
