//! One of many processes that share limits: what the tests start several of, and kill.
//!
//! ```text
//!   worker check URL TASKS CHECKS KEYS PARTS RULE…   so many tasks that ask so often, each time up to so many of the rules,
//!                                                    for some of so many keys; prints every decision as a line
//!   worker hold URL                                  takes one of the places and holds it until killed; prints `held`
//!                                                    or `busy`
//!   worker come-and-go URL TASKS                     tasks that take a place, keep it a while and give it back, until
//!                                                    killed; prints who is known to hold one at which instant of Redis's
//!   worker lease URL NODES TTL KEYS RULE             tasks that ask a leased rule, most often for the first of so many keys,
//!                                                    until killed; prints the key and the instant, on a clock that all
//!                                                    processes share, of everybody who passes
//!   worker hammer URL NODES RULE                     tasks that ask a leased rule for one key, with local shares in an
//!                                                    outage, until killed; prints the instants before and after each
//!                                                    request that passes, on a clock that all processes share
//! ```

#[path = "../tests/told/mod.rs"]
mod told;

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tidegate::{Part, Quota, Rule, RuleId, Source};
use tidegate_redis::{Builder, Lease, Leased, OnOutage, RedisGate};
use told::{Asked, Told};

const PLACES: u32 = 3;
const LEASE: Duration = Duration::from_millis(400);
/// For those who come and go.
const ROOMS: u32 = 8;
/// They renew four times in each: it is so long that a busy machine is not too late.
const LONG_LEASE: Duration = Duration::from_millis(1_500);
const WORK: RuleId = RuleId(0);
const CLOCK: RuleId = RuleId(1);

type Done = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Done {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check", url, tasks, checks, keys, parts, ref rules @ ..] => {
            let work = Work { checks: checks.parse()?, keys: keys.parse()?, parts: parts.parse()? };
            check(url, tasks.parse()?, work, rules).await
        }
        ["hold", url] => hold(url).await,
        ["come-and-go", url, tasks] => come_and_go(url, tasks.parse()?).await,
        ["lease", url, nodes, ttl, keys, rule] => {
            let ttl = Duration::from_millis(ttl.parse()?);
            let builder =
                RedisGate::builder(url).rule("leased", rule.parse::<Rule>()?).lease(Lease::on().ttl(ttl));
            lease_until_killed(builder.nodes(nodes.parse()?), keys.parse()?, ttl).await
        }
        ["hammer", url, nodes, rule] => {
            let builder = RedisGate::builder(url).rule("leased", rule.parse::<Rule>()?).lease(Lease::on());
            hammer(builder.nodes(nodes.parse()?)).await
        }
        _ => {
            Err("usage: worker check URL TASKS CHECKS KEYS PARTS RULE… | hold URL | come-and-go URL TASKS | \
                  lease URL NODES TTL KEYS RULE | hammer URL NODES RULE"
                .into())
        }
    }
}

/// Connected, with all the time in the world.
async fn ready(builder: Builder) -> Result<RedisGate, Box<dyn Error + Send + Sync>> {
    let gate = builder.deadline(Duration::from_secs(20)).canary(Duration::from_millis(50)).build()?;
    if !gate.ready(Duration::from_secs(30)).await {
        return Err(format!("limits are not enforced: {:?}", gate.health()).into());
    }
    Ok(gate)
}

/// A source of chance, another one in each task of each process.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        Chance(RandomState::new().hash_one(std::process::id()))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

// === check ===

/// What each task does.
#[derive(Clone, Copy, Debug)]
struct Work {
    checks: usize,
    keys: u64,
    parts: u64,
}

async fn check(url: &str, tasks: usize, work: Work, rules: &[&str]) -> Done {
    let mut builder = RedisGate::builder(url);
    for (number, rule) in rules.iter().enumerate() {
        builder = builder.rule(format!("r{number}"), rule.parse::<Rule>()?);
    }
    let gate = ready(builder).await?;
    let rules = u16::try_from(rules.len())?;
    let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(ask(gate.clone(), rules, work))).collect();
    for task in tasks {
        print!("{}", task.await??);
    }
    Ok(())
}

/// Asks again and again, as fast as it is answered.
async fn ask(gate: RedisGate, rules: u16, work: Work) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut chance = Chance::new();
    let mut lines = String::new();
    for _ in 0..work.checks {
        let parts = draw(&mut chance, rules, work);
        let request: Vec<Part<'_>> = parts.iter().map(Asked::part).collect();
        let decision = gate.check(&request).await?.decision;
        assert_eq!(decision.source, Source::Strict, "{:?}", gate.health());
        lines += &Told { parts, decision }.line();
        lines.push('\n');
    }
    Ok(lines)
}

/// Some rules, none of them twice, mostly for one unit.
fn draw(chance: &mut Chance, rules: u16, work: Work) -> Vec<Asked> {
    let mut left: Vec<u16> = (0..rules).collect();
    let many = 1 + chance.below(work.parts.min(u64::from(rules)));
    let mut parts = Vec::new();
    for _ in 0..many {
        let index = usize::try_from(chance.below(left.len() as u64)).unwrap_or(0);
        let key = format!("k{}", chance.below(work.keys));
        let cost = if chance.below(4) == 0 { 2 } else { 1 };
        parts.push(Asked::of(left.swap_remove(index), key, cost));
    }
    parts
}

// === places ===

async fn hold(url: &str) -> Done {
    let gate = ready(RedisGate::builder(url).concurrency("work", PLACES, LEASE)).await?;
    let admission = gate.check(&[Part::of(WORK)]).await?;
    println!("{}", if admission.is_allowed() { "held" } else { "busy" });
    if admission.is_allowed() {
        std::future::pending::<()>().await;
    }
    Ok(())
}

async fn come_and_go(url: &str, tasks: usize) -> Done {
    let builder = RedisGate::builder(url).concurrency("work", ROOMS, LONG_LEASE);
    let gate = ready(builder.rule("clock", Quota::per_second(1))).await?;
    let tasks: Vec<_> = (0..tasks).map(|task| tokio::spawn(visit(gate.clone(), task))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Prints `held NAME at` when it has been given a place and as long as it has it, `busy NAME at` if it was given none.
async fn visit(gate: RedisGate, task: usize) -> Done {
    let mut chance = Chance::new();
    for visit in 0_u64.. {
        let admission = gate.check(&[Part::of(WORK)]).await?;
        let at = admission.decision.at().get();
        let name = format!("{}/{task}/{visit}", std::process::id());
        if !admission.is_allowed() {
            println!("busy {name} {at}");
            tokio::time::sleep(Duration::from_millis(5 + chance.below(20))).await;
            continue;
        }
        println!("held {name} {at}");
        for _ in 0..3 + chance.below(4) {
            tokio::time::sleep(Duration::from_millis(10 + chance.below(40))).await;
            // Redis's time, while the place is certainly held.
            if let Ok(decision) = gate.peek(&[Part::of(CLOCK).cost(0)]).await? {
                println!("held {name} {}", decision.at().get());
            }
        }
    }
    Ok(())
}

// === leases ===

async fn lease_until_killed(builder: Builder, keys: u64, ttl: Duration) -> Done {
    let gate = builder.on_outage(OnOutage::Closed).canary(Duration::from_millis(50)).build()?.leased();
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(spend(gate.clone(), keys, ttl))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn hammer(builder: Builder) -> Done {
    let gate = builder.build()?;
    if !gate.ready(Duration::from_secs(30)).await {
        return Err(format!("limits are not enforced: {:?}", gate.health()).into());
    }
    let gate = gate.leased();
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(ask_again_and_again(gate.clone()))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn ask_again_and_again(gate: Leased) -> Done {
    loop {
        let before = micros_since_boot();
        let is_allowed = gate.check(&[Part::of(WORK).key("hot")]).await?.is_allowed();
        if is_allowed {
            println!("{before} {}", micros_since_boot());
        } else {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn micros_since_boot() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

async fn spend(gate: Leased, keys: u64, ttl: Duration) -> Done {
    let mut chance = Chance::new();
    loop {
        let key = chance.below(keys).min(chance.below(keys)).min(chance.below(keys));
        let decision = gate.check(&[Part::of(WORK).key(&key.to_string())]).await?.decision;
        match (decision.is_allowed(), decision.source) {
            (true, Source::Lease) => {
                println!("{key} {}", decision.at().get());
                rest(decision.at().get(), ttl).await;
            }
            (true, Source::Strict) => {} // a lot was late; who passes on another clock cannot be told here
            (true, other) => return Err(format!("let through as {other:?}").into()),
            (false, _) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Everybody rests at the same times, on the clock that all share: tokens come in while lots are held, and then all want them.
async fn rest(at: u64, ttl: Duration) {
    let rest = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX) * 3 / 10;
    if at % (2 * rest) < rest {
        tokio::time::sleep(Duration::from_micros(rest - at % (2 * rest))).await;
    }
}
