//! # No RocksDB
//!
//! limitador is measured with its Redis storage. It does not compile without its disk storage, too, and that wants RocksDB:
//! a C++ compiler, libclang and a quarter of an hour. These are the names it uses, and nothing behind them. A database of this
//! kind cannot be opened, so nobody can come to ask one.

#![allow(missing_docs, missing_debug_implementations, reason = "names of somebody else")]

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

/// One cannot be made.
pub struct DBWithThreadMode<Mode>(Infallible, PhantomData<Mode>);

pub type DB = DBWithThreadMode<MultiThreaded>;

pub struct MultiThreaded;

#[derive(Default)]
pub struct Options;

pub enum CompactionDecision {
    Keep,
    Remove,
}

pub enum DBCompressionType {
    Bz2,
    None,
}

pub enum IteratorMode {
    Start,
}

#[derive(Debug, PartialEq, Eq)]
pub enum ErrorKind {
    TimedOut,
    TryAgain,
    NotSupported,
}

/// There is no RocksDB here.
#[derive(Debug)]
pub struct Error;

type Operands<'a> = dyn Iterator<Item = &'a [u8]>;
type Merges = fn(&[u8], Option<&[u8]>, &mut Operands<'_>) -> Option<Vec<u8>>;
type Entry = Result<(Box<[u8]>, Box<[u8]>), Error>;

impl<Mode> DBWithThreadMode<Mode> {
    pub fn open(_: &Options, _: impl AsRef<Path>) -> Result<Self, Error> {
        Err(Error)
    }

    pub fn get(&self, _: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        match self.0 {}
    }

    pub fn merge(&self, _: impl AsRef<[u8]>, _: impl AsRef<[u8]>) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn delete(&self, _: impl AsRef<[u8]>) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn iterator(&self, _: IteratorMode) -> std::vec::IntoIter<Entry> {
        match self.0 {}
    }

    pub fn prefix_iterator(&self, _: impl AsRef<[u8]>) -> std::vec::IntoIter<Entry> {
        match self.0 {}
    }
}

impl Options {
    pub fn set_compression_type(&mut self, _: DBCompressionType) {}

    pub fn set_compaction_filter(&mut self, _: &str, _: fn(u32, &[u8], &[u8]) -> CompactionDecision) {}

    pub fn set_merge_operator_associative(&mut self, _: &str, _: Merges) {}

    pub fn create_if_missing(&mut self, _: bool) {}
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::NotSupported
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no RocksDB here")
    }
}

impl std::error::Error for Error {}
