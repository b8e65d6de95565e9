//! Waiting for a policy: queues at the states that deny a request, and what their waiters are guaranteed.

#[allow(dead_code, reason = "shared by several tests, each of which uses some of it")]
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::algorithm::LeakyQueue;
use tidegate::builder::PolicyBuilder;
use tidegate::clock::Micros;
use tidegate::gate::{Part, RuleId};
use tidegate::stats::{Charge, Observer};
use tidegate::{
    AcquireError, Admission, Decision, InvalidRequest, ManualClock, Outcome, Policy, Quota, Request, Rule,
    Wait,
};

const MS: u64 = 1_000;
const GLOBAL: RuleId = RuleId(0);
const USER: RuleId = RuleId(1);
const CONCURRENCY: RuleId = RuleId(2);

type Manual = Policy<Rule, ManualClock>;
type Answer = Result<Admission, AcquireError>;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A global burst of five and one per 100 ms, one per hour for each user, two concurrent.
fn rules(clock: &ManualClock) -> PolicyBuilder<Rule, ManualClock> {
    Policy::builder()
        .rule("global", Quota::per_second(10).burst(5))
        .rule("user", Quota::per_hour(1))
        .concurrency("concurrency", 2)
        .max_waiting(3)
        .clock(clock.clone())
}

fn policy() -> (Manual, ManualClock) {
    let clock = ManualClock::new();
    (rules(&clock).build().expect("a valid policy"), clock)
}

/// The same policy, with the global quota used up.
fn exhausted() -> (Manual, ManualClock) {
    let (policy, clock) = policy();
    assert!(policy.request().rule("global").cost(5).check().expect("valid").is_allowed());
    (policy, clock)
}

fn global(cost: u32) -> Part<'static> {
    Part::of(GLOBAL).cost(cost)
}

fn user(name: &str) -> Part<'_> {
    Part::of(USER).key(name)
}

fn concurrency(cost: u32) -> Part<'static> {
    Part::of(CONCURRENCY).cost(cost)
}

fn check(policy: &Manual, request: &[Part<'_>]) -> Decision {
    policy.check_parts(request).expect("a valid request").decision
}

fn left(policy: &Manual, part: Part<'_>) -> u64 {
    policy.request().parts(&[part.cost(0)]).peek().expect("a valid request").remaining()
}

/// Asserts which rule refused, and the message, which has the numbers that were compared.
#[track_caller]
fn assert_refused(error: &AcquireError, rule: (RuleId, &str), message: &str) {
    assert_eq!((error.rule_id(), error.rule()), (rule.0, Some(rule.1)));
    assert_eq!(error.to_string(), format!("rule {:?}: {message}", rule.1));
    assert_eq!(error.invalid_request(), None);
}

#[track_caller]
fn assert_never(error: &AcquireError, rule: (RuleId, &str), cost: u32, limit: u32) {
    assert!(error.is_never() && error.retry_after().is_none(), "{error:?}");
    let message =
        format!("cost {cost} exceeds the limit of {limit}: it can never be allowed; use {limit} or less");
    assert_refused(error, rule, &message);
}

/// The wait is known, and longer than the timeout.
#[track_caller]
fn assert_too_long(error: &AcquireError, rule: (RuleId, &str), wait: Wait, timeout: Wait) {
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(error.retry_after(), Some(wait));
    let message =
        format!("the wait would be {wait}, longer than the timeout of {timeout}; retry after {wait}");
    assert_refused(error, rule, &message);
}

/// The timeout passed in a queue.
#[track_caller]
fn assert_timed_out(error: &AcquireError, rule: (RuleId, &str), timeout: Wait) {
    assert!(error.is_timeout() && error.retry_after().is_none(), "{error:?}");
    assert_refused(error, rule, &format!("timed out after {timeout}; retry later or use a longer timeout"));
}

#[track_caller]
fn assert_queue_full(error: &AcquireError, rule: (RuleId, &str), max_waiting: usize) {
    assert!(error.is_queue_full() && error.retry_after().is_none(), "{error:?}");
    assert_refused(
        error,
        rule,
        &format!("the queue is full: {max_waiting} requests are waiting; retry later"),
    );
}

const GLOBAL_RULE: (RuleId, &str) = (GLOBAL, "global");
const CONCURRENCY_RULE: (RuleId, &str) = (CONCURRENCY, "concurrency");

// --- waits that are polled by hand

struct TestWait<'a> {
    future: Pin<Box<dyn Future<Output = Answer> + 'a>>,
    wakes: Arc<WakeCount>,
}

#[derive(Default)]
struct WakeCount(AtomicU32);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<'a> TestWait<'a> {
    fn new(future: impl Future<Output = Answer> + 'a) -> Self {
        TestWait { future: Box::pin(future), wakes: Arc::default() }
    }

    /// A wait that was polled once and is pending.
    fn pending(request: Request<'a, Manual>) -> Self {
        let mut wait = TestWait::new(request.acquire());
        assert!(wait.poll().is_none(), "the request has to wait");
        wait
    }

    /// Polls once; `None` while pending.
    fn poll(&mut self) -> Option<Answer> {
        self.wakes.0.store(0, Ordering::Relaxed);
        match self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.wakes.clone()))) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Returns whether it was woken since the last poll.
    fn is_woken(&self) -> bool {
        self.wakes.0.load(Ordering::Relaxed) > 0
    }

    /// Polls only if it was woken, as a runtime does; returns the instant at which it was admitted.
    fn passed_at(&mut self) -> Option<u64> {
        if !self.is_woken() {
            return None;
        }
        self.poll().map(|answer| answer.expect("admitted").decision.at().get())
    }
}

/// A pending wait of a request by parts.
fn pending_wait<'a>(policy: &'a Manual, request: &'a [Part<'a>]) -> TestWait<'a> {
    TestWait::pending(policy.request().parts(request))
}

// --- first come, first served

#[test]
fn acquire_returns_immediately_when_quota_is_available() {
    let (policy, _) = policy();
    let request = policy.request().rule("global").rule_for("user", "alice").rule("concurrency");
    let admission = TestWait::new(request.acquire()).poll().expect("ready immediately").expect("admitted");
    assert_eq!((admission.decision.outcome, admission.permits.len()), (Outcome::Allowed, 1));
    assert_eq!((left(&policy, global(0)), left(&policy, concurrency(0))), (4, 1));
    assert!(policy.request().rule("global").acquire_blocking().is_ok());
    assert_eq!(policy.waiting(), 0);
}

#[test]
fn waiters_are_served_in_order() {
    let (policy, clock) = exhausted();
    let mut waits = [(); 3].map(|()| TestWait::pending(policy.request().rule("global")));
    for passes in 0..3 {
        assert_eq!(policy.waiting(), 3 - passes);
        clock.advance(ms(99));
        assert!(waits.iter_mut().all(|wait| wait.passed_at().is_none()));
        clock.advance(ms(1));
        let passed: Vec<_> = waits.iter_mut().map(TestWait::passed_at).collect();
        let instant = (passes as u64 + 1) * 100 * MS;
        let want: Vec<_> = (0..3).map(|n| (n == passes).then_some(instant)).collect();
        assert_eq!(passed, want);
        waits.iter_mut().filter(|wait| wait.is_woken()).for_each(|next| assert!(next.poll().is_none()));
    }
    assert_eq!((policy.waiting(), left(&policy, global(0))), (0, 0));
}

#[test]
fn large_request_is_not_starved_by_small_waiters() {
    let (policy, clock) = exhausted();
    let request = || policy.request().rule("global");
    let mut large = TestWait::pending(request().cost(5));
    let mut waits = Vec::new();
    for step in 1..=5 {
        assert!(!large.is_woken());
        if step < 3 {
            waits.push(TestWait::pending(request()));
        }
        clock.advance(ms(100));
        assert!(waits.iter_mut().all(|wait| wait.passed_at().is_none()), "no request overtakes");
    }
    assert_eq!(large.passed_at(), Some(500 * MS));
    clock.advance(ms(100));
    assert!(waits[0].poll().expect("ready").is_ok());
    assert!(waits[1].poll().is_none());
    clock.advance(ms(100));
    assert_eq!(waits[1].passed_at(), Some(700 * MS));
}

#[test]
fn large_waiter_is_not_starved_by_checks() {
    let (policy, clock) = exhausted();
    let request = || policy.request().rule("global");
    let check = || request().check().expect("valid");
    let mut large = TestWait::pending(request().cost(5));
    for millis in 0..500 {
        let decision = check();
        let first_waits = 500 - millis;
        assert_eq!(
            decision.outcome,
            Outcome::RetryAfter(Wait::micros(first_waits * MS)),
            "the wait of the first waiter"
        );
        assert_eq!((decision.rule, decision.remaining()), (GLOBAL, 0));
        assert_eq!(request().peek().expect("valid"), decision, "peek agrees with check");
        let each = request().rule_for("user", "bob").check_each().expect("valid");
        assert_eq!((each.decision, each.rules[1].outcome), (decision, Outcome::Allowed));
        clock.advance(ms(1));
    }
    assert!(!check().is_allowed(), "reserved for the waiter, even though it has not polled yet");
    assert_eq!(left(&policy, global(0)), 5, "a cost of 0 queries the remaining quota and ignores the queue");
    assert_eq!(large.passed_at(), Some(500 * MS));
    assert_eq!(left(&policy, user("bob")), 1, "a denied request spends nothing");
    clock.advance(ms(100));
    assert!(check().is_allowed());
}

#[test]
fn waiter_for_its_own_bucket_does_not_hold_up_other_keys() {
    let (policy, clock) = policy();
    let request = |user: &'static str| policy.request().rule("global").rule_for("user", user);
    assert!(request("alice").check().expect("valid").is_allowed());
    let mut waits = TestWait::pending(request("alice"));
    assert_eq!(left(&policy, global(0)), 4, "the waiter has charged nothing");
    assert!(request("bob").check().expect("valid").is_allowed());
    assert!(policy.request().rule("global").cost(2).acquire_blocking().is_ok());
    assert_eq!(
        check(&policy, &[user("alice")]).retry_after().expect("alice's waiter is first"),
        Duration::from_secs(3_600)
    );
    clock.advance(Duration::from_secs(3_600));
    assert!(waits.passed_at().is_some());
}

#[test]
fn dropping_the_first_waiter_wakes_the_next() {
    let (policy, clock) = exhausted();
    let (large, small) = ([global(5)], [global(1)]);
    let first = pending_wait(&policy, &large);
    let (mut second, mut third) = (pending_wait(&policy, &small), pending_wait(&policy, &small));
    clock.advance(ms(100));
    assert!(!second.is_woken());
    drop(first);
    assert!(second.is_woken() && !third.is_woken());
    assert_eq!(second.passed_at(), Some(100 * MS));
    assert!(third.is_woken() && third.poll().is_none());
    assert_eq!(policy.waiting(), 1);
    drop(third);
    assert_eq!(policy.waiting(), 0);
    clock.advance(ms(100));
    assert_eq!(left(&policy, global(0)), 1, "a dropped wait leaves no trace");
    assert!(check(&policy, &small).is_allowed());
}

/// The waiter leaves from the middle of the queue, and its waker is released without being called.
#[test]
fn dropping_a_waiter_in_the_middle_lets_the_others_pass_in_time() {
    let (policy, clock) = exhausted();
    let small = [global(1)];
    let (mut first, second, mut third) =
        (pending_wait(&policy, &small), pending_wait(&policy, &small), pending_wait(&policy, &small));
    let wakes = second.wakes.clone();
    drop(second);
    assert!(!first.is_woken() && !third.is_woken());
    clock.advance(ms(200));
    assert_eq!((first.passed_at(), third.passed_at()), (Some(200 * MS), Some(200 * MS)));
    assert_eq!((wakes.0.load(Ordering::Relaxed), Arc::strong_count(&wakes)), (0, 1), "its waker is released");
}

// --- between two states

/// Two rules of one per 100 ms each, while checks for either one of them keep coming.
#[test]
fn request_for_two_states_is_not_starved_by_requests_for_one_of_them() {
    let clock = ManualClock::new();
    let rule = Quota::per_second(10).burst(1);
    let rules = Policy::builder().rule("a", rule).rule("b", rule);
    let policy = rules.clock(clock.clone()).build().expect("valid");
    let check = |name| policy.request().rule(name).check().expect("valid");
    assert!(check("a").is_allowed());
    clock.advance(ms(50));
    assert!(check("b").is_allowed());
    let mut both = TestWait::pending(policy.request().rule("a").rule("b"));
    let mut passed = None;
    for _ in 0..1_000 {
        if passed.is_none() {
            passed = both.passed_at();
        }
        let _ = (check("a"), check("b"));
        clock.advance(ms(1));
    }
    // It waits for b until 150 ms, and keeps its queue position there while it waits for a until 200 ms.
    assert_eq!(passed, Some(200 * MS));
}

/// The same with permits as one of the two.
#[test]
fn request_for_a_rate_and_permits_is_not_starved() {
    let (policy, clock) = exhausted();
    let request = [global(5), concurrency(2)];
    let mut both = pending_wait(&policy, &request);
    let mut in_progress = Vec::new();
    let mut passed = None;
    for millis in 0..2_000_u64 {
        passed = passed.or_else(|| both.passed_at());
        match policy.request().rule("concurrency").try_acquire() {
            Ok(admission) => in_progress.push(admission),
            Err(refused) => assert_eq!(refused.invalid_request(), None),
        }
        if millis % 7 == 0 && !in_progress.is_empty() {
            drop(in_progress.remove(0));
        }
        let _ = check(&policy, &[global(1)]);
        clock.advance(ms(1));
    }
    assert!(passed.is_some_and(|at| at <= 600 * MS), "{passed:?}");
}

/// The request has waited 100 ms for the global bucket, and then finds its user's bucket empty for an hour.
#[test]
fn queue_position_is_not_kept_longer_than_the_time_waited_for_it() {
    let (policy, clock) = exhausted();
    let alice = [global(1), user("alice")];
    let mut waits = pending_wait(&policy, &alice);
    assert!(!check(&policy, &[global(1)]).is_allowed());
    assert!(check(&policy, &[user("alice")]).is_allowed(), "the waiter is in the queue of the global bucket");
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), None);
    assert!(
        check(&policy, &[global(1)]).is_allowed(),
        "the waiter does not block the global bucket for an hour"
    );
    assert!(!check(&policy, &[user("alice")]).is_allowed());
    clock.advance(Duration::from_secs(3_600));
    assert!(waits.passed_at().is_some());
}

/// The request has waited an hour for its user's bucket, and finds the global one empty for 100 ms. No
/// other request gets in between.
#[test]
fn queue_position_is_kept_for_as_long_as_the_time_waited_for_it() {
    let (policy, clock) = policy();
    let alice = [global(1), user("alice")];
    assert!(check(&policy, &alice).is_allowed());
    let mut waits = pending_wait(&policy, &alice);
    clock.advance(Duration::from_secs(3_600));
    assert!(check(&policy, &[global(5)]).is_allowed());
    assert_eq!(waits.passed_at(), None);
    assert_eq!(check(&policy, &[user("alice")]).retry_after().expect("the position is kept"), ms(100));
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), Some(3_600_100 * MS));
}

/// The return of a permit cannot be predicted, so a position in another queue is kept for a while and then
/// given up.
#[test]
fn queue_position_held_while_waiting_for_permits_is_given_up_in_time() {
    let (policy, clock) = exhausted();
    let request = [global(1), concurrency(2)];
    let mut waits = pending_wait(&policy, &request);
    let busy = policy.request().rule("concurrency").try_acquire().expect("two are free");
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), None);
    assert_eq!(
        check(&policy, &[global(1)]).retry_after().expect("kept for as long as the time waited"),
        ms(100)
    );
    assert_eq!(check(&policy, &[concurrency(1)]).outcome, Outcome::Busy);
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), None);
    assert!(check(&policy, &[global(1)]).is_allowed(), "and no longer");
    assert_eq!(check(&policy, &[concurrency(1)]).outcome, Outcome::Busy, "it still waits for the permits");
    drop(busy);
    assert_eq!(waits.passed_at(), Some(200 * MS));
}

// --- permits

#[test]
fn released_permit_wakes_the_first_waiter() {
    let (policy, _) = policy();
    let request = [global(1), concurrency(2)];
    let one = policy.request().rule("concurrency").try_acquire().expect("two are free");
    let mut large = pending_wait(&policy, &request);
    let small = [concurrency(1)];
    let mut behind = pending_wait(&policy, &small);
    assert_eq!(check(&policy, &small).outcome, Outcome::Busy, "the free permit belongs to the first waiter");
    assert_eq!(left(&policy, global(0)), 5, "nothing is held while it waits");
    drop(one);
    assert!(large.is_woken() && !behind.is_woken());
    let admission = large.poll().expect("ready").expect("admitted");
    assert_eq!((admission.permits.len(), left(&policy, concurrency(0))), (1, 0));
    assert!(behind.is_woken() && behind.poll().is_none());
    admission.permits.succeeded();
    let admission = behind.poll().expect("ready").expect("admitted");
    drop(admission);
    assert_eq!((left(&policy, concurrency(0)), policy.waiting()), (2, 0));
}

#[test]
fn dropped_waiter_for_a_permit_is_not_woken() {
    let (policy, _) = policy();
    let both = policy.request().rule("concurrency").cost(2).try_acquire().expect("two are free");
    let wait = || TestWait::pending(policy.request().rule("concurrency"));
    let (first, mut second) = (wait(), wait());
    let wakes = first.wakes.clone();
    drop(first);
    assert_eq!(Arc::strong_count(&wakes), 1, "its waker is released");
    assert!(second.is_woken() && second.poll().is_none());
    drop(both);
    assert!(second.is_woken() && second.poll().expect("ready").is_ok());
    assert_eq!((wakes.0.load(Ordering::Relaxed), left(&policy, concurrency(0))), (0, 2));
}

#[test]
fn raising_the_limit_wakes_the_first_waiter() {
    let (policy, _) = policy();
    let both = policy.request().rule("concurrency").cost(2).try_acquire().expect("two are free");
    let mut waits = TestWait::pending(policy.request().rule("concurrency"));
    policy.resize("concurrency", 0).expect("there is such a rule");
    assert!(waits.is_woken() && waits.poll().is_none(), "a limit of 0 pauses the waiter but does not end it");
    policy.resize("concurrency", 3).expect("there is such a rule");
    assert!(waits.is_woken() && waits.poll().expect("ready").is_ok());
    let mut large = TestWait::pending(policy.request().rule("concurrency").cost(3));
    policy.resize("concurrency", 2).expect("there is such a rule");
    let never = large.poll().expect("refused for good").expect_err("three of two");
    assert_never(&never, CONCURRENCY_RULE, 3, 2);
    drop(both);
}

// --- refunds and changed rules

#[test]
fn refund_reset_and_rule_change_wake_the_first_waiter() {
    let ways: [fn(&Manual); 3] = [
        |policy| policy.request().rule("global").cost(2).refund().expect("valid"),
        |policy| policy.request().rule("global").cost(0).reset().expect("valid"),
        |policy| policy.change("global", Quota::per_second(10).burst(7)).expect("there is such a rule"),
    ];
    for way in ways {
        let (policy, clock) = exhausted();
        let request = || policy.request().rule("global");
        let mut first = TestWait::pending(request().cost(2));
        let mut second = TestWait::pending(request().rule_for("user", "alice"));
        way(&policy);
        assert!(first.is_woken() && !second.is_woken());
        assert_eq!(first.passed_at(), Some(0));
        clock.advance(ms(100));
        assert!(second.poll().expect("ready").is_ok());
        assert!(check(&policy, &[user("bob")]).is_allowed());
    }
}

#[test]
fn rule_change_that_makes_a_cost_impossible_ends_its_wait() {
    let (policy, _) = exhausted();
    let mut waits = TestWait::pending(policy.request().rule("global").cost(5));
    policy.change("global", Quota::per_second(10).burst(4)).expect("there is such a rule");
    let never = waits.poll().expect("refused for good").expect_err("five of four");
    assert_never(&never, GLOBAL_RULE, 5, 4);
    assert_eq!(policy.waiting(), 0);
}

// --- time

#[test]
fn wait_that_cannot_end_in_time_is_refused_immediately() {
    let (policy, clock) = exhausted();
    let request = || policy.request().rule("global").rule("concurrency");
    let (wait, timeout) = (Wait::micros(100 * MS), Wait::micros(99 * MS));
    let too_short = request().timeout(ms(99)).acquire_blocking().expect_err("a millisecond is missing");
    assert_too_long(&too_short, GLOBAL_RULE, wait, timeout);
    assert_eq!(
        too_short.to_string(),
        "rule \"global\": the wait would be 100ms, longer than the timeout of 99ms; retry after 100ms"
    );
    let never = policy.request().rule("global").cost(6).acquire_blocking().expect_err("six of five");
    assert_never(&never, GLOBAL_RULE, 6, 5);
    let never = policy.request().rule("concurrency").cost(3).acquire_blocking().expect_err("three of two");
    assert_never(&never, CONCURRENCY_RULE, 3, 2);
    let busy = policy.request().rule("concurrency").cost(2).try_acquire().expect("two are free");
    let hidden = request().timeout(ms(99)).acquire_blocking().expect_err("permits or not, it takes 100 ms");
    assert_too_long(&hidden, GLOBAL_RULE, wait, timeout);
    let mut in_time = TestWait::new(request().deadline(Micros::new(100 * MS)).acquire());
    assert!(in_time.poll().is_none());
    drop(busy);
    assert_eq!(in_time.passed_at(), None);
    clock.advance(ms(100));
    assert!(in_time.poll().expect("at the last moment").is_ok());
    assert_eq!(policy.waiting(), 0);
}

#[test]
fn wait_of_unknown_length_times_out() {
    let (policy, clock) = policy();
    let busy = policy.request().rule("concurrency").try_acquire().expect("two are free");
    let two = [concurrency(2), global(1)];
    let mut first = TestWait::new(policy.request().parts(&two).timeout(ms(100)).acquire());
    let one = || policy.request().rule("concurrency");
    let mut second = TestWait::new(one().timeout(ms(50)).acquire());
    assert!(first.poll().is_none() && second.poll().is_none());
    clock.advance(ms(50));
    let timed_out = second.poll().expect("time is up").expect_err("it was behind the first");
    assert_timed_out(&timed_out, CONCURRENCY_RULE, Wait::micros(50 * MS));
    assert_eq!(
        timed_out.to_string(),
        "rule \"concurrency\": timed out after 50ms; retry later or use a longer timeout"
    );
    clock.advance(ms(50));
    assert!(first.is_woken());
    let timed_out = first.poll().expect("time is up").expect_err("no permit came back");
    assert_timed_out(&timed_out, CONCURRENCY_RULE, Wait::micros(100 * MS));
    assert_eq!((policy.waiting(), left(&policy, global(0))), (0, 5));
    assert!(one().try_acquire().is_ok());
    drop(busy);
}

/// The first waiter would take 400 ms. It may leave at any time, so a wait of at most 10 ms behind it is
/// not refused.
#[test]
fn waiters_ahead_do_not_make_a_short_timeout_refused_immediately() {
    let (policy, clock) = policy();
    assert!(check(&policy, &[global(4)]).is_allowed());
    let request = || policy.request().rule("global");
    let first = TestWait::pending(request().cost(5));
    let mut behind = TestWait::new(request().timeout(ms(10)).acquire());
    assert!(behind.poll().is_none(), "it would pass if the first waiter left");
    clock.advance(ms(5));
    drop(first);
    assert_eq!(behind.passed_at(), Some(5 * MS));
}

#[test]
fn passed_deadline_still_admits_what_needs_no_wait() {
    let (policy, clock) = policy();
    clock.advance(ms(1));
    let request = |name| policy.request().rule(name);
    assert!(request("global").cost(5).deadline(Micros::ZERO).acquire_blocking().is_ok());
    assert!(request("global").deadline(Micros::ZERO).acquire_blocking().is_err());
    let both = policy.request().rule("concurrency").cost(2).try_acquire().expect("two are free");
    let timed_out = request("concurrency").timeout(Duration::ZERO).acquire_blocking().expect_err("no time");
    assert_timed_out(&timed_out, CONCURRENCY_RULE, Wait::micros(0));
    drop(both);
}

// --- bounds

#[test]
fn number_of_waiters_is_bounded() {
    let (policy, clock) = exhausted();
    let small = || policy.request().rule("global");
    let permits = || policy.request().rule("concurrency").cost(2);
    let busy = permits().try_acquire().expect("two are free");
    let mut waits = [small(), permits(), small()].map(TestWait::pending);
    assert_queue_full(&small().acquire_blocking().expect_err("three wait"), GLOBAL_RULE, 3);
    clock.advance(ms(100));
    assert!(waits[0].passed_at().is_some());
    let _again = TestWait::pending(permits());
    assert_queue_full(&permits().acquire_blocking().expect_err("three wait"), CONCURRENCY_RULE, 3);
    drop(busy);

    let rules = Policy::builder().rule("a", Quota::per_hour(1)).max_waiting(0);
    let no_queue = rules.clock(ManualClock::new()).build().expect("valid");
    assert!(no_queue.request().rule("a").acquire_blocking().is_ok());
    let full = no_queue.request().rule("a").acquire_blocking().expect_err("the queue has no capacity");
    assert_queue_full(&full, (RuleId(0), "a"), 0);
}

#[test]
fn invalid_request_is_refused_without_waiting() {
    let (policy, _) = policy();
    let empty = policy.request().parts(&[]).acquire_blocking().expect_err("empty");
    assert_eq!(empty, InvalidRequest::Empty.into());
    assert_eq!(empty.invalid_request(), Some(&InvalidRequest::Empty));
    let mut unknown = TestWait::new(policy.request().rule("global").rule("unknown").acquire());
    let unknown = unknown.poll().expect("ready immediately").expect_err("an unknown rule");
    let no_such_rule = InvalidRequest::no_rule_named("unknown", ["global", "user", "concurrency"]);
    assert_eq!(unknown.invalid_request(), Some(&no_such_rule));
    let twice =
        policy.request().parts(&[global(1), global(1)]).acquire_blocking().expect_err("the same twice");
    assert_eq!(twice, InvalidRequest::SameKeyTwice { rule: GLOBAL }.into());
    assert_eq!(twice.to_string(), InvalidRequest::SameKeyTwice { rule: GLOBAL }.to_string());
}

#[test]
fn key_that_does_not_fit_is_refused_without_waiting() {
    let clock = ManualClock::new();
    let rules = Policy::builder().rule("log", "sliding_log 1/h".parse::<Rule>().expect("valid"));
    let policy = rules.concurrency("concurrency", 1).max_keys(1).clock(clock).build().expect("valid");
    let first = policy.request().rule_for("log", "a").rule_for("concurrency", "a").try_acquire();
    assert!(first.is_ok());
    let no_room = policy.request().rule_for("log", "b").acquire_blocking().expect_err("another key");
    assert!(no_room.is_closed());
    let hour = Wait::micros(3_600_000 * MS);
    assert_eq!(no_room.retry_after(), Some(hour));
    let message = format!("the maximum number of keys is in use; retry after {hour}");
    assert_refused(&no_room, (RuleId(0), "log"), &message);
    let no_room = policy.request().rule_for("concurrency", "b").acquire_blocking().expect_err("another key");
    assert!(no_room.is_closed() && no_room.retry_after().is_none());
    let message = "the maximum number of keys is in use; retry later";
    assert_refused(&no_room, (RuleId(1), "concurrency"), message);
}

// --- leaky queues

/// A leaky queue would allow the request now, with a delay. A waiter takes the later instant when it comes,
/// and has nothing to give back when it is dropped.
#[test]
fn waiter_takes_its_leaky_queue_instant_only_when_it_comes() {
    let clock = ManualClock::new();
    let queue = LeakyQueue::new(Quota::per_second(10), 5);
    let rules = Policy::builder().rule("queue", queue).rule("b", Quota::per_second(100));
    let policy = rules.clock(clock.clone()).build().expect("valid");
    let request = || policy.request().rule("queue").rule("b");
    assert!(request().acquire_blocking().is_ok());
    let (dropped, mut waits) = (TestWait::pending(request()), TestWait::pending(request()));
    drop(dropped);
    let refused = request().check().expect("valid");
    assert_eq!(refused.retry_after().expect("after the waiter"), ms(100));
    assert_eq!(left(&policy, Part::of(RuleId(1))), 99);
    assert!(waits.poll().is_none());
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), Some(100 * MS));
    let delayed = request().check().expect("valid");
    assert_eq!(delayed.outcome, Outcome::AllowedAfter(Wait::micros(100 * MS)));
}

// --- observers

#[derive(Default)]
struct Seen(Mutex<Vec<(bool, RuleId)>>);

impl Observer for Seen {
    fn allowed(&self, decision: &Decision, _: &[Charge<'_>]) {
        self.0.lock().expect("no panic").push((true, decision.rule));
    }

    fn denied(&self, decision: &Decision, _: &[Charge<'_>]) {
        self.0.lock().expect("no panic").push((false, decision.rule));
    }
}

#[test]
fn observer_sees_the_outcome_of_a_wait_exactly_once() {
    let (seen, clock) = (Arc::new(Seen::default()), ManualClock::new());
    let policy = rules(&clock).observer(seen.clone()).build().expect("a valid policy");
    assert!(check(&policy, &[global(5)]).is_allowed());
    let take = || std::mem::take(&mut *seen.0.lock().expect("no panic"));
    assert_eq!(take(), [(true, GLOBAL)]);
    let six = [global(6), user("alice")];
    assert!(policy.request().rule_for("user", "bob").acquire_blocking().is_ok());
    assert_eq!(take(), [(true, USER)]);
    assert!(policy.request().parts(&six).acquire_blocking().is_err());
    assert_eq!(take(), [(false, GLOBAL)]);
    let mut waits = TestWait::pending(policy.request().rule("global"));
    assert!(take().is_empty());
    clock.advance(ms(100));
    assert!(waits.passed_at().is_some());
    assert_eq!(take(), [(true, GLOBAL)]);
    let busy = policy.request().rule("concurrency").cost(2).try_acquire().expect("two are free");
    let _ = take();
    let request = policy.request().rule("concurrency").timeout(Duration::ZERO);
    assert!(request.acquire_blocking().is_err());
    assert_eq!(take(), [(false, CONCURRENCY)]);
    drop(busy);
}
