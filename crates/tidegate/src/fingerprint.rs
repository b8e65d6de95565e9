//! # Fingerprints: the identity of a key in the table
//!
//! The table stores no keys, only 64 bits of each. The fingerprint *is* the identity of a key, so a client must not be
//! able to choose it: a client that could make a key with the fingerprint of another key could use up the quota of that
//! key. Fingerprints are therefore computed with secrets drawn when the limiter is created.
//!
//! A single integer is permuted. So is a single text of up to seven bytes, which together with its length is an
//! integer. No two of these collide (except two out of all 2⁶⁴, because 0 marks an empty slot). Everything else goes
//! through SipHash-1-3, a keyed hash made for this purpose. Two of a million keys then collide by chance once in 37
//! million limiters, and even they are only limited together: a collision can refuse too early, but never admits too
//! much.
//!
//! SipHash-1-3 is sufficient because a client never sees a hash, only which requests were refused. The
//! stronger 2-4 rounds would protect hashes that are published. Where a key is hashed, the hash is a third of
//! the instructions of a check; that is why short texts are permuted like integers.

use std::hash::{BuildHasher, Hash, Hasher};

/// The secrets of one limiter.
#[derive(Clone)]
pub(crate) struct Secrets {
    sip: [u64; 2],
    add: u64,
    multiply: [u64; 2],
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Draws secrets from the randomness that the hash maps of `std` use.
    pub(crate) fn draw() -> Self {
        #[cfg(not(loom))]
        let source = std::hash::RandomState::new();
        #[cfg(loom)] // a model must be deterministic
        let source = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
        let draw = |n: u64| source.hash_one(n);
        Secrets { sip: [draw(0), draw(1)], add: draw(2), multiply: [draw(3) | 1, draw(4) | 1] }
    }

    /// Returns the fingerprint of a key. Never 0, which marks an empty slot.
    #[inline]
    pub(crate) fn fingerprint<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        let mut hasher =
            FingerprintHasher { secrets: self, single: None, after_bytes: false, sip: Sip::new(self.sip) };
        key.hash(&mut hasher);
        match hasher.finish() {
            0 => 1,
            fingerprint => fingerprint,
        }
    }

    /// Returns the fingerprint of a text, or of bytes taken as text.
    ///
    /// The result equals that of hashing the text, but skips the bookkeeping for keys of several parts.
    #[inline]
    pub(crate) fn fingerprint_of_text(&self, bytes: &[u8]) -> u64 {
        let fingerprint = match short_text_number(bytes) {
            Some(number) => self.permute(number),
            None => self.hash(bytes),
        };
        fingerprint.max(1)
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut sip = Sip::new(self.sip);
        sip.bytes(bytes);
        sip.finish()
    }

    /// Permutes the integers.
    ///
    /// Multiplying by an odd number and folding the high half down are both invertible.
    #[inline]
    fn permute(&self, number: u64) -> u64 {
        let mut mixed = number ^ self.add;
        mixed = mixed.wrapping_mul(self.multiply[0]);
        mixed ^= mixed >> 32;
        mixed = mixed.wrapping_mul(self.multiply[1]);
        mixed ^ mixed >> 29
    }
}

/// Bytes that have the same fingerprint as the text of these bytes.
pub(crate) struct AsText<'a>(pub(crate) &'a [u8]);

impl Hash for AsText<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0); // the end marker of a text adds nothing: see `write_u8`
    }
}

/// Computes a fingerprint from what a key writes when it is hashed.
struct FingerprintHasher<'a> {
    secrets: &'a Secrets,
    /// The only integer so far, or the only text if it is short enough to be an integer.
    single: Option<u64>,
    /// Whether the last write was of bytes, which are terminated by their length.
    after_bytes: bool,
    sip: Sip,
}

impl FingerprintHasher<'_> {
    #[inline]
    fn integer(&mut self, number: u64) {
        self.after_bytes = false;
        match self.single.take() {
            None if self.sip.is_unused() => self.single = Some(number),
            None => self.sip.block(number),
            Some(first) => {
                self.sip.block(first);
                self.sip.block(number);
            }
        }
    }
}

impl Hasher for FingerprintHasher<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.after_bytes = true;
        if let Some(first) = self.single.take() {
            self.sip.block(first);
        } else if self.sip.is_unused()
            && let Some(number) = short_text_number(bytes)
        {
            self.single = Some(number);
            return;
        }
        self.sip.bytes(bytes);
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        // A text terminates itself with this byte. The length already does that, so the byte is not worth a round.
        if number == 0xff && std::mem::take(&mut self.after_bytes) {
            return;
        }
        self.integer(number.into());
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.integer(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.integer(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.integer(number);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.integer(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        match self.single {
            Some(number) => self.secrets.permute(number),
            None => self.sip.finish(),
        }
    }
}

/// Returns a text that fits into a word together with its length, as a unique number.
#[inline]
fn short_text_number(bytes: &[u8]) -> Option<u64> {
    (bytes.len() < 8).then(|| few_bytes(bytes) | (bytes.len() as u64) << 56)
}

/// Returns fewer than eight bytes as a number.
///
/// Reads words, which is faster than copying a variable number of bytes.
#[inline]
fn few_bytes(bytes: &[u8]) -> u64 {
    let (mut number, mut shift, mut rest) = (0, 0, bytes);
    if let Some((four, more)) = rest.split_first_chunk::<4>() {
        (number, shift, rest) = (u32::from_le_bytes(*four).into(), 32, more);
    }
    if let Some((two, more)) = rest.split_first_chunk::<2>() {
        number |= u64::from(u16::from_le_bytes(*two)) << shift;
        (shift, rest) = (shift + 16, more);
    }
    if let [one] = rest {
        number |= u64::from(*one) << shift;
    }
    number
}

/// SipHash with one round per block and three at the end.
///
/// Bytes are terminated by their length, so that two different keys of one type are never the same sequence of blocks.
/// The length is part of the last block if that has room. Bytes that end with a whole block stay *open*: if nothing
/// follows, the length goes into the finalization, which saves a round for the most common keys; otherwise it is a
/// block of its own.
struct Sip {
    v: [u64; 4],
    unused: bool,
    /// Twice the length plus one of bytes that are open, or 0 if there are none.
    open: u64,
}

impl Sip {
    #[inline]
    fn new([k0, k1]: [u64; 2]) -> Self {
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Sip { v, unused: true, open: 0 }
    }

    #[inline]
    fn is_unused(&self) -> bool {
        self.unused
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.close();
        let (whole, rest) = bytes.as_chunks::<8>();
        for block in whole {
            self.absorb(u64::from_le_bytes(*block));
        }
        let length = bytes.len() as u64;
        self.unused = false;
        if rest.is_empty() {
            self.open = length << 1 | 1;
            return;
        }
        if length > 0xFF {
            self.absorb(length); // next to the rest there is room for only one byte of it
        }
        self.absorb(few_bytes(rest) | length << 56);
    }

    #[inline]
    fn block(&mut self, block: u64) {
        self.close();
        self.absorb(block);
    }

    /// Terminates open bytes, because more input follows.
    #[inline]
    fn close(&mut self) {
        if self.open != 0 {
            self.absorb(self.open);
            self.open = 0;
        }
    }

    #[inline]
    fn absorb(&mut self, block: u64) {
        self.v[3] ^= block;
        self.round();
        self.v[0] ^= block;
        self.unused = false;
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut end = Sip { v: self.v, unused: false, open: 0 };
        end.v[2] ^= 0xff ^ self.open << 8;
        (0..3).for_each(|_| end.round());
        end.v[0] ^ end.v[1] ^ end.v[2] ^ end.v[3]
    }

    #[inline]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.v;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32).wrapping_add(*v3);
        *v2 = v2.wrapping_add(*v1);
        *v3 = v3.rotate_left(21) ^ *v0;
        *v1 = v1.rotate_left(17) ^ *v2;
        *v2 = v2.rotate_left(32);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn round_matches_the_siphash_vector() {
        // The published vector of SipHash-2-4 for the empty input under 00 01 … 0f fixes the round and the constants.
        let mut sip = Sip::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        sip.round_twice_block(0);
        sip.v[2] ^= 0xff;
        (0..4).for_each(|_| sip.round());
        assert_eq!(sip.v.iter().fold(0, |all, v| all ^ v), 0x726f_db47_dd0e_0e31);
    }

    impl Sip {
        fn round_twice_block(&mut self, block: u64) {
            self.v[3] ^= block;
            self.round();
            self.round();
            self.v[0] ^= block;
        }
    }

    #[test]
    fn distinct_integers_differ_and_equal_keys_agree() {
        let secrets = Secrets::draw();
        let fingerprints: HashSet<u64> = (0..1_000_000u64).map(|key| secrets.fingerprint(&key)).collect();
        assert_eq!(fingerprints.len(), 1_000_000);
        assert_eq!(secrets.fingerprint("alice"), secrets.fingerprint(&String::from("alice")));
    }

    #[test]
    fn keys_that_join_to_the_same_text_differ() {
        let secrets = Secrets::draw();
        let pairs = [
            ("ab", "c"),
            ("a", "bc"),
            ("abc", ""),
            ("", "abc"),
            ("abcdefgh", "i"),
            ("abcdefg", "hi"),
            ("abcdefgh", ""),
            ("", "abcdefgh"),
            ("abcdefgh", "\u{11}\0\0\0\0\0\0\0"),
            ("abcdefgh\u{11}\0\0\0\0\0\0\0", ""),
        ];
        let fingerprints: HashSet<u64> = pairs.iter().map(|pair| secrets.fingerprint(pair)).collect();
        assert_eq!(fingerprints.len(), pairs.len());
        let bytes = [(1u8, 255u8), (255, 1), (255, 255)].map(|pair| secrets.fingerprint(&("a", pair)));
        assert_eq!(bytes.iter().collect::<HashSet<_>>().len(), 3, "a byte of 255 after a text counts");
        let lengths: HashSet<u64> = (0..600).map(|length| secrets.fingerprint(&vec![0u8; length])).collect();
        assert_eq!(lengths.len(), 600);
    }

    #[test]
    fn text_has_one_fingerprint_by_every_code_path() {
        let secrets = Secrets::draw();
        let text: String = ('a'..='w').cycle().take(300).collect();
        for length in 0..300 {
            let text = &text[..length];
            assert_eq!(secrets.fingerprint(text), secrets.fingerprint_of_text(text.as_bytes()), "{length}");
        }
    }

    #[test]
    fn short_texts_have_distinct_fingerprints() {
        let secrets = Secrets::draw();
        let texts = (0..100_000).map(|n: u32| format!("{n:x}")).chain((0..8).map(|zeros| "\0".repeat(zeros)));
        let texts: HashSet<String> = texts.collect();
        let fingerprints: HashSet<u64> =
            texts.iter().map(|text| secrets.fingerprint(text.as_str())).collect();
        assert_eq!(fingerprints.len(), texts.len());
    }

    #[test]
    fn few_bytes_reads_a_zero_padded_little_endian_number() {
        let bytes = [0x91, 0x82, 0x73, 0x64, 0x55, 0x46, 0x37];
        for length in 0..bytes.len() {
            let mut padded = [0; 8];
            padded[..length].copy_from_slice(&bytes[..length]);
            assert_eq!(few_bytes(&bytes[..length]), u64::from_le_bytes(padded), "{length}");
        }
    }

    #[test]
    fn every_limiter_has_its_own_secrets() {
        assert_ne!(Secrets::draw().fingerprint("alice"), Secrets::draw().fingerprint("alice"));
        assert_ne!(Secrets::draw().fingerprint(&7u64), Secrets::draw().fingerprint(&7u64));
    }

    #[test]
    fn fingerprints_spread_evenly_over_both_ends_of_the_word() {
        let secrets = Secrets::draw();
        let mut high = [0u32; 256];
        let mut low = [0u32; 256];
        for key in 0..256_000u64 {
            let fingerprint = secrets.fingerprint(&key);
            high[(fingerprint >> 56) as usize] += 1;
            low[(fingerprint & 255) as usize] += 1;
        }
        for count in high.iter().chain(&low) {
            assert!((700..1_300).contains(count), "{count} in a part that should hold about 1000");
        }
    }
}
