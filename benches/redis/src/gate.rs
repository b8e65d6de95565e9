//! What a gate takes: as fast as it can, and without Redis.

use std::process::Command;
use std::time::{Duration, Instant};

use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate::gate::{Answer, Gate, Part, RuleId};
use tidegate::{Policy, Quota};
use tidegate_redis::{OnOutage, RedisGate};
use tokio::runtime::Runtime;

use crate::Plan;
use crate::raw::Raw;
use crate::scripts::GCRA;
use crate::support::{Kind, Server, until};

const CHECKS: &str = "checks, 64 in flight";
const STOPPED: &str = "p99 of a decision";
const TIDEGATE: &str = "**tidegate**, RedisLimiter";
const NAMES: &str = "**tidegate**, request by names";
const PARTS: &str = "**tidegate**, parts by number";
const BENCHMARK: &str = "redis-benchmark -c1 -P64, minimal script";
const IN_MEMORY: &str = "**tidegate**, in memory";
const OPEN: &str = "**tidegate**, Redis stopped, open";
const LOCAL: &str = "**tidegate**, Redis stopped, local";

/// As long as the name in the key of the minimal script.
const RULE: &str = "abc";
const QUOTA: Quota = Quota::per_second(1).burst(1_000_000);

pub(crate) fn sections(plan: Plan) -> Vec<Section> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    vec![throughput(&runtime, plan), stopped(plan)]
}

/// Gives a process one processor, if that can be done.
pub(crate) fn pin(pid: u32, processor: u32) {
    let _ = Command::new("taskset").args(["-cp", &processor.to_string(), &pid.to_string()]).output();
}

fn throughput(runtime: &Runtime, plan: Plan) -> Section {
    let server = Server::start(Kind::Redis, &[]);
    pin(server.pid(), 0);
    pin(std::process::id(), 1);
    let gate = runtime.block_on(connected(&server, OnOutage::Open));
    let sha = Raw::to(&server).load(GCRA, &["abc"], &[]).sha().to_owned();
    let (mut ours, mut names, mut parts, mut peer) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    eprintln!("{CHECKS}: {} rounds", plan.rounds);
    for _ in 0..plan.rounds {
        peer.push(redis_benchmark(&server, &sha, 4 * plan.requests));
        ours.push(runtime.block_on(checks(&gate, 4 * plan.requests, by_limiter)));
        names.push(runtime.block_on(checks(&gate, 4 * plan.requests, by_names)));
        parts.push(runtime.block_on(checks(&gate, 4 * plan.requests, by_parts)));
    }
    let strict = gate.health().decisions;
    assert_eq!((strict.open, strict.local, strict.closed), (0, 0, 0), "all were decided by Redis");
    let measured = |who, rounds| Measured { what: CHECKS, who, rounds, surprise: None };
    Section {
        title: "A gate, as fast as it can",
        unit: "µs",
        text: "Microseconds for each check of a token bucket among 100,000 keys, on one thread with 64 tasks, through a gate as made. \
               Required is 0.85 of the peer's rate, which is 1.18 of its time.",
        measured: vec![
            measured(BENCHMARK, peer),
            measured(TIDEGATE, ours),
            measured(NAMES, names),
            measured(PARTS, parts),
        ],
        goals: vec![Goal::same(CHECKS, TIDEGATE, BENCHMARK, 1.17, 1.0)],
    }
}

async fn connected(server: &Server, when_lost: OnOutage) -> RedisGate {
    let builder = RedisGate::builder(server.url()).rule(RULE, QUOTA).on_outage(when_lost);
    builder.deadline(Duration::from_secs(5)).connect().await.expect("a gate")
}

/// Makes `n` checks, of which `decide` makes one after another for each task. Returns the microseconds for each.
async fn checks<F>(gate: &RedisGate, n: usize, decide: fn(RedisGate, usize, u64) -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let started = Instant::now();
    let task = |task: usize| tokio::spawn(decide(gate.clone(), n / 64, task as u64 + 1));
    let tasks: Vec<_> = (0..64).map(task).collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    started.elapsed().as_secs_f64() * 1e6 / n as f64
}

async fn by_limiter(gate: RedisGate, n: usize, mut random: u64) {
    let limiter = gate.limiter(RULE).expect("a rate limit");
    for _ in 0..n {
        assert!(limiter.check(&next_key(&mut random)).await.is_allowed());
    }
}

async fn by_names(gate: RedisGate, n: usize, mut random: u64) {
    for _ in 0..n {
        let decision = gate.request().rule_for(RULE, &next_key(&mut random)).check().await;
        assert!(decision.expect("a request").is_allowed());
    }
}

async fn by_parts(gate: RedisGate, n: usize, mut random: u64) {
    for _ in 0..n {
        let admission = gate.check_parts(&[Part::of(RuleId(0)).key(&next_key(&mut random))]).await;
        assert!(admission.expect("a request").is_allowed());
    }
}

/// One of 100,000 keys.
fn next_key(random: &mut u64) -> [u8; 8] {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*random >> 33) % 100_000).to_le_bytes()
}

/// Microseconds for each.
fn redis_benchmark(server: &Server, sha: &str, n: usize) -> f64 {
    let (port, n) = (server.port().to_string(), n.to_string());
    let args =
        ["-c", "1", "redis-benchmark", "--csv", "-p", &port, "-c", "1", "-P", "64", "-n", &n, "-r", "100000"];
    let call = ["EVALSHA", sha, "1", "tg1{__rand_int__0000000000}abc", "1000000", "1000000000000"];
    let output = Command::new("taskset").args(args).args(call).output().expect("taskset and redis-benchmark");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().last().unwrap_or_default();
    let rate = line.split(',').nth(1).and_then(|field| field.trim_matches('"').parse::<f64>().ok());
    1e6 / rate.unwrap_or_else(|| panic!("redis-benchmark says {text:?}"))
}

fn stopped(plan: Plan) -> Section {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let server = Server::start(Kind::Redis, &[]);
    let gates = [OnOutage::Open, OnOutage::Local].map(|when_lost| {
        let builder =
            RedisGate::builder(server.url()).rule(RULE, Quota::per_second(1_000_000)).on_outage(when_lost);
        let _inside = runtime.enter();
        builder.lazy().expect("a gate")
    });
    for gate in &gates {
        until("it is connected", || (gate.health().enforced == Some(true)).then_some(()));
    }
    server.pause();
    for gate in &gates {
        while !gate.health().breaker_open {
            let _ = runtime.block_on(gate.check_parts(&[Part::of(RuleId(0))]));
        }
    }
    let memory = Policy::builder().rule(RULE, Quota::per_second(1_000_000)).build().expect("a policy");
    let mut rounds: [Vec<f64>; 3] = Default::default();
    eprintln!("{STOPPED}: {} rounds", plan.rounds);
    for _ in 0..plan.rounds {
        rounds[0].push(p99(&memory, plan.requests));
        rounds[1].push(p99(&gates[0], plan.requests));
        rounds[2].push(p99(&gates[1], plan.requests));
    }
    server.resume();
    let names = [IN_MEMORY, OPEN, LOCAL];
    let measured = names.into_iter().zip(rounds).map(|(who, rounds)| Measured {
        what: STOPPED,
        who,
        rounds,
        surprise: None,
    });
    Section {
        title: "A gate without Redis",
        unit: "ns",
        text: "Nanoseconds within which 99 of 100 decisions are made, the reading of the clock included: in memory, and by a gate whose \
               Redis has stopped, once it is not asked any more.",
        measured: measured.collect(),
        goals: vec![
            Goal::same(STOPPED, OPEN, IN_MEMORY, 3.0, 1.5),
            Goal::same(STOPPED, LOCAL, IN_MEMORY, 3.0, 1.5),
        ],
    }
}

fn p99(gate: &dyn Gate, n: usize) -> f64 {
    let mut nanos: Vec<u128> = (0..n)
        .map(|n| {
            let key = (n as u64 % 1_000).to_le_bytes();
            let request = [Part::of(RuleId(0)).key(&key)];
            let started = Instant::now();
            let answer = gate.decide(&request);
            let took = started.elapsed().as_nanos();
            assert!(matches!(answer, Answer::Ready(Ok(_))), "at once");
            took
        })
        .collect();
    nanos.sort_unstable();
    nanos[n * 99 / 100] as f64
}
