//! # Tidegate as a service
//!
//! For programs in any language: they ask over the network who may pass, and one [`Engine`](engine::Engine) answers all
//! of them. This crate is the program `tidegate` and, for those who embed it, the parts it is made of.
//!
//! | you need | it is |
//! |---|---|
//! | the answer to every question | [`engine::Engine`], with the [`engine::Rules`] that are in force |
//! | clients of Redis | [`resp`]: `CL.THROTTLE` as redis-cell has it, and commands of its own |
//! | sockets, threads, an end | [`serve`] |
//! | a file that says what the limits are | [`config`]: everything that can be wrong with it, where each value came from |
//! | which limits a request has to pass | [`rules`]: with which keys and costs, and why not the others |
//!
//! The service does not read its file yet: what it serves are the rules of an example.

pub mod config;
pub mod engine;
pub mod resp;
pub mod rules;
pub mod serve;
