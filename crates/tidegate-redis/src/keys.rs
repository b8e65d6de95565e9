//! # Names of the Redis keys
//!
//! One string per rule and key. Its name contains a hash of the key and not the key itself. So names have the same length for
//! every key, and a client cannot choose the cluster slot or forge the name of another key.
//!
//! ```text
//!   tg1{bqmI7nN6aND7HXu3YEDoBA}user      tag: half of SHA-256 over the lengths and bytes of tenant and key
//!     │
//!     └ wire version: scripts of different versions never read each other's values
//! ```
//!
//! The part in braces decides the cluster slot, so all rules of one key share a slot and one call can charge all of them.
//!
//! The version replaces a separator, because Redis needs 16 bytes more per key for a name of 31 bytes than for one
//! of 30: with a rule name of three characters this is exactly 30.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// Makes the names of the Redis keys of one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The hash of the tenant, to which the key is added.
    tenant: Sha256,
}

const PREFIX: &[u8] = b"tg1{";

/// The position of the tag in a name.
pub(crate) const TAG_OFFSET: usize = PREFIX.len();

impl Keys {
    pub(crate) fn for_tenant(tenant: &str) -> Self {
        let mut hash = Sha256::new();
        hash_with_length(&mut hash, tenant.as_bytes());
        Keys { tenant: hash }
    }

    /// The name of the state of `key` under ad-hoc limits. It has no rule name, and every rule has one, so it is unique.
    pub(crate) fn adhoc_name(&self, key: &[u8]) -> Vec<u8> {
        self.name("", key)
    }

    /// The name of the state of `key` under the rule with this name.
    pub(crate) fn name(&self, rule: &str, key: &[u8]) -> Vec<u8> {
        let mut hash = self.tenant.clone();
        hash_with_length(&mut hash, key);
        let digest = hash.finalize();
        let mut name = Vec::with_capacity(PREFIX.len() + 23 + rule.len());
        name.extend_from_slice(PREFIX);
        name.extend_from_slice(URL_SAFE_NO_PAD.encode(&digest[..16]).as_bytes());
        name.push(b'}');
        name.extend_from_slice(rule.as_bytes());
        name
    }
}

/// Adds the length first, so that no two pairs of tenant and key have the same input.
fn hash_with_length(hash: &mut Sha256, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    hash.update(length.to_be_bytes());
    hash.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::Keys;

    fn name(tenant: &str, rule: &str, key: &str) -> String {
        String::from_utf8(Keys::for_tenant(tenant).name(rule, key.as_bytes())).expect("names are text")
    }

    #[test]
    fn a_key_name_is_a_hash_tag_and_the_rule() {
        let alice = name("", "user", "alice");
        assert_eq!(alice.len(), 5 + 22 + 4);
        assert!(alice.starts_with("tg1{") && alice.ends_with("}user"), "{alice}");
        let tag = |name: &str| name[4..26].to_owned();
        assert_eq!(tag(&alice), tag(&name("", "company", "alice")), "rules of one key share a slot");
        assert_ne!(tag(&alice), tag(&name("", "user", "bob")));
    }

    #[test]
    fn different_pairs_have_different_names() {
        let names = [name("", "r", "ab"), name("a", "r", "b"), name("ab", "r", ""), name("", "r", "")];
        for (n, one) in names.iter().enumerate() {
            assert!(names[n + 1..].iter().all(|other| one != other), "{names:?}");
        }
    }

    /// The examples of `WIRE.md`, for implementations in other languages.
    #[test]
    fn names_are_those_of_the_wire() {
        assert_eq!(name("", "user", "alice"), "tg1{bqmI7nN6aND7HXu3YEDoBA}user");
        assert_eq!(name("acme", "user", "alice"), "tg1{dy6F-wDTio-U01xc8RpsBA}user");
        assert_eq!(name("", "global", ""), "tg1{r1Vw9aGBC3r3jK9LxwpmDw}global");
        assert_eq!(Keys::for_tenant("").adhoc_name(b"alice"), b"tg1{bqmI7nN6aND7HXu3YEDoBA}");
    }
}
