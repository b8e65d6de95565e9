//! # Every limiter is a gate
//!
//! A gate with a single rule, number 0, that decides one part at a time.

use std::borrow::Borrow;

use super::{Admission, Answer, AnyPermit, Gate, InvalidRequest, Part, Permits, Remaining, only_part};
use crate::clock::Clock;
use crate::concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter, refused};
use crate::error::{AcquireError, RefusalKind};
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

/// There is one state. The key plays no part.
impl<A, C> Gate for Limiter<A, C>
where
    A: Algorithm + Send + Sync,
    C: Clock + Send + Sync,
{
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| Ok(Admission::without_permits(self.request().cost(part.cost).check())))
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

/// For keys of text: the key of a part equals the text.
impl<K, A, C> Gate for KeyedLimiter<K, A, C>
where
    K: Borrow<str> + ?Sized,
    A: Algorithm + Send + Sync,
    C: Clock + Send + Sync,
{
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| Ok(Admission::without_permits(self.check_key(part.key, part.cost))))
    }

    #[inline(always)] // for a key of known length the compiler leaves out most of the fingerprint
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

/// There is one set of slots. The key plays no part. The permit is in the admission.
impl<C: Clock + Send + Sync> Gate for ConcurrencyLimiter<C> {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| {
            let permit = self.request().cost(part.cost).try_acquire();
            let permit = permit.map(|permit| permit.into_owned().into());
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
            let answer = self.request_for(part.key).cost(part.cost).try_acquire();
            let (permit, free) = match answer {
                Ok(permit) => {
                    let free = permit.free();
                    (Ok(permit.into()), free)
                }
                Err(error) => (Err(error), 0),
            };
            Ok(with_permit(permit, self.now(), self.stats().limit, free))
        })
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

/// Allows every request, after a wait: the outcome is [`Outcome::AllowedAfter`]. The key plays no part.
impl<C: Clock + Send + Sync> Gate for Pacer<C> {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        ready(request, |part| {
            let (at, answer) = self.charge_at(part.cost);
            let (outcome, wait) = match answer {
                Ok(wait) if wait == Wait::micros(0) => (Outcome::Allowed, wait),
                Ok(wait) => (Outcome::AllowedAfter(wait), wait),
                Err(wait) => (Outcome::Never, wait),
            };
            let limit = self.quota().max_burst();
            Ok(Admission::without_permits(Decision::counted(outcome, at, limit, 0, wait)))
        })
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

fn with_permit(permit: Result<AnyPermit, AcquireError>, at: Micros, limit: u32, free: u64) -> Admission {
    match permit {
        Ok(permit) => {
            let decision = Decision::counted(Outcome::Allowed, at, limit.into(), free, Wait::micros(0));
            Admission { permits: Permits(vec![permit]), ..Admission::without_permits(decision) }
        }
        Err(error) => {
            let refusal = error.refusal().unwrap_or(RefusalKind::Busy { cost: 0, limit });
            Admission::without_permits(refused(refusal, at))
        }
    }
}
