//! Arguments that contradict each other, or that limit nothing.

#![allow(unused)]

use tidegate::attribute::CallDenied;
use tidegate::rate_limit;

#[rate_limit("5/s", limit = 5, per = "1s")]
fn text_and_parts() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", limiter = LIMITER)]
fn quota_and_limiter() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s")]
#[rate_limit(limiter = LIMITER)]
fn quota_and_limiter_apart() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(concurrency = 2, limiter = LIMITER)]
fn concurrency_and_limiter() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", rule = 1)]
fn rule_without_limiter() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", key = a, key = b)]
fn twice(a: u8, b: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", wait = "1s")]
#[rate_limit("5/min", wait = "2s")]
fn two_waits() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", unlimited)]
fn unlimited_and_limited() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(unlimited, key = user)]
fn unlimited_with_a_key(user: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(unlimited, otherwise = instead)]
fn unlimited_with_an_alternative() {}

#[rate_limit(unlimited, unlimited)]
fn unlimited_twice() {}

#[rate_limit(unlimited)]
#[rate_limit("5/s")]
fn unlimited_and_limited_apart() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(limiter = LIMITER, key = user)]
#[rate_limit(key = user, cost = 2)]
fn the_same_twice(user: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit]
fn nothing() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(key = user)]
fn only_a_key(user: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(concurrency = 2, cost = 5)]
fn cost_of_a_permit() -> Result<(), CallDenied> {
    Ok(())
}

fn main() {}
