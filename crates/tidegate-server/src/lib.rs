//! # Tidegate as a service
//!
//! Limits for programs in any language: one file says what they are, and the service decides.
//!
//! | module | what it is about |
//! |---|---|
//! | [`config`] | the file: reading it, everything that can be wrong with it, where each value came from |
//! | [`rules`] | which limits a request has to pass, with which keys and costs, and why not the others |
//!
//! The program is `tidegate`; `tidegate --help` says what it can do.

pub mod config;
pub mod rules;
