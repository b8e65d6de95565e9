//! Waiting for a policy: queues at the states that deny a request, and what their waiters are guaranteed.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{
    Admission, Decision, InvalidRequest, LeakyQueue, ManualClock, Micros, NotAdmitted, Observer, Outcome,
    Part, Policy, Quota, Rule, RuleId, Wait, WaitRefused,
};

const MS: u64 = 1_000;
const GLOBAL: RuleId = RuleId(0);
const USER: RuleId = RuleId(1);
const CONCURRENCY: RuleId = RuleId(2);

type Manual = Policy<Rule, ManualClock>;
type Answer = Result<Admission, NotAdmitted>;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A global burst of five and one per 100 ms, one per hour for each user, two concurrent.
fn policy() -> (Manual, ManualClock) {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .rule("global", Quota::per_second(10).burst(5))
        .rule("user", Quota::per_hour(1))
        .concurrency("concurrency", 2)
        .max_waiting(3)
        .build()
        .expect("a valid policy")
        .with_clock(clock.clone());
    (policy, clock)
}

/// The same policy, with the global quota used up.
fn exhausted() -> (Manual, ManualClock) {
    let (policy, clock) = policy();
    assert!(policy.check(&[global(5)]).expect("valid").is_allowed());
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
    policy.check(request).expect("a valid request").decision
}

fn left(policy: &Manual, part: Part<'_>) -> u64 {
    policy.peek(&[part.cost(0)]).expect("a valid request").remaining()
}

fn refused(rule: RuleId, why: WaitRefused) -> NotAdmitted {
    NotAdmitted::Refused { rule, why }
}

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

/// A wait that was polled once and is pending.
fn pending_wait<'a>(policy: &'a Manual, request: &'a [Part<'a>]) -> TestWait<'a> {
    let mut wait = TestWait::new(policy.acquire(request));
    assert!(wait.poll().is_none(), "the request has to wait");
    wait
}

// --- first come, first served

#[test]
fn acquire_returns_immediately_when_quota_is_available() {
    let (policy, _) = policy();
    let request = [global(1), user("alice"), concurrency(1)];
    let admission =
        TestWait::new(policy.acquire(&request)).poll().expect("ready immediately").expect("admitted");
    assert_eq!((admission.decision.outcome, admission.permits.len()), (Outcome::Allowed, 1));
    assert_eq!((left(&policy, global(0)), left(&policy, concurrency(0))), (4, 1));
    assert!(policy.acquire_blocking(&[global(1)]).is_ok());
    assert_eq!(policy.waiting(), 0);
}

#[test]
fn waiters_are_served_in_order() {
    let (policy, clock) = exhausted();
    let request = [global(1)];
    let mut waits = [(); 3].map(|()| pending_wait(&policy, &request));
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
    let (large, small) = ([global(5)], [global(1)]);
    let mut large = pending_wait(&policy, &large);
    let mut waits = Vec::new();
    for step in 1..=5 {
        assert!(!large.is_woken());
        if step < 3 {
            waits.push(pending_wait(&policy, &small));
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
    let (request, small) = ([global(5)], [global(1)]);
    let mut large = pending_wait(&policy, &request);
    for millis in 0..500 {
        let decision = check(&policy, &small);
        let first_waits = 500 - millis;
        assert_eq!(
            decision.outcome,
            Outcome::RetryAfter(Wait::micros(first_waits * MS)),
            "the wait of the first waiter"
        );
        assert_eq!((decision.rule, decision.remaining()), (GLOBAL, 0));
        assert_eq!(policy.peek(&small).expect("valid"), decision, "peek agrees with check");
        let each = policy.check_each(&[global(1), user("bob")]).expect("valid");
        assert_eq!((each.decision, each.rules[1].outcome), (decision, Outcome::Allowed));
        clock.advance(ms(1));
    }
    assert!(
        !check(&policy, &small).is_allowed(),
        "reserved for the waiter, even though it has not polled yet"
    );
    assert_eq!(left(&policy, global(0)), 5, "a cost of 0 queries the remaining quota and ignores the queue");
    assert_eq!(large.passed_at(), Some(500 * MS));
    assert_eq!(left(&policy, user("bob")), 1, "a denied request spends nothing");
    clock.advance(ms(100));
    assert!(check(&policy, &small).is_allowed());
}

#[test]
fn waiter_for_its_own_bucket_does_not_hold_up_other_keys() {
    let (policy, clock) = policy();
    let (alice, bob) = ([global(1), user("alice")], [global(1), user("bob")]);
    assert!(check(&policy, &alice).is_allowed());
    let mut waits = pending_wait(&policy, &alice);
    assert_eq!(left(&policy, global(0)), 4, "the waiter has charged nothing");
    assert!(check(&policy, &bob).is_allowed());
    assert!(policy.acquire_blocking(&[global(2)]).is_ok());
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
    let policy = Policy::builder().rule("a", rule).rule("b", rule).build().expect("valid");
    let policy = policy.with_clock(clock.clone());
    let [a, b] = [Part::of(RuleId(0)), Part::of(RuleId(1))];
    assert!(check(&policy, &[a]).is_allowed());
    clock.advance(ms(50));
    assert!(check(&policy, &[b]).is_allowed());
    let request = [a, b];
    let mut both = pending_wait(&policy, &request);
    let mut passed = None;
    for _ in 0..1_000 {
        if passed.is_none() {
            passed = both.passed_at();
        }
        let _ = (check(&policy, &[a]), check(&policy, &[b]));
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
        in_progress.extend(policy.check(&[concurrency(1)]).expect("valid").into_result().ok());
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
    let busy = policy.check(&[concurrency(1)]).expect("valid");
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
    let one = policy.check(&[concurrency(1)]).expect("valid");
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
    let both = policy.check(&[concurrency(2)]).expect("valid");
    let small = [concurrency(1)];
    let (first, mut second) = (pending_wait(&policy, &small), pending_wait(&policy, &small));
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
    let both = policy.check(&[concurrency(2)]).expect("valid");
    let one = [concurrency(1)];
    let mut waits = pending_wait(&policy, &one);
    policy.resize(CONCURRENCY, 0).expect("there is such a rule");
    assert!(waits.is_woken() && waits.poll().is_none(), "a limit of 0 pauses the waiter but does not end it");
    policy.resize(CONCURRENCY, 3).expect("there is such a rule");
    assert!(waits.is_woken() && waits.poll().expect("ready").is_ok());
    let three = [concurrency(3)];
    let mut large = pending_wait(&policy, &three);
    policy.resize(CONCURRENCY, 2).expect("there is such a rule");
    let never = large.poll().expect("refused for good").expect_err("three of two");
    assert_eq!(never, refused(CONCURRENCY, WaitRefused::Never { cost: 3, limit: 2 }));
    drop(both);
}

// --- refunds and changed rules

#[test]
fn refund_reset_and_rule_change_wake_the_first_waiter() {
    let ways: [fn(&Manual); 3] = [
        |policy| policy.refund(&[global(2)]).expect("valid"),
        |policy| policy.reset(&[global(0)]).expect("valid"),
        |policy| policy.change(GLOBAL, Quota::per_second(10).burst(7)).expect("there is such a rule"),
    ];
    for way in ways {
        let (policy, clock) = exhausted();
        let (two, own) = ([global(2)], [global(1), user("alice")]);
        let mut first = pending_wait(&policy, &two);
        let mut second = pending_wait(&policy, &own);
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
    let request = [global(5)];
    let mut waits = pending_wait(&policy, &request);
    policy.change(GLOBAL, Quota::per_second(10).burst(4)).expect("there is such a rule");
    let never = waits.poll().expect("refused for good").expect_err("five of four");
    assert_eq!(never, refused(GLOBAL, WaitRefused::Never { cost: 5, limit: 4 }));
    assert_eq!(policy.waiting(), 0);
}

// --- time

#[test]
fn wait_that_cannot_end_in_time_is_refused_immediately() {
    let (policy, clock) = exhausted();
    let request = [global(1), concurrency(1)];
    let too_long = WaitRefused::TooLong { wait: Wait::micros(100 * MS), within: Wait::micros(99 * MS) };
    let too_short = policy.acquire_blocking_timeout(&request, ms(99)).expect_err("a millisecond is missing");
    assert_eq!(too_short, refused(GLOBAL, too_long));
    assert_eq!(too_short.to_string(), format!("rule 0: {too_long}"));
    let never = policy.acquire_blocking(&[global(6)]).expect_err("six of five");
    assert_eq!(never, refused(GLOBAL, WaitRefused::Never { cost: 6, limit: 5 }));
    let never = policy.acquire_blocking(&[concurrency(3)]).expect_err("three of two");
    assert_eq!(never, refused(CONCURRENCY, WaitRefused::Never { cost: 3, limit: 2 }));
    let busy = policy.check(&[concurrency(2)]).expect("valid");
    let hidden =
        policy.acquire_blocking_timeout(&request, ms(99)).expect_err("permits or not, it takes 100 ms");
    assert_eq!(hidden, refused(GLOBAL, too_long));
    let mut in_time = TestWait::new(policy.acquire_until(&request, Micros::new(100 * MS)));
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
    let busy = policy.check(&[concurrency(1)]).expect("valid");
    let (two, one) = ([concurrency(2), global(1)], [concurrency(1)]);
    let mut first = TestWait::new(policy.acquire_timeout(&two, ms(100)));
    let mut second = TestWait::new(policy.acquire_timeout(&one, ms(50)));
    assert!(first.poll().is_none() && second.poll().is_none());
    clock.advance(ms(50));
    let timed_out = second.poll().expect("time is up").expect_err("it was behind the first");
    assert_eq!(timed_out, refused(CONCURRENCY, WaitRefused::TimedOut { within: Wait::micros(50 * MS) }));
    assert_eq!(timed_out.to_string(), "rule 2: it was not its turn within 50ms; wait longer, or try later");
    clock.advance(ms(50));
    assert!(first.is_woken());
    let timed_out = first.poll().expect("time is up").expect_err("no permit came back");
    assert_eq!(timed_out, refused(CONCURRENCY, WaitRefused::TimedOut { within: Wait::micros(100 * MS) }));
    assert_eq!((policy.waiting(), left(&policy, global(0))), (0, 5));
    assert!(check(&policy, &one).is_allowed());
    drop(busy);
}

/// The first waiter would take 400 ms. It may leave at any time, so a wait of at most 10 ms behind it is
/// not refused.
#[test]
fn waiters_ahead_do_not_make_a_short_timeout_refused_immediately() {
    let (policy, clock) = policy();
    assert!(check(&policy, &[global(4)]).is_allowed());
    let (large, small) = ([global(5)], [global(1)]);
    let first = pending_wait(&policy, &large);
    let mut behind = TestWait::new(policy.acquire_timeout(&small, ms(10)));
    assert!(behind.poll().is_none(), "it would pass if the first waiter left");
    clock.advance(ms(5));
    drop(first);
    assert_eq!(behind.passed_at(), Some(5 * MS));
}

#[test]
fn passed_deadline_still_admits_what_needs_no_wait() {
    let (policy, clock) = policy();
    clock.advance(ms(1));
    assert!(policy.acquire_blocking_until(&[global(5)], Micros::ZERO).is_ok());
    assert!(policy.acquire_blocking_until(&[global(1)], Micros::ZERO).is_err());
    let both = policy.check(&[concurrency(2)]).expect("valid");
    let timed_out = policy.acquire_blocking_timeout(&[concurrency(1)], Duration::ZERO).expect_err("no time");
    assert_eq!(timed_out, refused(CONCURRENCY, WaitRefused::TimedOut { within: Wait::micros(0) }));
    drop(both);
}

// --- bounds

#[test]
fn number_of_waiters_is_bounded() {
    let (policy, clock) = exhausted();
    let (small, permits) = ([global(1)], [concurrency(2)]);
    let busy = policy.check(&permits).expect("valid");
    let mut waits =
        [pending_wait(&policy, &small), pending_wait(&policy, &permits), pending_wait(&policy, &small)];
    let full = WaitRefused::LineFull { max_waiting: 3 };
    assert_eq!(policy.acquire_blocking(&small).expect_err("three wait"), refused(GLOBAL, full));
    clock.advance(ms(100));
    assert!(waits[0].passed_at().is_some());
    let _again = pending_wait(&policy, &permits);
    assert_eq!(policy.acquire_blocking(&permits).expect_err("three wait"), refused(CONCURRENCY, full));
    drop(busy);

    let clock = ManualClock::new();
    let no_queue = Policy::builder().rule("a", Quota::per_hour(1)).max_waiting(0).build().expect("valid");
    let no_queue = no_queue.with_clock(clock);
    assert!(no_queue.acquire_blocking(&small).is_ok());
    let full = WaitRefused::LineFull { max_waiting: 0 };
    assert_eq!(
        no_queue.acquire_blocking(&small).expect_err("the queue has no capacity"),
        refused(RuleId(0), full)
    );
}

#[test]
fn invalid_request_is_refused_without_waiting() {
    let (policy, _) = policy();
    assert_eq!(policy.acquire_blocking(&[]).expect_err("empty"), NotAdmitted::Invalid(InvalidRequest::Empty));
    let twice = policy.acquire_blocking(&[global(1), global(1)]).expect_err("the same twice");
    assert_eq!(twice, InvalidRequest::SameKeyTwice { rule: GLOBAL }.into());
    assert_eq!(twice.to_string(), InvalidRequest::SameKeyTwice { rule: GLOBAL }.to_string());
}

#[test]
fn key_that_does_not_fit_is_refused_without_waiting() {
    let clock = ManualClock::new();
    let rules = Policy::builder().rule("log", "sliding_log 1/h".parse::<Rule>().expect("valid"));
    let policy = rules.concurrency("concurrency", 1).max_keys(1).build().expect("valid").with_clock(clock);
    let (log, concurrency) = (Part::of(RuleId(0)), Part::of(RuleId(1)));
    let first = policy.check(&[log.key("a"), concurrency.key("a")]).expect("valid");
    assert!(first.is_allowed());
    let hour = Wait::micros(3_600_000 * MS);
    let no_room = policy.acquire_blocking(&[log.key("b")]).expect_err("another key");
    assert_eq!(no_room, refused(RuleId(0), WaitRefused::TooManyKeys { retry_after: hour }));
    let no_room = policy.acquire_blocking(&[concurrency.key("b")]).expect_err("another key");
    assert_eq!(no_room, refused(RuleId(1), WaitRefused::TooManyKeys { retry_after: Wait::micros(0) }));
    assert_eq!(no_room.to_string(), "rule 1: there are as many keys as may be; try later");
}

// --- leaky queues

/// A leaky queue would allow the request now, with a delay. A waiter takes the later instant when it comes,
/// and has nothing to give back when it is dropped.
#[test]
fn waiter_takes_its_leaky_queue_instant_only_when_it_comes() {
    let clock = ManualClock::new();
    let queue = LeakyQueue::new(Quota::per_second(10), 5);
    let policy =
        Policy::builder().rule("queue", queue).rule("b", Quota::per_second(100)).build().expect("valid");
    let policy = policy.with_clock(clock.clone());
    let request = [Part::of(RuleId(0)), Part::of(RuleId(1))];
    assert!(policy.acquire_blocking(&request).is_ok());
    let (dropped, mut waits) = (pending_wait(&policy, &request), pending_wait(&policy, &request));
    drop(dropped);
    assert_eq!(check(&policy, &request).retry_after().expect("after the waiter"), ms(100));
    assert_eq!(left(&policy, request[1]), 99);
    assert!(waits.poll().is_none());
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), Some(100 * MS));
    assert_eq!(check(&policy, &request).outcome, Outcome::AllowedAfter(Wait::micros(100 * MS)));
}

// --- observers

#[derive(Default)]
struct Seen(Mutex<Vec<(bool, RuleId)>>);

impl Observer for Seen {
    fn allowed(&self, decision: &Decision) {
        self.0.lock().expect("no panic").push((true, decision.rule));
    }

    fn denied(&self, decision: &Decision) {
        self.0.lock().expect("no panic").push((false, decision.rule));
    }
}

#[test]
fn observer_sees_the_outcome_of_a_wait_exactly_once() {
    let (policy, clock) = exhausted();
    let seen = Arc::new(Seen::default());
    let policy = policy.with_observer(seen.clone());
    let take = || std::mem::take(&mut *seen.0.lock().expect("no panic"));
    let (one, six) = ([global(1)], [global(6), user("alice")]);
    assert!(policy.acquire_blocking(&[user("bob")]).is_ok());
    assert_eq!(take(), [(true, USER)]);
    assert!(policy.acquire_blocking(&six).is_err());
    assert_eq!(take(), [(false, GLOBAL)]);
    let mut waits = pending_wait(&policy, &one);
    assert!(take().is_empty());
    clock.advance(ms(100));
    assert!(waits.passed_at().is_some());
    assert_eq!(take(), [(true, GLOBAL)]);
    let busy = policy.check(&[concurrency(2)]).expect("valid");
    let _ = take();
    assert!(policy.acquire_blocking_timeout(&[concurrency(1)], Duration::ZERO).is_err());
    assert_eq!(take(), [(false, CONCURRENCY)]);
    drop(busy);
}
