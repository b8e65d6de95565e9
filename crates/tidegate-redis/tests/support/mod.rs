//! What the tests of this crate stand on: real servers, a real cluster, a network that fails when told to, and a
//! clock of the server's that a test can move.
//!
//! A client that was only ever tested against an imitation of Redis is tested against what its author believed of
//! Redis. So every test starts servers of its own, on free ports of this machine, and ends them. Nothing is left
//! running, even if a test is aborted.
//!
//! | file | gives |
//! |---|---|
//! | `server` | one Redis or Valkey: killed, restarted, paused, asked |
//! | `cluster` | six of them, three primaries with a replica each |
//! | `proxy` | a network between a client and a server, with faults to choose from |
//! | `request` | where one request ends and the next one begins |
//! | `clock` | a server whose wall clock the test steps or holds |
//! | `process` | a program that does not outlive the test |
//! | `port` | ports that nobody else is given by chance |
//! | `poll` | waiting for what will be so soon, a bounded number of times |
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
