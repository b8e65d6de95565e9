//! # Random ids
//!
//! The id of a permit is enough to release it, and the id of a grant to return it. So an id is 128 random bits from the system.

/// 128 random bits.
pub(super) fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u128::from_ne_bytes(bytes)
}
