//! # What is generated of the `.proto` files
//!
//! By `tools/protos`, and committed. Not all that the files say is used.

pub(super) use super::wire;

#[rustfmt::skip]
pub(super) mod files;
#[allow(dead_code, reason = "the files say more than is used")]
#[rustfmt::skip]
pub(super) mod messages;
