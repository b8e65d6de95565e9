//! The attribute on items that cannot be limited.

#![allow(unused)]

use tidegate::attribute::CallDenied;
use tidegate::rate_limit;

#[rate_limit("5/s")]
const fn constant() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s")]
fn nothing() {}

#[rate_limit("5/s")]
async fn unit() -> () {}

#[rate_limit("5/s")]
fn hidden() -> impl Iterator<Item = u8> {
    [].into_iter()
}

#[rate_limit("5/s")]
struct Structure;

trait Trait {
    #[rate_limit("5/s")]
    fn without_body(&self) -> Result<(), CallDenied>;
}

struct Only;

#[rate_limit("5/s")]
impl Only {
    fn new() -> Self {
        Only
    }
}

#[rate_limit("5/s", otherwise = instead)]
fn cannot_be_reassembled([first, ..]: [u8; 4]) -> u8 {
    first
}

fn instead(_: [u8; 4]) -> u8 {
    0
}

fn main() {}
