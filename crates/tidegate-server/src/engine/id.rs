//! # Ids that nobody can guess
//!
//! Whoever knows the id of a permit can release it, and whoever knows that of a grant can return it. So they are 128 bits of the
//! system's random numbers.

/// 128 random bits.
pub(super) fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u128::from_ne_bytes(bytes)
}
