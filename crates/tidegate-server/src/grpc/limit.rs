//! # `ShouldRateLimit`
//!
//! Almost always every descriptor wants to pass the rules, and that is one question. Those that bring a limit along are
//! beside it: they are looked at first and charged last, so that here, too, nobody is charged for what does not pass.
//! Between the two somebody else may take the last of it; then that one descriptor is over its limit, and the others
//! were charged.

use std::sync::Arc;

use tidegate::clock::Clock;

use super::Service;
use super::asked::{Wanted, pairs, wanted};
use super::generated::messages::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitResponseCode as Verdict,
    RateLimitResponseDescriptorStatus as DescriptorStatus,
};
use super::status::{Code, Status};
use super::told::{self, Beside};
use crate::engine::{Answer, Decided, Engine, Fault, InForce, Verdict as Decision, in_order};
use crate::rules::Call;

/// A descriptor, and what it wants.
type Each<'a> = (&'a RateLimitDescriptor, &'a Wanted);

pub(super) async fn should_limit<C: Clock + Send + Sync + 'static>(
    service: &Service<C>,
    asked: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let wanted = wanted(&asked)?;
    let rules = Arc::clone(&service.engine.in_force());
    let all: Vec<Each<'_>> = asked.descriptors.iter().zip(&wanted).collect();

    let looked = own(&service.engine, &all, Own::Look).await;
    let may_pass = looked.iter().all(|status| status.code == Verdict::OK);
    let decided = by_rules(&rules, &asked.domain, &all, may_pass).await?;
    let passes = may_pass && decided.iter().all(Decided::is_allowed);
    let brought = if passes { own(&service.engine, &all, Own::Charge).await } else { looked };

    let (mut decided, mut brought, mut beside) =
        (decided.into_iter(), brought.into_iter(), Beside::default());
    let mut statuses = Vec::with_capacity(all.len());
    for (descriptor, wanted) in all {
        statuses.push(match wanted {
            Wanted::Own(_) => brought.next().unwrap_or_default(),
            Wanted::Refund(cost) => {
                let refunded = refund(&rules, &asked.domain, descriptor, *cost).await?;
                DescriptorStatus { code: Verdict::OK, ..told::status(&rules, &refunded) }
            }
            Wanted::Charge(_) | Wanted::Look => {
                decided.next().map_or_else(DescriptorStatus::default, |decided| {
                    beside.note(&rules, &decided);
                    told::status(&rules, &decided)
                })
            }
        });
    }
    Ok(told::response(statuses, beside, service.headers))
}

/// What to do with limits that were brought along.
#[derive(Clone, Copy)]
enum Own {
    Look,
    Charge,
}

async fn own<C: Clock + Send + Sync + 'static>(
    engine: &Engine<C>,
    all: &[Each<'_>],
    what: Own,
) -> Vec<DescriptorStatus> {
    let limits = all.iter().filter_map(|(_, wanted)| match wanted {
        Wanted::Own(brought) => Some(brought),
        _ => None,
    });
    let window = engine.in_force().window(limits.clone().count());
    let statuses = limits.map(async |brought| match what {
        Own::Look => brought.look(engine).await,
        Own::Charge => brought.charge(engine).await,
    });
    in_order(statuses, window).await
}

/// What the rules say of those who ask them: all or nothing, or only how they are found.
async fn by_rules<C: Clock + Send + Sync + 'static>(
    rules: &Arc<InForce<C>>,
    domain: &str,
    all: &[Each<'_>],
    may_pass: bool,
) -> Result<Vec<Decided>, Status> {
    if may_pass {
        return charged(rules, domain, all).wait().await.map_err(failed);
    }
    let asked = all.iter().filter_map(|(descriptor, wanted)| {
        let (pairs, cost) = (pairs(descriptor), wanted.cost()?);
        Some(rules.ask().call(&Call { domain, descriptors: &pairs, cost: Some(cost) }).peek())
    });
    let seen = in_order(asked.map(Answer::wait), rules.window(all.len())).await;
    seen.into_iter().map(or_silence).collect()
}

fn charged<C: Clock + Send + Sync + 'static>(
    rules: &Arc<InForce<C>>,
    domain: &str,
    all: &[Each<'_>],
) -> Answer<Result<Vec<Decided>, Fault>> {
    let mut question = rules.ask();
    for (descriptor, wanted) in all {
        let pairs = pairs(descriptor);
        let call = Call { domain, descriptors: &pairs, cost: wanted.cost() };
        question = match wanted {
            Wanted::Charge(_) => question.call(&call),
            Wanted::Look => question.look(&call),
            Wanted::Refund(_) | Wanted::Own(_) => question,
        };
    }
    question.check_each()
}

async fn refund<C: Clock + Send + Sync + 'static>(
    rules: &Arc<InForce<C>>,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    cost: u32,
) -> Result<Decided, Status> {
    let pairs = pairs(descriptor);
    let answer = rules.ask().call(&Call { domain, descriptors: &pairs, cost: Some(cost) }).refund();
    or_silence(answer.wait().await)
}

/// A store that does not tell what is left is no error: then nothing is said of it.
fn or_silence(answer: Result<Decided, Fault>) -> Result<Decided, Status> {
    match answer {
        Err(Fault::Store(_)) => Ok(Decided { verdict: Decision::Unlimited, would_refuse: None }),
        answer => answer.map_err(failed),
    }
}

fn failed(fault: Fault) -> Status {
    let code = match fault {
        Fault::Store(_) => Code::Unavailable,
        Fault::NeedsPlace { .. } | Fault::NoPlaces => Code::FailedPrecondition,
        _ => Code::InvalidArgument,
    };
    Status::new(code, fault.to_string())
}

impl Wanted {
    /// What it takes of the rules, if they are asked.
    fn cost(&self) -> Option<u32> {
        match self {
            Wanted::Charge(cost) => Some(*cost),
            Wanted::Look => Some(0),
            Wanted::Refund(_) | Wanted::Own(_) => None,
        }
    }
}
