//! Every spelling of a unit of time, and how long it is.

use std::time::Duration;

use tidegate_core::Quota;

const SPELLINGS: [(&str, Duration); 7] = [
    ("week weeks w", Duration::from_hours(7 * 24)),
    ("day days d", Duration::from_hours(24)),
    ("h hr hour hours", Duration::from_hours(1)),
    ("min mins minute minutes m", Duration::from_mins(1)),
    ("s sec secs second seconds", Duration::from_secs(1)),
    ("ms", Duration::from_millis(1)),
    ("us", Duration::from_micros(1)),
];

#[test]
fn every_unit_is_as_long_as_its_name_says() {
    for (spellings, length) in SPELLINGS {
        for unit in spellings.split(' ') {
            let quota: Quota = format!("3/{unit}").parse().expect("a quota");
            assert_eq!((quota.limit(), quota.period()), (3, length), "{unit}");
            let quota: Quota = format!("3 per 5 {unit}").parse().expect("a quota");
            assert_eq!(quota.period(), length * 5, "5 {unit}");
        }
    }
}
