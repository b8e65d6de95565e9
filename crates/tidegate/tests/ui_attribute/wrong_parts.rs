//! A limit given by arguments, with missing, unknown or superfluous ones.

#![allow(unused)]

use tidegate::attribute::CallDenied;
use tidegate::rate_limit;

#[rate_limit(algorithm = sliding_windw, limit = 5, per = "1s")]
fn algorithm() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(algorithm = magic, limit = 5, per = "1s")]
fn no_such_algorithm() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(limit = 5)]
fn no_per() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(algorithm = fixed_window, per = "1s")]
fn no_limit() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(limit = 0, per = "1s")]
fn zero() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(limit = 5, per = "1 fortnight")]
fn per() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(limit = LIMIT, per = "1s")]
fn not_a_number() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(algorithm = fixed_window, limit = 5, per = "1s", burst = 10)]
fn burst() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(limit = 5, per = "1s", cells = 10)]
fn cells() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit(algorithm = leaky_queue, limit = 5, per = "1s")]
fn no_queue() -> Result<(), CallDenied> {
    Ok(())
}

fn main() {}
