//! How long a decision takes while something is wrong.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate::gate::{Part, RuleId};
use tidegate::{Quota, Source};
use tidegate_redis::{Builder, OnOutage, RedisGate, RedisLimiter};
use tokio::runtime::Runtime;

use crate::Plan;
use crate::support::{Cluster, Kind, Mode, Proxy, Server, until};

const RULE: &str = "user";
const KEY: &str = "alice";

pub(crate) fn sections(plan: Plan) -> Vec<Section> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let checks = plan.requests / 8;
    let mut measured = on_the_way(&runtime, checks);
    measured.extend(at_the_server(&runtime, checks));
    measured.extend(failover(&runtime));
    vec![Section {
        title: "While something is wrong",
        unit: "µs",
        text: "Microseconds for each check, one after the other from the moment the fault begins, with a deadline of 20 ms. The first few \
               find out; the others are answered without Redis. Failover is measured from the death of a primary until \
               its replica decides. The rows before *stopped* go through a proxy, which makes the good case slower, too.",
        measured,
        goals: Vec::new(),
    }]
}

/// Faults of the network, and of what answers there.
fn on_the_way(runtime: &Runtime, checks: usize) -> Vec<Measured> {
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    let gate = gate(runtime, RedisGate::builder(proxy.url()));
    let limiter = gate.limiter(RULE).expect("a rate limit");
    let answer = |text: &str| Mode::Answer(format!("{text}\r\n").into_bytes());
    let faults = [
        ("well", Mode::Pass),
        ("connections refused", Mode::Refuse),
        ("never answered", Mode::Blackhole),
        ("200 ms slow", Mode::Slow(Duration::from_millis(200))),
        ("-LOADING", answer("-LOADING Redis is loading the dataset in memory")),
        ("-OOM", answer("-OOM command not allowed when used memory > 'maxmemory'.")),
        ("-READONLY", answer("-READONLY You can't write against a read only replica.")),
        ("-NOAUTH", answer("-NOAUTH Authentication required.")),
        ("garbage", answer("HTTP/1.1 400 Bad Request\r\n")),
        ("half-closed", Mode::HalfClose),
        ("replies lost", Mode::LoseReplies),
    ];
    let mut measured = Vec::new();
    for (name, mode) in faults {
        begin(name, &gate);
        proxy.set(mode);
        measured.extend(figures(name, (0..checks).map(|_| check(runtime, &limiter).0)));
        proxy.set(Mode::Pass);
    }
    measured
}

/// Faults of the server itself.
fn at_the_server(runtime: &Runtime, checks: usize) -> Vec<Measured> {
    let mut server = Server::start(Kind::Redis, &["--busy-reply-threshold", "50"]);
    let gate = gate(runtime, RedisGate::builder(server.url()));
    let limiter = gate.limiter(RULE).expect("a rate limit");
    let all = || (0..checks).map(|_| check(runtime, &limiter).0).collect::<Vec<f64>>();

    begin("stopped", &gate);
    server.pause();
    let stopped = all();
    server.resume();

    begin("killed and restarted", &gate);
    server.kill();
    let mut killed = all();
    server.restart();
    killed.extend(all());

    begin("script forgotten every 20 checks", &gate);
    let flushed: Vec<f64> = (0..checks)
        .map(|n| {
            if n % 20 == 0 {
                server.cli(&["SCRIPT", "FLUSH", "SYNC"]);
            }
            check(runtime, &limiter).0
        })
        .collect();

    begin("a foreign script blocks", &gate);
    let mut foreign = foreign_script(&server);
    let blocked = all();
    let _ = server.try_cli(&["SCRIPT", "KILL"]);
    let _ = foreign.wait();

    let cases = [
        ("stopped", stopped),
        ("killed and restarted", killed),
        ("script forgotten every 20 checks", flushed),
        ("a foreign script blocks", blocked),
    ];
    cases.into_iter().flat_map(|(name, took)| figures(name, took)).collect()
}

/// One that does not end by itself.
fn foreign_script(server: &Server) -> Child {
    let port = server.port().to_string();
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port, "EVAL", "while true do end", "0"]).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("redis-cli");
    until("it blocks", || {
        server.try_cli(&["PING"]).err().filter(|error| error.to_uppercase().contains("BUSY")).map(|_| ())
    });
    child
}

fn failover(runtime: &Runtime) -> Vec<Measured> {
    let mut cluster = Cluster::start();
    let gate = gate(runtime, RedisGate::cluster(cluster.urls()));
    let limiter = gate.limiter(RULE).expect("a rate limit");
    begin("failover", &gate);
    let name = gate.describe(Part::of(RuleId(0)).key(KEY)).expect("a rule");
    let primary = cluster.primary_of(&name);
    cluster.kill(primary);
    let (mut took, mut strict) = (Vec::new(), 0);
    while strict < 20 && took.len() < 2_000_000 {
        let (micros, source) = check(runtime, &limiter);
        took.push(micros);
        strict = if source == Source::Strict { strict + 1 } else { 0 };
    }
    figures("failover", took).into()
}

fn gate(runtime: &Runtime, builder: Builder) -> RedisGate {
    let _inside = runtime.enter();
    let builder = builder.rule(RULE, Quota::per_hour(100_000_000)).on_outage(OnOutage::Open);
    builder.canary(Duration::from_millis(100)).lazy().expect("a gate")
}

/// When nothing is wrong.
fn begin(name: &str, gate: &RedisGate) {
    eprintln!("{name}");
    until("it is well", || {
        let health = gate.health();
        (health.enforced == Some(true) && !health.breaker_open).then_some(())
    });
}

/// Returns the microseconds of one check, and the source of its decision.
fn check(runtime: &Runtime, limiter: &RedisLimiter) -> (f64, Source) {
    let started = Instant::now();
    let decision = runtime.block_on(limiter.check(KEY));
    assert!(decision.is_allowed());
    (started.elapsed().as_secs_f64() * 1e6, decision.source)
}

fn figures(who: &'static str, took: impl IntoIterator<Item = f64>) -> [Measured; 3] {
    let mut took: Vec<f64> = took.into_iter().collect();
    took.sort_by(f64::total_cmp);
    let at = |share: usize| took[(took.len() - 1) * share / 100];
    [("median", at(50)), ("p99", at(99)), ("longest", at(100))].map(|(what, figure)| Measured {
        what,
        who,
        rounds: vec![figure],
        surprise: None,
    })
}
