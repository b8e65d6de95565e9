//! What the tests of this crate are built on: real servers, a real cluster, a network that fails on demand,
//! and a server clock that a test can move.
//!
//! A client that is only tested against an imitation of Redis is tested against its author's beliefs about
//! Redis. So every test starts servers of its own, on free ports of this machine, and stops them. Nothing is
//! left running, even if a test is aborted.
//!
//! | file | contents |
//! |---|---|
//! | `server` | one Redis or Valkey: kill, restart, pause, query |
//! | `cluster` | six servers: three primaries with a replica each |
//! | `proxy` | a network between a client and a server, with selectable faults |
//! | `request` | where one request ends and the next one begins |
//! | `clock` | a server with a wall clock that the test steps or holds |
//! | `process` | a program that does not outlive the test |
//! | `port` | ports that the system gives to no other process by chance |
//! | `poll` | polling for a condition, a bounded number of times |
#![allow(dead_code, reason = "no test binary uses all of it")]
#![allow(unused_imports, reason = "no test binary uses all of it")]

mod clock;
mod cluster;
mod poll;
pub(crate) mod port;
pub(crate) mod process;
mod proxy;
pub(crate) mod request;
pub(crate) mod server;

pub(crate) use clock::Clocked;
pub(crate) use cluster::Cluster;
pub(crate) use poll::until;
pub(crate) use proxy::{Mode, Proxy};
pub(crate) use server::{Kind, Server};
