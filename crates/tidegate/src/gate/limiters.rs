//! # Every limiter is a gate
//!
//! One with a single rule, number 0, that decides on one part at a time.

use std::borrow::Borrow;

use super::{Admission, Answer, AnyPermit, Gate, InvalidRequest, Part, Permits, Remaining, only_part};
use crate::clock::Clock;
use crate::concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter, Refused, refusal};
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::pacer::Pacer;
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Wait};

fn ready<'a>(
    request: &[Part<'_>],
    admit: impl FnOnce(Part<'_>) -> Result<Admission, InvalidRequest>,
) -> Answer<'a> {
    Answer::Ready(only_part(request).and_then(admit))
}

/// There is one state, whatever the key.
impl<A, C> Gate for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Clock + Send + Sync,
{
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| Ok(Admission::without_permits(self.cost(part.cost).check())))
    }

    #[inline]
    fn passes(&self, request: &[Part<'_>]) -> bool {
        only_part(request).is_ok_and(|part| self.pass_fast(part.cost).is_some())
    }

    #[inline]
    fn pass_with(&self, request: &[Part<'_>]) -> Option<Remaining> {
        only_part(request).ok().and_then(|part| self.pass_fast(part.cost)).map(Remaining::from)
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

/// For keys of text: a request's key is the same as the text.
impl<K, A, C> Gate for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Clock + Send + Sync,
{
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| Ok(Admission::without_permits(self.check_key(part.key, part.cost))))
    }

    #[inline(always)] // where the key is known to be short, the rest of making a fingerprint is left out
    fn passes(&self, request: &[Part<'_>]) -> bool {
        match only_part(request) {
            Ok(part) => self.pass_fast(part.key, part.cost).is_some(),
            Err(_) => false,
        }
    }

    #[inline(always)]
    fn pass_with(&self, request: &[Part<'_>]) -> Option<Remaining> {
        let part = only_part(request).ok()?;
        self.pass_fast(part.key, part.cost).map(Remaining::from)
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

/// There are the same slots, whatever the key. The permit is in the admission.
impl<C: Clock + Send + Sync> Gate for ConcurrencyLimiter<C> {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| {
            let permit = self.cost(part.cost).try_acquire().map(|permit| permit.into_owned().into());
            let stats = self.stats();
            let free = u64::from(stats.limit).saturating_sub(stats.in_use);
            Ok(with_permit(permit, self.now(), stats.limit, free))
        })
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

/// For keys of text. The permit is in the admission.
impl<K, C> Gate for KeyedConcurrencyLimiter<K, C>
where
    K: Borrow<str> + ?Sized,
    C: Clock + Send + Sync,
{
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| {
            let answer = self.try_acquire_key(part.key, part.cost);
            let (permit, free) = match answer {
                Ok(permit) => {
                    let free = permit.free();
                    (Ok(permit.into()), free)
                }
                Err(refused) => (Err(refused), 0),
            };
            Ok(with_permit(permit, self.now(), self.stats().limit, free))
        })
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

/// Lets everybody pass, after a wait: the outcome is [`Outcome::AllowedAfter`], and the key plays no part.
impl<C: Clock + Send + Sync> Gate for Pacer<C> {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| {
            let (at, answer) = self.charge_at(part.cost.into());
            let (outcome, wait) = match answer {
                Ok(wait) if wait == Wait::micros(0) => (Outcome::Allowed, wait),
                Ok(wait) => (Outcome::AllowedAfter(wait), wait),
                Err(too_long) => (Outcome::Never, too_long.wait),
            };
            let limit = self.quota().max_burst();
            Ok(Admission::without_permits(Decision::counted(outcome, at, limit, 0, wait)))
        })
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

fn with_permit(permit: Result<AnyPermit, Refused>, at: Micros, limit: u32, free: u64) -> Admission {
    match permit {
        Ok(permit) => {
            let decision = Decision::counted(Outcome::Allowed, at, limit.into(), free, Wait::micros(0));
            Admission { permits: Permits(vec![permit]), ..Admission::without_permits(decision) }
        }
        Err(refused) => Admission::without_permits(refusal(refused, at)),
    }
}
