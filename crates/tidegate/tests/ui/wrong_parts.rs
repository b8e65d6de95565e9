//! A limit in parts with missing, unknown or superfluous parts.

#![allow(unused)]

use tidegate::attribute::Denied;
use tidegate::rate_limit;

#[rate_limit(algorithm = sliding_windw, limit = 5, per = "1s")]
fn algorithm() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(algorithm = magic, limit = 5, per = "1s")]
fn no_such_algorithm() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limit = 5)]
fn no_per() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(algorithm = fixed_window, per = "1s")]
fn no_limit() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limit = 0, per = "1s")]
fn zero() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limit = 5, per = "1 fortnight")]
fn per() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limit = LIMIT, per = "1s")]
fn not_a_number() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(algorithm = fixed_window, limit = 5, per = "1s", burst = 10)]
fn burst() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limit = 5, per = "1s", cells = 10)]
fn cells() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(algorithm = leaky_queue, limit = 5, per = "1s")]
fn no_queue() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
