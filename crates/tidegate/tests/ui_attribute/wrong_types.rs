//! Type errors: the compiler's message appears at the argument in question.

#![allow(unused)]

use tidegate::attribute::CallDenied;
use tidegate::rate_limit;

#[rate_limit("5/s")]
fn number() -> u32 {
    0
}

#[rate_limit("5/s")]
async fn option() -> Option<u32> {
    None
}

struct MyError;

#[rate_limit("5/s")]
fn no_from() -> Result<(), MyError> {
    Ok(())
}

#[rate_limit("5/s", key = weight)]
fn not_hashable(weight: f64) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", key = user)]
fn no_such_argument(name: &str) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", otherwise = other)]
fn different(a: u8) -> u8 {
    a
}

fn other(a: u8, b: u8) -> u8 {
    a + b
}

struct NoGate;

#[rate_limit(limiter = NoGate)]
fn no_gate() -> Result<(), CallDenied> {
    Ok(())
}

fn main() {}
