//! # Text form of a pacing
//!
//! `5/s`, `5/s max_burst 10s`, `5/s warm_up 3s`, `5/s warm_up 3s cold_factor 2.5`:
//!
//! ```text
//!   pacing = quota [ "max_burst" period | "warm_up" period [ "cold_factor" decimal ] ]
//! ```

use core::str::FromStr;

use super::{Bursty, Pacing, WarmUp};
use crate::InvalidQuota;
use crate::quota::Reader;

const AFTER_PACE: &str = "'max_burst' or 'warm_up' and a duration, or nothing more";
const AFTER_WARM_UP: &str = "'cold_factor' and a number, or nothing more";
const NOTHING: &str = "nothing more";

impl FromStr for Pacing {
    type Err = InvalidQuota;

    fn from_str(text: &str) -> Result<Self, InvalidQuota> {
        let mut reader = Reader::new(text);
        let bursty = Bursty::new(reader.quota()?);
        if reader.word("warm_up") {
            return warm_up(&mut reader, bursty).map(Pacing::WarmUp);
        }
        if reader.word("max_burst") {
            let bursty = bursty.try_max_burst(reader.period()?)?;
            reader.end(NOTHING)?;
            return Ok(Pacing::Bursty(bursty));
        }
        reader.end(AFTER_PACE)?;
        Ok(Pacing::Bursty(bursty))
    }
}

fn warm_up(reader: &mut Reader<'_>, bursty: Bursty) -> Result<WarmUp, InvalidQuota> {
    let warm_up = WarmUp::try_new(bursty.quota(), reader.period()?)?;
    if !reader.word("cold_factor") {
        reader.end(AFTER_WARM_UP)?;
        return Ok(warm_up);
    }
    let (numerator, denominator) = reader.decimal()?;
    reader.end(NOTHING)?;
    warm_up.try_cold_factor(numerator, denominator)
}
