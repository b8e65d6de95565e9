//! How long a decision takes while something is wrong.

use std::time::{Duration, Instant};

use bench_harness::report::Section;
use bench_harness::rounds::Measured;
use tidegate::{Part, Quota, RuleId};
use tidegate_redis::{RedisGate, WhenLost};

use crate::Plan;
use crate::support::{Kind, Mode, Proxy, Server, until};

pub(crate) fn sections(plan: Plan) -> Vec<Section> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    let builder =
        RedisGate::builder(proxy.url()).rule("user", Quota::per_hour(1_000_000)).when_lost(WhenLost::Open);
    let gate = {
        let _inside = runtime.enter();
        builder.canary(Duration::from_millis(100)).build().expect("a gate")
    };
    let faults = [
        ("well", Mode::Pass),
        ("connections refused", Mode::Refuse),
        ("never answered", Mode::Blackhole),
        ("200 ms slow", Mode::Slow(Duration::from_millis(200))),
        ("-LOADING", Mode::Answer(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec())),
        ("-OOM", Mode::Answer(b"-OOM command not allowed when used memory > 'maxmemory'.\r\n".to_vec())),
        ("-READONLY", Mode::Answer(b"-READONLY You can't write against a read only replica.\r\n".to_vec())),
        ("-NOAUTH", Mode::Answer(b"-NOAUTH Authentication required.\r\n".to_vec())),
        ("garbage", Mode::Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())),
        ("half-closed", Mode::HalfClose),
        ("replies lost", Mode::LoseReplies),
    ];
    let mut measured = Vec::new();
    for (name, mode) in faults {
        eprintln!("{name}");
        until("it is well", || {
            let health = gate.health();
            (health.enforced == Some(true) && !health.not_asked).then_some(())
        });
        proxy.set(mode);
        let took = latencies(&runtime, &gate, plan.requests / 20);
        proxy.set(Mode::Pass);
        let at = |share: usize| took[(took.len() - 1) * share / 100];
        for (what, figure) in [("median", at(50)), ("p99", at(99)), ("longest", at(100))] {
            measured.push(Measured { what, who: name, rounds: vec![figure], surprise: None });
        }
    }
    vec![Section {
        title: "While something is wrong",
        unit: "µs",
        text: "Microseconds for each check, one after the other from the moment the fault begins, with a deadline of 20 ms. The first few \
               find out; the others are answered without Redis. Through a proxy, which makes the good case slower, too.",
        measured,
        goals: Vec::new(),
    }]
}

/// Sorted, in microseconds.
fn latencies(runtime: &tokio::runtime::Runtime, gate: &RedisGate, n: usize) -> Vec<f64> {
    let mut took: Vec<f64> = (0..n)
        .map(|_| {
            let started = Instant::now();
            let admission = runtime.block_on(gate.check(&[Part::of(RuleId(0)).key("alice")]));
            assert!(admission.expect("a request").is_allowed());
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    took.sort_by(f64::total_cmp);
    took
}
