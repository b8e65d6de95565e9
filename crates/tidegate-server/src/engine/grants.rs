//! # What is out
//!
//! A client that asks often takes tokens ahead and spends them in its own program. Of buckets in Redis nobody here
//! keeps a note: they know themselves what is out. Of everything else the note is here: by its id, what a grant was
//! of, how much it was and when it ends; and of each key, how much is out in all, and until when.
//!
//! A note is torn up by whoever gives the grant back, so it comes back once, however often that is said; and by time.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::clock::Micros;

/// A grant: 128 bits that nobody can guess, written as 32 letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(u128);

/// All notes.
#[derive(Debug, Default)]
pub(super) struct Grants {
    out: Mutex<Out>,
}

#[derive(Debug, Default)]
struct Out {
    notes: HashMap<GrantId, Note>,
    /// Which ends when, the first in front.
    ends: BTreeSet<(Micros, GrantId)>,
    keys: HashMap<Of, BTreeSet<(Micros, GrantId)>>,
}

/// A limit by its name, and a key.
pub(super) type Of = (Box<str>, Box<[u8]>);

/// What was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) of: Of,
    pub(super) amount: u32,
    /// Nobody spends any of it from then on.
    pub(super) until: Micros,
    /// Of a window in Redis: when it ends there.
    pub(super) window: Option<Micros>,
}

/// What is out of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub(super) amount: u64,
    /// When the last of it ends.
    pub(super) until: Micros,
}

/// More notes than this are not kept.
const MOST: usize = 1 << 20;

impl Grants {
    /// One that no other grant has.
    pub(super) fn id(&self) -> GrantId {
        GrantId(super::id::random())
    }

    /// What is out of a key, for as long as `act` decides whether more is; nothing comes in between.
    pub(super) fn with_out<T>(
        &self,
        of: &Of,
        now: Micros,
        act: impl FnOnce(Outstanding, &mut dyn FnMut(GrantId, Note) -> bool) -> T,
    ) -> T {
        let mut out = self.lock();
        out.forget_what_is_over(now);
        let outstanding = out.of(of);
        act(outstanding, &mut |id, note| out.add(id, note))
    }

    /// Keeps a note; whether there was room for it.
    pub(super) fn add(&self, id: GrantId, note: Note, now: Micros) -> bool {
        let mut out = self.lock();
        out.forget_what_is_over(now);
        out.add(id, note)
    }

    /// Tears the note up, if it is one of this key and not over, and does what is to be done with it before anybody
    /// else sees what is out.
    pub(super) fn remove<T>(
        &self,
        id: GrantId,
        of: &Of,
        now: Micros,
        act: impl FnOnce(Note) -> T,
    ) -> Option<T> {
        let mut out = self.lock();
        out.forget_what_is_over(now);
        out.notes.get(&id).filter(|note| note.of == *of)?;
        out.remove(id).map(act)
    }

    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Out {
    fn of(&self, of: &Of) -> Outstanding {
        let Some(grants) = self.keys.get(of) else { return Outstanding::default() };
        let amounts = grants.iter().filter_map(|(_, id)| Some(u64::from(self.notes.get(id)?.amount)));
        let until = grants.last().map_or(Micros::ZERO, |(until, _)| *until);
        Outstanding { amount: amounts.sum(), until }
    }

    fn add(&mut self, id: GrantId, note: Note) -> bool {
        if self.notes.len() >= MOST {
            return false;
        }
        self.ends.insert((note.until, id));
        self.keys.entry(note.of.clone()).or_default().insert((note.until, id));
        self.notes.insert(id, note);
        true
    }

    fn remove(&mut self, id: GrantId) -> Option<Note> {
        let note = self.notes.remove(&id)?;
        self.ends.remove(&(note.until, id));
        if let Some(grants) = self.keys.get_mut(&note.of) {
            grants.remove(&(note.until, id));
            if grants.is_empty() {
                self.keys.remove(&note.of);
            }
        }
        Some(note)
    }

    fn forget_what_is_over(&mut self, now: Micros) {
        while let Some((until, id)) = self.ends.first().copied()
            && until <= now
        {
            self.remove(id);
        }
    }
}

// === impl GrantId ===

impl GrantId {
    pub(super) fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoGrantId;

impl FromStr for GrantId {
    type Err = NoGrantId;

    /// Of exactly 32 small hexadecimal letters: an id has one spelling.
    fn from_str(text: &str) -> Result<Self, NoGrantId> {
        let is_id = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        number.map(GrantId).ok_or(NoGrantId)
    }
}

impl fmt::Display for NoGrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no id of a grant; use the 32 letters that came with it")
    }
}

impl std::error::Error for NoGrantId {}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(key: &str, amount: u32, until: u64) -> Note {
        Note { of: of(key), amount, until: Micros::new(until), window: None }
    }

    fn of(key: &str) -> Of {
        ("user".into(), key.as_bytes().into())
    }

    #[test]
    fn what_is_out_is_known_by_key_and_ends_by_time() {
        let grants = Grants::default();
        let ids = [(); 3].map(|()| grants.id());
        for (id, note) in ids.into_iter().zip([note("a", 3, 50), note("a", 4, 70), note("b", 9, 60)]) {
            assert!(grants.add(id, note, Micros::ZERO));
        }
        let seen = |now| grants.with_out(&of("a"), Micros::new(now), |out, _| (out.amount, out.until.get()));
        assert_eq!([seen(49), seen(50), seen(70)], [(7, 70), (4, 70), (0, 0)]);
        assert_eq!(grants.remove(ids[2], &of("b"), Micros::new(70), |note| note), None, "over");
    }

    #[test]
    fn a_note_is_torn_up_once_and_only_by_who_names_its_key() {
        let grants = Grants::default();
        let id = grants.id();
        assert!(grants.add(id, note("a", 3, 50), Micros::ZERO));
        let remove = |key| grants.remove(id, &of(key), Micros::new(1), |note| note.amount);
        assert_eq!([remove("b"), remove("a"), remove("a")], [None, Some(3), None]);
        assert!(grants.lock().keys.is_empty() && grants.lock().ends.is_empty());
    }

    #[test]
    fn an_id_has_one_spelling_and_no_two_are_alike() {
        let grants = Grants::default();
        let (one, other) = (grants.id(), grants.id());
        assert_ne!(one, other);
        assert_eq!(one.to_string().parse(), Ok(one));
        for text in ["", "0", "ABCDEFABCDEFABCDEFABCDEFABCDEFAB", &format!("{one}0")] {
            assert_eq!(text.parse::<GrantId>(), Err(NoGrantId), "{text}");
        }
    }
}
