//! # A question to the rules
//!
//! A door puts together what it wants to know, and then puts the question by one of the verbs:
//!
//! ```text
//!                       call(&Call)               which rules a request with these descriptors has to pass
//!                       look(&Call)               the same, and it costs nothing
//!   rules.ask()  ──►    rule(number, key, cost)   a rule by name, and another, and another
//!                          │
//!                          ▼
//!              check · peek · refund · reset · acquire          one verdict on all of it: all or nothing
//!              check_each                                       the same, with a verdict on each call
//! ```
//!
//! Everything in one question stands or falls together, in one step. Rules that only watch are no part of it: each is
//! asked for itself, once the request may pass, and what it would have done is counted.
//!
//! What is found is written into buffers that belong to the thread and are used again, so a question costs no
//! allocation once they have grown to what requests need.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::gate::{Key, Part, RuleId};
use tidegate_redis::Leased;

use super::in_force::{InForce, Store};
use super::memory::Memory;
use super::places::{Full, Room};
use super::verdict::{Acquired, Decided, Explanation, Fault, RuleExplained, Verdict};
use super::{Answer, redis};
use crate::rules::{Call, Hit, Listed, Matched, Refusal, Scratch, Why};

/// What is asked of the rules that are in force. Made by [`InForce::ask`].
#[must_use = "a question that is not put is not answered"]
pub struct Question<'f, C: Clock + Send + Sync + 'static> {
    pub(super) force: &'f Arc<InForce<C>>,
    buffers: Buffers,
    /// Whether rules were named: then what they are asked for has to make sense for each of them.
    is_named: bool,
    /// Whether keys that are blocked are refused: by whoever asks to pass.
    heeds_blocks: bool,
}

/// What was found, by its call, in buffers that are used again.
#[derive(Debug, Default)]
struct Buffers {
    scratch: Scratch,
    calls: Vec<Found>,
}

/// What was found for one call.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) hits: Range<usize>,
    pub(super) listed: Option<Listed>,
}

/// More limits than this are not decided on together: whoever comes for one of them would have to wait too long.
pub(super) const MOST_PARTS: usize = 256;
/// So many parts need no allocation.
const FEW: usize = 8;

thread_local! {
    /// The buffers of this thread, while nobody uses them.
    static SPARE: Cell<Buffers> = Cell::default();
}

impl<'f, C: Clock + Send + Sync + 'static> Question<'f, C> {
    pub(super) fn new(force: &'f Arc<InForce<C>>) -> Self {
        Question { force, buffers: SPARE.take(), is_named: false, heeds_blocks: true }
    }

    /// With a request: all rules that match its descriptors.
    pub fn call(mut self, call: &Call<'_>) -> Self {
        let compiled = self.force.compiled();
        self.found(|scratch| compiled.find_more(call, scratch));
        self
    }

    /// With a request that is only looked at: it costs nothing, whatever the rules say, and stands or falls with the
    /// others all the same.
    pub fn look(self, call: &Call<'_>) -> Self {
        let start = self.matched().hits().len();
        let mut question = self.call(call);
        question.buffers.scratch.cost_nothing_from(start);
        question
    }

    /// With a rule, by its place in the file, for a key of these parts, one for each that the rule's key has. The
    /// cost is what the rule says, or 1, unless it is said here. It is the same count as that of a request whose
    /// descriptors have these values.
    pub fn rule<'k>(mut self, number: u32, key: impl Iterator<Item = &'k [u8]>, cost: Option<u32>) -> Self {
        self.add_rule(number, key, cost);
        self
    }

    pub(crate) fn add_rule<'k>(
        &mut self,
        number: u32,
        key: impl Iterator<Item = &'k [u8]>,
        cost: Option<u32>,
    ) {
        let compiled = self.force.compiled();
        self.found(|scratch| compiled.find_named(number, key, cost, scratch));
        self.is_named = true;
    }

    fn found(&mut self, find: impl FnOnce(&mut Scratch) -> Option<Listed>) {
        let Buffers { scratch, calls } = &mut self.buffers;
        let start = scratch.matched().hits().len();
        let listed = find(scratch);
        calls.push(Found { hits: start..scratch.matched().hits().len(), listed });
    }

    /// Decides whether everything in the question may pass now, and charges all of it if it may, else nothing.
    pub fn check(self) -> Answer<Result<Decided, Fault>> {
        if let (Store::Memory(policy), Some(part)) = (&self.force.store, self.only_part()) {
            return Answer::Ready(self.check_one(policy, part));
        }
        if let Some(decided) = self.decided_already() {
            return Answer::Ready(Ok(decided));
        }
        self.limited(|it, policy| it.check_now(policy), |it, gate| redis::check(it, gate.clone()))
    }

    /// Decides as [`check`](Question::check) or [`acquire`](Question::acquire) would, and charges and counts nothing.
    pub fn peek(self) -> Answer<Result<Decided, Fault>> {
        self.put(|it, policy| it.peek_now(policy), |it, gate| redis::peek(it, gate.clone()))
    }

    /// Gives back what a recent charge took, never above the limits, and tells what is left. For places, see
    /// [`release`](super::Engine::release).
    pub fn refund(self) -> Answer<Result<Decided, Fault>> {
        self.heedless().put(
            |it, policy| it.change_now(policy, |policy, parts| policy.request().parts(parts).refund()),
            |it, gate| redis::change(it, gate.clone(), redis::Back::Refund),
        )
    }

    /// Forgets what the keys have used, and tells what is left. For places, see [`release`](super::Engine::release).
    pub fn reset(self) -> Answer<Result<Decided, Fault>> {
        self.heedless().put(
            |it, policy| it.change_now(policy, |policy, parts| policy.request().parts(parts).reset()),
            |it, gate| redis::change(it, gate.clone(), redis::Back::Reset),
        )
    }

    /// The limit that is asked about, if it is the only one, for something that passes, and nothing else is to be looked
    /// at. So it is nearly always.
    #[inline]
    fn only_part(&self) -> Option<Part<'_>> {
        let (matched, [_]) = (self.matched(), self.calls()) else { return None };
        let [hit] = matched.hits() else { return None };
        let is_plain = !hit.shadow && hit.refusal.is_none() && hit.limits.len() == 1;
        let part = Part::of(RuleId(hit.limits.start)).key(matched.key(hit)).cost(hit.cost);
        (is_plain && self.force.blocks.is_empty() && !self.is_place(&part)).then_some(part)
    }

    /// What is decided without looking at any limit, and counted.
    #[inline]
    fn decided_already(&self) -> Option<Decided> {
        let nothing = matches!(self.force.store, Store::Nothing).then_some(Verdict::Unlimited);
        self.settled().or(nothing).map(|verdict| self.counting(Decided::by(verdict)))
    }

    fn counting(&self, decided: Decided) -> Decided {
        self.force.count(&decided, std::iter::empty());
        decided
    }

    fn heedless(mut self) -> Self {
        self.heeds_blocks = false;
        self
    }

    fn put(
        self,
        now: impl FnOnce(&Self, &Memory<C>) -> Result<Decided, Fault>,
        later: impl FnOnce(&Self, &Leased) -> Answer<Result<Decided, Fault>>,
    ) -> Answer<Result<Decided, Fault>> {
        match self.settled() {
            Some(verdict) => Answer::Ready(Ok(Decided::by(verdict))),
            None => self.limited(now, later),
        }
    }

    fn limited(
        self,
        now: impl FnOnce(&Self, &Memory<C>) -> Result<Decided, Fault>,
        later: impl FnOnce(&Self, &Leased) -> Answer<Result<Decided, Fault>>,
    ) -> Answer<Result<Decided, Fault>> {
        match &self.force.store {
            Store::Nothing => Answer::Ready(Ok(Decided::by(Verdict::Unlimited))),
            Store::Memory(policy) => Answer::Ready(now(&self, policy)),
            Store::Redis(gate) => later(&self, gate),
        }
    }

    /// As [`check`](Question::check), for a request that asks for places too. They are held by one id, for the
    /// shortest lease of the rules they are of.
    pub fn acquire(self) -> Answer<Result<Acquired, Fault>> {
        if let Some(decided) = self.decided_already() {
            return Answer::Ready(Ok(Acquired { decided, place: None }));
        }
        if let Err(fault) = self.can_hold() {
            return Answer::Ready(Err(fault));
        }
        match &self.force.store {
            Store::Nothing => {
                Answer::Ready(Ok(Acquired { decided: Decided::by(Verdict::Unlimited), place: None }))
            }
            Store::Memory(policy) => Answer::Ready(self.acquire_now(policy)),
            Store::Redis(gate) => redis::acquire(&self, gate.clone()),
        }
    }

    /// As [`check`](Question::check), with what became of each call, in their order. All of them were charged if all
    /// may pass, else none; those that would have passed without the others are told as they were found. Allocates.
    pub fn check_each(self) -> Answer<Result<Vec<Decided>, Fault>> {
        match &self.force.store {
            Store::Nothing => Answer::Ready(Ok(self.each(|found| {
                self.counting(Decided::by(self.settled_of(found).unwrap_or(Verdict::Unlimited)))
            }))),
            Store::Memory(policy) => Answer::Ready(self.check_each_now(policy)),
            Store::Redis(gate) => redis::check_each(&self, gate.clone()),
        }
    }

    // === what was found ===

    pub(super) fn matched(&self) -> Matched<'_> {
        self.buffers.scratch.matched()
    }

    pub(super) fn calls(&self) -> &[Found] {
        &self.buffers.calls
    }

    pub(super) fn each<T>(&self, of: impl FnMut(&Found) -> T) -> Vec<T> {
        self.calls().iter().map(of).collect()
    }

    /// What is decided without looking at any limit.
    pub(super) fn settled(&self) -> Option<Verdict> {
        if let [only] = self.calls() {
            return self.settled_of(only);
        }
        let mut settled = self.calls().iter().filter_map(|found| self.settled_of(found));
        settled.find(|verdict| !verdict.is_allowed())
    }

    /// The same of one call.
    pub(super) fn settled_of(&self, found: &Found) -> Option<Verdict> {
        match found.listed {
            Some(Listed::Denied) => return Some(Verdict::Denied),
            Some(Listed::Allowed) => return Some(Verdict::Exempt),
            None => {}
        }
        let mut refusals = self.hits(found).iter().filter(|hit| !hit.shadow);
        refusals.find_map(|hit| {
            let refusal = hit.refusal.or_else(|| self.is_blocked(hit).then_some(Refusal::Blocked));
            Some(Verdict::Refused { rule: hit.rule, refusal: refusal? })
        })
    }

    #[inline]
    fn is_blocked(&self, hit: &Hit) -> bool {
        self.heeds_blocks && !self.force.blocks.is_empty() && self.force.is_blocked(&self.matched(), hit)
    }

    pub(super) fn hits(&self, found: &Found) -> &[Hit] {
        &self.matched().hits()[found.hits.clone()]
    }

    /// The rules that only watch.
    pub(super) fn watching(&self) -> impl Iterator<Item = &Hit> {
        self.matched().hits().iter().filter(|hit| hit.shadow)
    }

    pub(super) fn is_place(&self, part: &Part<'_>) -> bool {
        self.force.lease(part.rule).is_some()
    }

    /// Whether a rule that only watches is about places: then it cannot be asked by those who hold none.
    pub(super) fn has_places(&self, hit: &Hit) -> bool {
        self.matched().parts_of_hit(hit).any(|part| self.is_place(&part))
    }

    pub(super) fn no_places(&self) -> Result<(), Fault> {
        match self.matched().parts().find(|part| self.is_place(part)) {
            Some(part) => {
                let rule = self.force.name(part.rule).to_owned();
                Err(Fault::NeedsPlace { limit: part.rule, rule })
            }
            None => Ok(()),
        }
    }

    /// Whether a request for places names any, and holds some of them.
    fn can_hold(&self) -> Result<(), Fault> {
        let mut places = self.matched().parts().filter(|part| self.is_place(part)).peekable();
        if self.is_named && places.peek().is_none() {
            return Err(Fault::NoPlaces);
        }
        // What costs nothing always passes, so there would be no bound on how many hold it.
        if places.peek().is_some() && places.all(|part| part.cost == 0) {
            return Err(Fault::NothingToHold);
        }
        Ok(())
    }

    /// The shortest lease of all places.
    pub(super) fn lease(&self) -> Option<Duration> {
        let matched = self.matched();
        let leases = |part: Part<'_>| self.force.lease(part.rule);
        matched.parts().filter_map(leases).min().or_else(|| matched.shadow_parts().filter_map(leases).min())
    }

    /// Frees some permits whose lease is over; whether there may be more.
    pub(super) fn free_overdue(&self) -> bool {
        self.lease().is_some() && self.force.places.free_overdue(self.force.clock.now())
    }

    /// Room for the permits that are asked for, if any are.
    pub(super) fn room(&self) -> Result<Option<Room>, Fault> {
        let matched = self.matched();
        let mut parts = matched.parts().chain(matched.shadow_parts()).filter(|part| self.is_place(part));
        let Some(part) = parts.next() else { return Ok(None) };
        let rule = self.force.name(part.rule);
        self.force.places.room(rule).map(Some).map_err(|full| match full {
            Full::OfRule(most) => Fault::TooManyHeld { rule: Some(rule.to_owned()), most },
            Full::All(most) => Fault::TooManyHeld { rule: None, most },
        })
    }

    /// What is given back or forgotten: rates, those of rules that only watch too. A rule about places that was named
    /// is a mistake; one that happens to match is left out.
    pub(super) fn rates(&self) -> Result<impl Iterator<Item = Part<'_>>, Fault> {
        if self.is_named {
            self.no_places()?;
        }
        let matched = self.matched();
        let all = matched.parts().chain(matched.shadow_parts());
        Ok(all.filter(|part| !self.is_place(part)))
    }

    /// Hands the parts over as one request; `None` if there are none. Parts of several calls for the same limit and
    /// key become one.
    pub(super) fn together<'s, R>(
        &self,
        mut parts: impl Iterator<Item = Part<'s>>,
        put: impl FnOnce(&[Part<'s>]) -> Result<R, Fault>,
    ) -> Result<Option<R>, Fault> {
        let mut few = [Part::of(RuleId(0)); FEW];
        let mut count = 0;
        for (place, part) in few.iter_mut().zip(&mut parts) {
            *place = part;
            count += 1;
        }
        if count == 0 {
            return Ok(None);
        }
        if count < FEW && (self.is_named || self.calls().len() == 1) {
            return put(&few[..count]).map(Some);
        }
        let mut all = few[..count].to_vec();
        all.extend(parts);
        if !self.is_named {
            merge(&mut all);
        }
        within_bounds(all.len())?;
        put(&all).map(Some)
    }
}

/// Makes one part of those for the same limit and key.
pub(super) fn merge(parts: &mut Vec<Part<'_>>) {
    let mut places: HashMap<(RuleId, Key<'_>), usize> = HashMap::new();
    let mut merged: Vec<Part<'_>> = Vec::with_capacity(parts.len());
    for part in parts.drain(..) {
        match places.entry((part.rule, part.key)) {
            Entry::Occupied(place) => {
                let before = &mut merged[*place.get()];
                *before = before.cost(before.cost.saturating_add(part.cost));
            }
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(part);
            }
        }
    }
    parts.extend(merged);
}

pub(super) fn within_bounds(parts: usize) -> Result<(), Fault> {
    if parts > MOST_PARTS { Err(Fault::TooMany { parts, most: MOST_PARTS }) } else { Ok(()) }
}

impl<C: Clock + Send + Sync + 'static> Drop for Question<'_, C> {
    fn drop(&mut self) {
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.scratch.clear();
        buffers.calls.clear();
        buffers.calls.shrink_to(FEW);
        // A thread that is ending has no use for them.
        let _ = SPARE.try_with(|spare| spare.set(buffers));
    }
}

impl<C: Clock + Send + Sync + 'static> fmt::Debug for Question<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

// === explaining ===

impl<C: Clock + Send + Sync + 'static> InForce<C> {
    /// Why a request is decided as it is: which rules apply, which do not and why, and what is left of each limit.
    /// Charges nothing. Takes its time; it is for people.
    pub fn explain(self: &Arc<Self>, call: &Call<'_>) -> Answer<Explanation> {
        let explained = self.compiled().explain(call);
        let mut scratch = Scratch::default();
        let matched = self.compiled().find(call, &mut scratch);
        let rules = explained.rules.into_iter().zip(self.compiled().rules());
        let rules = rules.map(|(why, rule)| RuleExplained {
            name: rule.name.clone(),
            shadow: rule.shadow,
            why,
            limits: Vec::new(),
        });
        let mut explanation = Explanation { listed: explained.listed, rules: rules.collect() };
        for hit in matched.hits().iter().filter(|hit| !hit.shadow && self.is_blocked(&matched, hit)) {
            explanation.rules[hit.rule as usize].why = Why::Refused { refusal: Refusal::Blocked, name: None };
        }
        match &self.store {
            Store::Nothing => Answer::Ready(explanation),
            Store::Memory(policy) => {
                Answer::Ready(super::memory::with_what_is_left(self, explanation, &matched, policy))
            }
            Store::Redis(gate) => redis::with_what_is_left(self, explanation, &matched, gate.clone()),
        }
    }

    fn is_blocked(&self, matched: &Matched<'_>, hit: &Hit) -> bool {
        let rule = self.compiled().rule(hit.rule as usize).map_or("", |rule| &rule.name);
        self.blocks.left(rule, matched.key(hit), || self.clock.now()).is_some()
    }

    /// What an explanation calls a limit.
    pub(super) fn limit_name(&self, limit: RuleId) -> String {
        self.limit(limit).map(|numbered| numbered.identity.name.clone()).unwrap_or_default()
    }
}
