//! One of many processes that share limits: what the tests start several of, and kill.
//!
//! ```text
//!   worker check URL TASKS CHECKS    so many tasks that ask so often; prints `at user allowed` for each decision
//!   worker hold URL                  takes one of the places and holds it until killed; prints `held` or `busy`
//! ```

use std::time::Duration;

use tidegate::{Part, Quota, Source};
use tidegate_redis::RedisGate;

/// What tests replay: these are the rules they know.
const EVERYBODY: Quota = Quota::per_second(2_000).burst(50);
const USER: Quota = Quota::per_second(700).burst(7);
const USERS: usize = 3;
const PLACES: u32 = 3;
const LEASE: Duration = Duration::from_millis(400);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check", url, tasks, checks] => check(url, tasks.parse()?, checks.parse()?).await,
        ["hold", url] => hold(url).await,
        _ => Err("usage: worker check URL TASKS CHECKS | worker hold URL".into()),
    }
}

/// Connected, with all the time in the world.
async fn gate(url: &str) -> Result<RedisGate, Box<dyn std::error::Error>> {
    let gate = RedisGate::builder(url)
        .rule("everybody", EVERYBODY)
        .rule("user", USER)
        .at_once("work", PLACES, LEASE)
        .deadline(Duration::from_secs(20))
        .build()?;
    while gate.health().enforced != Some(true) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(gate)
}

async fn check(url: &str, tasks: usize, checks: usize) -> Result<(), Box<dyn std::error::Error>> {
    let gate = gate(url).await?;
    let tasks: Vec<_> = (0..tasks).map(|task| tokio::spawn(ask(gate.clone(), task, checks))).collect();
    for task in tasks {
        print!("{}", task.await??);
    }
    Ok(())
}

/// Asks again and again, mostly as one of the users, of both limits.
async fn ask(gate: RedisGate, task: usize, checks: usize) -> Result<String, tidegate::InvalidRequest> {
    let [everybody, user] = [0, 1].map(tidegate::RuleId);
    let mut lines = String::new();
    for n in 0..checks {
        let name = format!("u{}", (task + n / 16) % USERS);
        let decision = gate.check(&[Part::of(everybody), Part::of(user).key(&name)]).await?.decision;
        assert_eq!(decision.source, Source::Strict, "{:?}", gate.health());
        lines += &format!("{} {name} {}\n", decision.at().get(), decision.is_allowed());
    }
    Ok(lines)
}

async fn hold(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let gate = gate(url).await?;
    let work = gate.id("work").ok_or("there is such a rule")?;
    let admission = gate.check(&[Part::of(work)]).await?;
    println!("{}", if admission.is_allowed() { "held" } else { "busy" });
    if admission.is_allowed() {
        std::future::pending::<()>().await;
    }
    Ok(())
}
