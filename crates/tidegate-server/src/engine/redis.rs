//! # Answers from Redis
//!
//! They come later. Until then the request is gone and its buffers are somebody else's, so what is asked for is copied
//! first. Which rules only watch is settled in the same way as in memory: each is asked for itself, after the request.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate::gate::{Part, RuleId};
use tidegate::{Admission, Permits};
use tidegate_redis::{Builder, Leased, OnOutage as Lost, RedisGate};

use super::Answer;
use super::in_force::InForce;
use super::inspect::Left;
use super::memory::strictest;
use super::question::Question;
use super::rules::InvalidRules;
use super::verdict::{Acquired, Decided, Explanation, Fault, Verdict};
use crate::config::{Redis, Servers};
use crate::rules::{Compiled, Hit, Limit, Matched, OnOutage};

/// A gate to the Redis that the file names, with these rules. It goes on with the numbers of the one before it.
pub(super) fn gate(
    compiled: &Compiled,
    config: &Redis,
    before: Option<&Leased>,
) -> Result<Leased, InvalidRules> {
    let builder = match &config.servers {
        Servers::Single(url) => RedisGate::builder(url.reveal()),
        Servers::Cluster(urls) => RedisGate::cluster(urls.iter().map(|url| url.reveal())),
    };
    let builder = builder.deadline(config.deadline).nodes(config.nodes).connections(config.connections);
    let builder = builder.in_flight(config.in_flight).tenant(&config.tenant).without_rules();
    let builder = trusting(builder, config)?;
    let builder = match before {
        Some(before) => builder.continue_counters_of(before.strict()),
        None => builder,
    };
    let builder = compiled.limits().iter().fold(builder, |builder, numbered| {
        let name = &numbered.identity.name;
        let builder = match numbered.limit {
            Limit::Rate(rate) => builder.rule(name, rate),
            Limit::AtOnce { limit, lease } => builder.concurrency(name, limit, lease),
        };
        let builder = builder.on_outage(match numbered.when_lost {
            OnOutage::Open => Lost::Open,
            OnOutage::Closed => Lost::Closed,
            OnOutage::Local => Lost::Local,
        });
        match numbered.lease {
            Some(lease) => builder.lease(lease),
            None => builder,
        }
    });
    let builder = builder.outage_retry_after(config.outage_retry_after);
    // The service opens its listeners without the store, too, so it waits for it by itself: `Engine::connect`.
    let gate = builder.lazy().map_err(|invalid| InvalidRules::Redis(invalid.to_string()))?;
    Ok(gate.leased())
}

fn trusting(builder: Builder, config: &Redis) -> Result<Builder, InvalidRules> {
    let Some(path) = &config.root_certificate else { return Ok(builder) };
    let pem = std::fs::read(path).map_err(|error| {
        InvalidRules::Redis(format!("the root certificate {path} cannot be read: {error}; name one that can"))
    })?;
    Ok(builder.root_certificate(pem))
}

/// Waits until a new gate stands as firmly as the old one, or a moment has passed: whoever is handed to it before is
/// decided on without Redis.
pub(super) fn wait_for(new: &Leased, old: &Leased) {
    let until = Instant::now() + Duration::from_secs(2);
    let is_there = |gate: &RedisGate| gate.health().enforced == Some(true);
    while is_there(old.strict()) && !is_there(new.strict()) && Instant::now() < until {
        thread::sleep(Duration::from_millis(2));
    }
}

/// What is asked for, copied.
#[derive(Clone, Debug)]
struct Copied {
    rule: RuleId,
    key: Box<[u8]>,
    cost: u32,
}

/// A rule that only watches, copied.
struct Watching {
    rule: u32,
    refuses: bool,
    parts: Vec<Copied>,
}

/// What to do to a key.
#[derive(Clone, Copy)]
pub(super) enum Back {
    Refund,
    Reset,
}

type Checked = Answer<Result<Decided, Fault>>;

pub(super) fn check<C: Clock + Send + Sync + 'static>(question: &Question<'_, C>, gate: Leased) -> Checked {
    match question.no_places().and_then(|()| at_once(question, &gate)) {
        Ok(Some(decided)) => return Answer::Ready(Ok(decided)),
        Ok(None) => {}
        Err(fault) => return Answer::Ready(Err(fault)),
    }
    let asked = enforced(question);
    let asked = match asked {
        Ok(asked) => asked,
        Err(fault) => return Answer::Ready(Err(fault)),
    };
    let (watching, force) = (watching(question, |hit| !question.has_places(hit)), question.force.clone());
    let deadline = gate.deadline(); // from when it was asked: requests of a batch may wait for those before them
    Answer::Pending(Box::pin(async move {
        let verdict = match admitted(&gate, &force, &asked, deadline).await? {
            Some(admission) => Verdict::Limited(admission.decision),
            None => Verdict::Unlimited,
        };
        force.count(&Decided::by(verdict), asked.iter().map(Copied::part));
        let (would_refuse, _) = watched(&gate, &force, &watching, verdict.is_allowed(), deadline).await;
        Ok(Decided { verdict, would_refuse })
    }))
}

pub(super) fn peek<C: Clock + Send + Sync + 'static>(question: &Question<'_, C>, gate: Leased) -> Checked {
    question.free_overdue();
    let asked = match enforced(question) {
        Ok(asked) => asked,
        Err(fault) => return Answer::Ready(Err(fault)),
    };
    let watching = watching(question, |_| true);
    Answer::Pending(Box::pin(async move {
        let verdict = seen(&gate, &asked).await?;
        let mut would_refuse = None;
        for one in watching.iter().filter(|_| verdict.is_allowed()) {
            let refuses = one.refuses || !seen(&gate, &one.parts).await?.is_allowed();
            would_refuse = would_refuse.or(refuses.then_some(one.rule));
        }
        Ok(Decided { verdict, would_refuse })
    }))
}

pub(super) fn change<C: Clock + Send + Sync + 'static>(
    question: &Question<'_, C>,
    gate: Leased,
    back: Back,
) -> Checked {
    let asked = question.rates().and_then(|rates| together(question, rates));
    let asked = match asked {
        Ok(asked) => asked,
        Err(fault) => return Answer::Ready(Err(fault)),
    };
    let left = question.matched().parts().filter(|part| !question.is_place(part));
    let left: Vec<Copied> = left.map(|part| Copied::of(part.cost(0))).collect();
    Answer::Pending(Box::pin(async move {
        let asked = parts(&asked);
        let left = seen(&gate, &left);
        if asked.is_empty() {
            return Ok(Decided::by(left.await?));
        }
        let left = match back {
            // Both are sent at once, in this order, so what is left is told before the next request of a batch gives back.
            Back::Refund => {
                let (refunded, left) = tokio::join!(biased; gate.request().parts(&asked).refund(), left);
                refunded.map_err(Fault::from).and(left)
            }
            Back::Reset => {
                gate.request().parts(&asked).reset().await?;
                left.await
            }
        };
        Ok(Decided::by(left?))
    }))
}

pub(super) fn acquire<C: Clock + Send + Sync + 'static>(
    question: &Question<'_, C>,
    gate: Leased,
) -> Answer<Result<Acquired, Fault>> {
    question.free_overdue();
    let (asked, room) = match enforced(question).and_then(|asked| Ok((asked, question.room()?))) {
        Ok(asked) => asked,
        Err(fault) => return Answer::Ready(Err(fault)),
    };
    let (watching, force, lease) = (watching(question, |_| true), question.force.clone(), question.lease());
    let now = question.force.clock.now();
    let deadline = gate.deadline();
    Answer::Pending(Box::pin(async move {
        let (verdict, permits) = match admitted(&gate, &force, &asked, deadline).await? {
            Some(admission) => (Verdict::Limited(admission.decision), admission.permits),
            None => (Verdict::Unlimited, Permits::none()),
        };
        force.count(&Decided::by(verdict), asked.iter().map(Copied::part));
        let (would_refuse, others) = watched(&gate, &force, &watching, verdict.is_allowed(), deadline).await;
        let permits = permits.and(others);
        let lease = lease.filter(|_| verdict.is_allowed() && !permits.is_empty());
        let place =
            lease.zip(room).map(|(lease, room)| (force.places.hold(permits, room, lease, now), lease));
        Ok(Acquired { decided: Decided { verdict, would_refuse }, place })
    }))
}

pub(super) fn check_each<C: Clock + Send + Sync + 'static>(
    question: &Question<'_, C>,
    gate: Leased,
) -> Answer<Result<Vec<Decided>, Fault>> {
    let asked = question.no_places().and_then(|()| enforced(question));
    let asked = match asked {
        Ok(asked) => asked,
        Err(fault) => return Answer::Ready(Err(fault)),
    };
    let calls = question.each(|found| {
        let own: Vec<Copied> = question.parts_of(found).map(Copied::of).collect();
        let of_it = question.hits(found).iter().filter(|hit| hit.shadow && !question.has_places(hit));
        (question.settled_of(found), own, of_it.map(|hit| Watching::of(question, hit)).collect::<Vec<_>>())
    });
    let (force, deadline) = (question.force.clone(), gate.deadline());
    Answer::Pending(Box::pin(async move {
        let is_refused = calls.iter().any(|(settled, ..)| settled.is_some_and(|it| !it.is_allowed()));
        let asked = parts(&asked);
        let started = Instant::now();
        let admission =
            if asked.is_empty() || is_refused { None } else { Some(gate.check_each_parts(&asked).await?) };
        if admission.is_some() {
            force.meter.store.saw(started.elapsed());
        }
        let passes = !is_refused && admission.as_ref().is_none_or(Admission::is_allowed);
        let mut all = Vec::with_capacity(calls.len());
        for (settled, own, watching) in &calls {
            let limited = match &admission {
                _ if own.is_empty() => Verdict::Unlimited,
                // Nobody told what each of them said: Redis did not decide. Then what was decided counts for all.
                Some(admission) => Verdict::Limited(
                    strictest(parts(own).into_iter(), &asked, &admission.rules).unwrap_or(admission.decision),
                ),
                // Beside one that is refused anyway: if Redis does not tell what is left, nothing is said of it.
                None => match seen(&gate, own).await {
                    Err(Fault::Store(_)) => Verdict::Unlimited,
                    seen => seen?,
                },
            };
            let verdict = settled.unwrap_or(limited);
            // Beside one that was refused whatever the limits say, the others were only looked at.
            if settled.is_some() || !is_refused {
                force.count(&Decided::by(verdict), own.iter().map(Copied::part));
            }
            let (would_refuse, _) = watched(&gate, &force, watching, passes, deadline).await;
            all.push(Decided { verdict, would_refuse });
        }
        Ok(all)
    }))
}

pub(super) fn with_what_is_left<C: Clock + Send + Sync + 'static>(
    force: &Arc<InForce<C>>,
    mut explanation: Explanation,
    matched: &Matched<'_>,
    gate: Leased,
) -> Answer<Explanation> {
    let hits = matched.hits().iter().filter(|hit| hit.refusal.is_none());
    let wanted = hits.flat_map(|hit| {
        matched
            .parts_of_hit(hit)
            .map(|part| (hit.rule, force.limit_name(part.rule), Copied::of(part.cost(0))))
    });
    let wanted: Vec<_> = wanted.collect();
    Answer::Pending(Box::pin(async move {
        for (rule, name, part) in wanted {
            let left = gate.strict().request().parts(&[part.part()]).peek().await.ok();
            explanation.rules[rule as usize].limits.push((name, left));
        }
        explanation
    }))
}

pub(super) fn left<'p>(wanted: impl Iterator<Item = (String, Part<'p>)>, gate: Leased) -> Answer<Vec<Left>> {
    let wanted: Vec<_> = wanted.map(|(name, part)| (name, Copied::of(part))).collect();
    Answer::Pending(Box::pin(async move {
        let mut all = Vec::with_capacity(wanted.len());
        for (name, part) in wanted {
            let left = gate.strict().request().parts(&[part.part()]).peek().await.ok();
            all.push((name, left));
        }
        all
    }))
}

// === asking ===

/// What this process can decide from what it was granted, without asking and without copying.
fn at_once<C: Clock + Send + Sync + 'static>(
    question: &Question<'_, C>,
    gate: &Leased,
) -> Result<Option<Decided>, Fault> {
    if question.watching().next().is_some() {
        return Ok(None); // those are asked for themselves, which takes a while
    }
    let admission =
        question.together(question.matched().parts(), |parts| Ok(gate.try_check_parts(parts)?))?;
    Ok(admission.flatten().map(|admission| {
        let decided = Decided::by(Verdict::Limited(admission.decision));
        question.force.count(&decided, question.matched().parts());
        decided
    }))
}

/// The answer of the gate; `None` if there is nothing to ask for.
async fn admitted<C>(
    gate: &Leased,
    force: &InForce<C>,
    asked: &[Copied],
    deadline: Instant,
) -> Result<Option<Admission>, Fault> {
    if asked.is_empty() {
        return Ok(None);
    }
    let parts = parts(asked);
    if let Some(admission) = gate.try_check_parts(&parts)? {
        return Ok(Some(admission));
    }
    let started = Instant::now();
    let admission = gate.check_parts_by(&parts, deadline).await?;
    force.meter.store.saw(started.elapsed());
    Ok(Some(admission))
}

async fn seen(gate: &Leased, asked: &[Copied]) -> Result<Verdict, Fault> {
    if asked.is_empty() {
        return Ok(Verdict::Unlimited);
    }
    Ok(Verdict::Limited(gate.request().parts(&parts(asked)).peek().await?))
}

/// Lets rules that only watch count, if the request passes; the first that would have refused, and permits.
async fn watched<C: Send + Sync>(
    gate: &Leased,
    force: &InForce<C>,
    watching: &[Watching],
    passes: bool,
    deadline: Instant,
) -> (Option<u32>, Permits) {
    let (mut would_refuse, mut permits) = (None, Permits::none());
    for one in watching.iter().filter(|_| passes) {
        let admission =
            if one.refuses { None } else { gate.check_parts_by(&parts(&one.parts), deadline).await.ok() };
        let passes = admission.as_ref().is_some_and(Admission::is_allowed);
        force.saw(one.rule, passes);
        would_refuse = would_refuse.or((!passes).then_some(one.rule));
        permits = match admission {
            Some(admission) => permits.and(admission.permits),
            None => permits,
        };
    }
    (would_refuse, permits)
}

// === copying ===

fn enforced<C: Clock + Send + Sync + 'static>(question: &Question<'_, C>) -> Result<Vec<Copied>, Fault> {
    together(question, question.matched().parts())
}

fn together<'s, C: Clock + Send + Sync + 'static>(
    question: &Question<'_, C>,
    parts: impl Iterator<Item = Part<'s>>,
) -> Result<Vec<Copied>, Fault> {
    let copied =
        question.together(parts, |parts| Ok(parts.iter().map(|part| Copied::of(*part)).collect()))?;
    Ok(copied.unwrap_or_default())
}

fn watching<C: Clock + Send + Sync + 'static>(
    question: &Question<'_, C>,
    wanted: impl Fn(&Hit) -> bool,
) -> Vec<Watching> {
    question.watching().filter(|hit| wanted(hit)).map(|hit| Watching::of(question, hit)).collect()
}

fn parts(copied: &[Copied]) -> Vec<Part<'_>> {
    copied.iter().map(Copied::part).collect()
}

impl Copied {
    fn of(part: Part<'_>) -> Self {
        Copied { rule: part.rule, key: part.key.bytes().into(), cost: part.cost }
    }

    fn part(&self) -> Part<'_> {
        Part::of(self.rule).key(&*self.key).cost(self.cost)
    }
}

impl Watching {
    fn of<C: Clock + Send + Sync + 'static>(question: &Question<'_, C>, hit: &Hit) -> Self {
        let parts = question.matched().parts_of_hit(hit).map(Copied::of).collect();
        Watching { rule: hit.rule, refuses: hit.refusal.is_some(), parts }
    }
}
