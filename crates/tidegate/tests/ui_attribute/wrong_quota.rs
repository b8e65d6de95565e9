//! Invalid rule texts: the parser's message appears at the text.

#![allow(unused)]

use tidegate::attribute::CallDenied;
use tidegate::rate_limit;

#[rate_limit("5/fortnight")]
fn unit() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("0/s")]
fn zero() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("5/s burst 0")]
fn zero_burst() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("sliding_window 5/s")]
fn no_cells() -> Result<(), CallDenied> {
    Ok(())
}

#[rate_limit("sliding_log 16385/s")]
fn too_large() -> Result<(), CallDenied> {
    Ok(())
}

fn main() {}
