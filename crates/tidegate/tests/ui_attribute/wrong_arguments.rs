//! Arguments that do not exist, or have an invalid value.

#![allow(unused)]

use tidegate::attribute::CallDenied;
use tidegate::rate_limit;

#[rate_limit("5/s", kay = user)]
fn misspelt(user: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", colour = "red")]
fn unknown() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", key)]
fn no_key(user: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", key = ())]
fn empty_key(user: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s" key = user)]
fn no_comma(user: u8) -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(5)]
fn a_number() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", wait = 200)]
fn wait_without_unit() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", wait = "soon")]
fn wait_without_number() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(concurrency = 0)]
fn zero_concurrency() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s burst 20", cost = 50)]
fn never() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", cost = 0)]
fn free() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s", otherwise = |user| user)]
fn no_path(user: u8) -> u8 {
    user
}

fn main() {}
