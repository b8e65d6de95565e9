//! # The harness: what all suites share
//!
//! Cases that take turns in rounds, ratios within each round, goals they are held to, and a page that says what came of
//! it. A suite brings the cases, and tells what it compares and how.

#![allow(
    missing_docs,
    clippy::must_use_candidate,
    reason = "shared by the suites, and nobody else's business"
)]

pub mod case;
pub mod goal;
pub mod keys;
pub mod machine;
pub mod report;
pub mod rounds;
pub mod stats;
pub mod turns;
