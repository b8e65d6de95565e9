//! # Tidegate as a service
//!
//! For programs in any language: they ask over the network who may pass, and one [`Engine`](engine::Engine) answers all
//! of them. This crate is the program `tidegate` and, for those who embed it, the parts it is made of.
//!
//! | you need | it is |
//! |---|---|
//! | the answer to every question | [`engine::Engine`], with the rules that are [in force](engine::InForce) |
//! | programs that speak HTTP | [`http`]: JSON in, JSON out |
//! | Envoy | [`grpc`]: its rate limit service |
//! | whoever looks after it | [`admin`]: keys inspected, reset and blocked, who is refused most, metrics |
//! | clients of Redis | [`resp`]: `CL.THROTTLE` as redis-cell has it, and commands of its own |
//! | sockets, threads, an end, a file that changes | [`serve`] |
//! | to know what happens to it | [`log`]: lines for people, or for programs |
//! | to ask from a shell; to run vector files | [`ask`], [`conformance`] |
//! | a file that says what the limits are | [`config`]: everything that can be wrong with it, where each value came from |
//! | which limits a request has to pass | [`rules`]: with which keys and costs, and why not the others |

pub mod admin;
pub mod ask;
pub mod config;
pub mod conformance;
pub mod engine;
pub mod grpc;
pub mod http;
pub mod log;
pub(crate) mod metrics;
pub mod resp;
pub mod rules;
pub mod serve;
