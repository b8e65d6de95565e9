//! Waiting for a policy in tokio tasks, by the runtime's clock.
#![cfg(feature = "tokio")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Policy, Quota, TokioClock};

const MS: u64 = 1_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn tasks_are_admitted_in_order() {
    let rules = Policy::builder().rule("rate", Quota::per_second(10).burst(1)).concurrency("concurrency", 2);
    let policy = rules.clock(TokioClock::new()).build().expect("valid");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..10_u64 {
        let (policy, order) = (policy.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let request = policy.request().rule("rate").rule("concurrency");
            let admission = request.acquire().await.expect("admitted");
            order.lock().expect("no panic").push((number, admission.decision.at().get() / MS));
            tokio::time::sleep(ms(300)).await; // two concurrent, so two per 300 ms and not three
            admission.permits.succeeded();
        }));
        tokio::task::yield_now().await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let want: Vec<(u64, u64)> = (0..10).map(|n| (n, n / 2 * 300 + n % 2 * 100)).collect();
    assert_eq!(*order.lock().expect("no panic"), want);
    assert_eq!(policy.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn aborted_task_leaves_no_trace() {
    let rules = Policy::builder().rule("rate", Quota::per_second(1)).rule("user", Quota::per_second(10));
    let policy = rules.clock(TokioClock::new()).build().expect("valid");
    let request = || policy.request().rule("rate").rule_for("user", "alice");
    assert!(request().acquire().await.is_ok());
    let same = policy.clone();
    let task = tokio::spawn(async move {
        same.request().rule("rate").rule_for("user", "alice").acquire().await.map(|_| ())
    });
    tokio::task::yield_now().await;
    assert_eq!(policy.waiting(), 1);
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled());
    assert_eq!(policy.waiting(), 0);
    let timed = request().timeout(Duration::from_secs(1)).acquire().await.expect("admitted");
    assert_eq!(timed.decision.at().get(), 1_000 * MS);
}
