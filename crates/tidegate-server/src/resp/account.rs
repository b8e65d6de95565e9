//! # Who may ask
//!
//! A name and a password. They are compared in a time that does not tell how much of them was right.

use std::fmt;

use subtle::ConstantTimeEq;

/// Somebody who may ask.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    user: String,
    password: String,
    may_change: bool,
}

/// Who is meant by a password without a name.
pub(crate) const DEFAULT_USER: &str = "default";

impl Account {
    /// This user, who knows this password.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Account { user: user.into(), password: password.into(), may_change: true }
    }

    /// The same, who may not reset keys.
    #[must_use]
    pub fn who_only_checks(self) -> Self {
        Account { may_change: false, ..self }
    }

    pub(crate) fn may_change(&self) -> bool {
        self.may_change
    }

    /// Whoever knows this password, without a name.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Account::new(DEFAULT_USER, password)
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Whether this is who it says it is. Both are compared, whether or not the first is the same.
    pub(crate) fn is(&self, user: &[u8], password: &[u8]) -> bool {
        (self.user.as_bytes().ct_eq(user) & self.password.as_bytes().ct_eq(password)).into()
    }
}

impl fmt::Debug for Account {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({:?})", self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_is_the_same() {
        let alice = Account::new("alice", "secret");
        assert!(alice.is(b"alice", b"secret"));
        let others: [(&[u8], &[u8]); 7] = [
            (b"alice", b"secreT"),
            (b"alice", b"secre"),
            (b"alice", b"secret\0"),
            (b"alice", b""),
            (b"alicE", b"secret"),
            (b"", b"secret"),
            (b"", b""),
        ];
        assert!(others.iter().all(|(user, password)| !alice.is(user, password)));
        assert_eq!(format!("{alice:?}"), "Account(\"alice\")");
    }
}
