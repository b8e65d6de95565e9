//! One of many processes that share limits: the tests start several of them, and kill them.
//!
//! ```text
//!   worker check URL TASKS CHECKS KEYS PARTS RULE…
//!       TASKS tasks send CHECKS requests each, for up to PARTS of the rules and some of KEYS keys;
//!       prints every decision as a line
//!   worker hold URL
//!       takes a permit and holds it until killed; prints `held` or `busy`
//!   worker come-and-go URL TASKS
//!       tasks take a permit, hold it a while and release it, until killed; prints which task is known to
//!       hold a permit at which instant of Redis's clock
//!   worker lease URL NODES TTL KEYS RULE
//!       tasks send requests to a leased rule, most often for the first of KEYS keys, until killed; prints
//!       the key and the instant, on a clock that all processes share, of every allowed request
//!   worker hammer URL NODES RULE
//!       tasks send requests to a leased rule for one key, with local shares in an outage, until killed;
//!       prints the instants before and after each allowed request, on a clock that all processes share
//! ```

#[path = "../tests/exchange/mod.rs"]
mod exchange;

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use exchange::{Exchange, PartSpec};
use tidegate::gate::{Part, RuleId};
use tidegate::{Quota, Rule, Source};
use tidegate_redis::{Builder, Lease, Leased, OnOutage, RedisGate};

const PERMITS: u32 = 3;
const LEASE: Duration = Duration::from_millis(400);
/// The permits of `come-and-go`.
const COME_AND_GO_PERMITS: u32 = 8;
/// Renewed four times per lease: long enough that a busy machine is not too late.
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
                RedisGate::builder(url).rule("leased", rule.parse::<Rule>()?).lease(Lease::new().ttl(ttl));
            lease_until_killed(builder.nodes(nodes.parse()?), keys.parse()?, ttl).await
        }
        ["hammer", url, nodes, rule] => {
            let builder = RedisGate::builder(url).rule("leased", rule.parse::<Rule>()?).lease(Lease::new());
            hammer(builder.nodes(nodes.parse()?)).await
        }
        _ => {
            Err("usage: worker check URL TASKS CHECKS KEYS PARTS RULE… | hold URL | come-and-go URL TASKS | \
                  lease URL NODES TTL KEYS RULE | hammer URL NODES RULE"
                .into())
        }
    }
}

/// Connects, with a very long deadline.
async fn ready(builder: Builder) -> Result<RedisGate, Box<dyn Error + Send + Sync>> {
    let gate = builder.deadline(Duration::from_secs(20)).canary(Duration::from_millis(50)).build()?;
    if !gate.ready(Duration::from_secs(30)).await {
        return Err(format!("limits are not enforced: {:?}", gate.health()).into());
    }
    Ok(gate)
}

/// A random number generator, seeded differently in each task of each process.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Random(RandomState::new().hash_one(std::process::id()))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

// === check ===

/// The work of each task.
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
    let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(send_requests(gate.clone(), rules, work))).collect();
    for task in tasks {
        print!("{}", task.await??);
    }
    Ok(())
}

/// Sends requests one after the other, as fast as they are decided.
async fn send_requests(
    gate: RedisGate,
    rules: u16,
    work: Work,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut random = Random::new();
    let mut lines = String::new();
    for _ in 0..work.checks {
        let parts = draw(&mut random, rules, work);
        let request: Vec<Part<'_>> = parts.iter().map(PartSpec::part).collect();
        let decision = gate.check_parts(&request).await?.decision;
        assert_eq!(decision.source, Source::Strict, "{:?}", gate.health());
        lines += &Exchange { parts, decision }.line();
        lines.push('\n');
    }
    Ok(lines)
}

/// Picks some rules, none of them twice, mostly with a cost of 1.
fn draw(random: &mut Random, rules: u16, work: Work) -> Vec<PartSpec> {
    let mut left: Vec<u16> = (0..rules).collect();
    let many = 1 + random.below(work.parts.min(u64::from(rules)));
    let mut parts = Vec::new();
    for _ in 0..many {
        let index = usize::try_from(random.below(left.len() as u64)).unwrap_or(0);
        let key = format!("k{}", random.below(work.keys));
        let cost = if random.below(4) == 0 { 2 } else { 1 };
        parts.push(PartSpec::of(left.swap_remove(index), key, cost));
    }
    parts
}

// === permits ===

async fn hold(url: &str) -> Done {
    let gate = ready(RedisGate::builder(url).concurrency("work", PERMITS, LEASE)).await?;
    let admission = gate.check_parts(&[Part::of(WORK)]).await?;
    println!("{}", if admission.is_allowed() { "held" } else { "busy" });
    if admission.is_allowed() {
        std::future::pending::<()>().await;
    }
    Ok(())
}

async fn come_and_go(url: &str, tasks: usize) -> Done {
    let builder = RedisGate::builder(url).concurrency("work", COME_AND_GO_PERMITS, LONG_LEASE);
    let gate = ready(builder.rule("clock", Quota::per_second(1))).await?;
    let tasks: Vec<_> = (0..tasks).map(|task| tokio::spawn(use_permits(gate.clone(), task))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Prints `held NAME at` when it gets a permit and while it holds it, `busy NAME at` if it gets none.
async fn use_permits(gate: RedisGate, task: usize) -> Done {
    let mut random = Random::new();
    for visit in 0_u64.. {
        let admission = gate.check_parts(&[Part::of(WORK)]).await?;
        let at = admission.decision.at().get();
        let name = format!("{}/{task}/{visit}", std::process::id());
        if !admission.is_allowed() {
            println!("busy {name} {at}");
            tokio::time::sleep(Duration::from_millis(5 + random.below(20))).await;
            continue;
        }
        println!("held {name} {at}");
        for _ in 0..3 + random.below(4) {
            tokio::time::sleep(Duration::from_millis(10 + random.below(40))).await;
            // Redis's time, while the permit is certainly held.
            if let Ok(decision) = gate.request().parts(&[Part::of(CLOCK).cost(0)]).peek().await {
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
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(check_in_a_loop(gate.clone()))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn check_in_a_loop(gate: Leased) -> Done {
    loop {
        let before = micros_since_boot();
        let is_allowed = gate.check_parts(&[Part::of(WORK).key("hot")]).await?.is_allowed();
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
    let mut random = Random::new();
    loop {
        let key = random.below(keys).min(random.below(keys)).min(random.below(keys));
        let decision = gate.check_parts(&[Part::of(WORK).key(&key.to_string())]).await?.decision;
        match (decision.is_allowed(), decision.source) {
            (true, Source::Lease) => {
                println!("{key} {}", decision.at().get());
                rest(decision.at().get(), ttl).await;
            }
            (true, Source::Strict) => {} // a grant was late; this instant is on another clock
            (true, other) => return Err(format!("let through as {other:?}").into()),
            (false, _) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// All tasks rest at the same times, on the shared clock: tokens refill while grants are held, and then all
/// want them.
async fn rest(at: u64, ttl: Duration) {
    let rest = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX) * 3 / 10;
    if at % (2 * rest) < rest {
        tokio::time::sleep(Duration::from_micros(rest - at % (2 * rest))).await;
    }
}
