//! # So many per second, minute, hour, day, week, month or year
//!
//! That is how Envoy has it. Ours are so many in any time, with a burst beside it, so the same limit can be said in
//! several ways: `60/min` is one a second, too. The unit that is said is the longest one within which the whole limit
//! comes back; if the number is not whole there, a shorter one, and then the next longer one. A limit that is whole in
//! none of them has no unit: what is left is told all the same.

use tidegate_core::Rule as Rate;

use super::generated::messages::RateLimitResponseRateLimitUnit as Unit;

/// Units, from short to long, with their seconds. Months have 30 days and years 365, as Envoy has them.
pub(super) const UNITS: [(i32, u64); 7] = [
    (Unit::SECOND, 1),
    (Unit::MINUTE, 60),
    (Unit::HOUR, 3_600),
    (Unit::DAY, 86_400),
    (Unit::WEEK, 7 * 86_400),
    (Unit::MONTH, 30 * 86_400),
    (Unit::YEAR, 365 * 86_400),
];

/// Microseconds in a second.
const MICROS: u64 = 1_000_000;

/// A pace, and how long until all of it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    many: u128,
    micros: u128,
    whole: u128,
}

/// How many in which unit.
pub(super) fn per_unit(rate: &Rate) -> Option<(u32, i32)> {
    let pace = pace(rate)?;
    let (shorter, longer): (Vec<_>, Vec<_>) =
        UNITS.iter().partition(|(_, seconds)| micros(*seconds) <= pace.whole);
    let within = |(unit, seconds): &(i32, u64)| Some((pace.within(micros(*seconds))?, *unit));
    shorter.iter().rev().find_map(within).or_else(|| within(longer.first()?))
}

fn micros(seconds: u64) -> u128 {
    u128::from(seconds) * u128::from(MICROS)
}

/// See the table of letters at [`EncodedRule`](tidegate_core::EncodedRule).
fn pace(rate: &Rate) -> Option<Pace> {
    let setting = rate.encode();
    let (many, micros, whole) = match (setting.letter(), setting.numbers()) {
        (b'b', [p, q, burst]) => (*q, *p, u128::from(*burst) * u128::from(*p) / u128::from((*q).max(1))),
        (b'q', [p, q, full, _]) => (*q, *p, u128::from(*full / (*q).max(1))),
        (b'g', [thousandths, ..]) => (*thousandths, 1_000 * MICROS, u128::from(MICROS)),
        (b's' | b'w' | b'h' | b'l' | b'c', [many, period, ..]) => (*many, *period, u128::from(*period)),
        _ => return None,
    };
    Some(Pace { many: many.into(), micros: micros.into(), whole })
}

impl Pace {
    /// How many within so long, if that is a whole number.
    fn within(&self, micros: u128) -> Option<u32> {
        let many = self.many.checked_mul(micros)?;
        if self.micros == 0 || many % self.micros != 0 {
            return None;
        }
        u32::try_from(many / self.micros).ok().filter(|many| *many > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_said_in_the_unit_it_is_meant_in() {
        let said = [
            ("100/s", Some((100, Unit::SECOND))),
            ("60/min", Some((60, Unit::MINUTE))),
            ("100/s burst 200", Some((100, Unit::SECOND))),
            ("5/min burst 2", Some((5, Unit::MINUTE))),
            ("300 per 20s", Some((15, Unit::SECOND))),
            ("100 per 30s", Some((200, Unit::MINUTE))),
            ("7/h", Some((7, Unit::HOUR))),
            ("1000/day", Some((1_000, Unit::DAY))),
            ("fixed_window 5/min", Some((5, Unit::MINUTE))),
            ("fixed_window 10 per 7d", Some((10, Unit::WEEK))),
            ("fixed_window 10 per 30d", Some((10, Unit::MONTH))),
            ("fixed_window 10 per 365d", Some((10, Unit::YEAR))),
            ("sliding_log 5 per 10min", Some((30, Unit::HOUR))),
            ("sliding_window 5/s cells 5", Some((5, Unit::SECOND))),
            ("stepped_bucket 20/min burst 50", Some((20, Unit::MINUTE))),
            ("leaky_queue 10/s queue 5", Some((10, Unit::SECOND))),
            ("leaky_queue 10/s queue 5 nginx", Some((10, Unit::SECOND))),
            ("fixed_window 5 per 7s", None),
        ];
        for (text, expected) in said {
            let rate: Rate = text.parse().expect("a rule");
            assert_eq!(per_unit(&rate), expected, "{text}");
        }
    }
}
