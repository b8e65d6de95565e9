//! # Tidegate as a service
//!
//! For programs in any language: they ask over the network who may pass, and one [`Engine`](engine::Engine) answers all
//! of them. This crate is the binary `tidegate` and, for those who embed it, the parts it is made of.
//!
//! | you need | it is |
//! |---|---|
//! | the answer to every question | [`engine::Engine`], with the [`engine::Rules`] that are in force |
//! | clients of Redis | [`resp`]: `CL.THROTTLE` as redis-cell has it, and commands of its own |
//! | sockets, threads, an end | [`serve`] |

pub mod engine;
pub mod resp;
pub mod serve;
