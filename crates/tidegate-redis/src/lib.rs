//! # Limits shared by many machines
//!
//! The same rules, requests and decisions as in memory, with the states in Redis or Valkey.
#![doc = ""]

/// The script that decides. `WIRE.md` says what it is given and what it answers.
pub const SCRIPT: &str = include_str!("script.lua");
