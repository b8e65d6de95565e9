//! # Where a state lies
//!
//! One string per rule and key. Its name holds a hash of the key and not the key itself: so it has the same length for every
//! key, nobody can choose the slot it falls into, and nobody can name somebody else's.
//!
//! ```text
//!   tg:{Zk9wXb2uT1mQ0vYc7dLh3g}user      tag: half of SHA-256 over the lengths and bytes of tenant and key
//! ```
//!
//! What is in braces decides the slot, so the rules of one key lie together, and one call can charge all of them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// What the names of all keys of one tenant begin with, and how they go on.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The hash, fed with the tenant.
    tenant: Sha256,
}

/// Where the tag begins in a name.
pub(crate) const BEFORE_THE_TAG: usize = 4;

impl Keys {
    pub(crate) fn of(tenant: &str) -> Self {
        let mut hash = Sha256::new();
        feed(&mut hash, tenant.as_bytes());
        Keys { tenant: hash }
    }

    /// The name of the string that holds the state of `key` under a limit that comes with the call, which has no name.
    /// No rule is without one, so this is no rule's.
    pub(crate) fn of_brought(&self, key: &[u8]) -> Vec<u8> {
        self.name("", key)
    }

    /// The name of the string that holds the state of `key` under the rule with this name.
    pub(crate) fn name(&self, rule: &str, key: &[u8]) -> Vec<u8> {
        let mut hash = self.tenant.clone();
        feed(&mut hash, key);
        let digest = hash.finalize();
        let mut name = Vec::with_capacity(5 + 22 + rule.len());
        name.extend_from_slice(b"tg:{");
        name.extend_from_slice(URL_SAFE_NO_PAD.encode(&digest[..16]).as_bytes());
        name.push(b'}');
        name.extend_from_slice(rule.as_bytes());
        name
    }
}

/// The length first, so that no two pairs of texts are hashed alike.
fn feed(hash: &mut Sha256, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    hash.update(length.to_be_bytes());
    hash.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::Keys;

    fn name(tenant: &str, rule: &str, key: &str) -> String {
        String::from_utf8(Keys::of(tenant).name(rule, key.as_bytes())).expect("names are text")
    }

    #[test]
    fn a_key_name_is_a_hash_tag_and_the_rule() {
        let alice = name("", "user", "alice");
        assert_eq!(alice.len(), 5 + 22 + 4);
        assert!(alice.starts_with("tg:{") && alice.ends_with("}user"), "{alice}");
        let tag = |name: &str| name[4..26].to_owned();
        assert_eq!(tag(&alice), tag(&name("", "company", "alice")), "rules of one key share a slot");
        assert_ne!(tag(&alice), tag(&name("", "user", "bob")));
    }

    #[test]
    fn different_tenants_and_keys_have_different_names() {
        let names = [name("", "r", "ab"), name("a", "r", "b"), name("ab", "r", ""), name("", "r", "")];
        for (n, one) in names.iter().enumerate() {
            assert!(names[n + 1..].iter().all(|other| one != other), "{names:?}");
        }
    }

    /// Programs in other languages compute the same names.
    #[test]
    fn key_names_stay_as_wire_md_lists_them() {
        assert_eq!(name("", "user", "alice"), "tg:{bqmI7nN6aND7HXu3YEDoBA}user");
        assert_eq!(name("acme", "user", "alice"), "tg:{dy6F-wDTio-U01xc8RpsBA}user");
        assert_eq!(name("", "everybody", ""), "tg:{r1Vw9aGBC3r3jK9LxwpmDw}everybody");
        assert_eq!(Keys::of("").of_brought(b"alice"), b"tg:{bqmI7nN6aND7HXu3YEDoBA}");
    }
}
