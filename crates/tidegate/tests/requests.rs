//! The request builder of every limiter: costs, timeouts, reservations, errors, observers and allocations.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::algorithm::{Keep, TokenBucket};
use tidegate::clock::{Clock, Micros};
use tidegate::gate::{Part, RuleId};
use tidegate::stats::{Charge, Observer};
use tidegate::{
    AcquireError, ConcurrencyLimiter, Decision, InvalidRequest, KeyedConcurrencyLimiter, KeyedLimiter,
    Limiter, ManualClock, Outcome, Pacer, Policy, Quota, Rule, Wait,
};

/// Ten per second, one at a time: a request waits 100 ms for the one before it.
const TENTHS: Quota = Quota::per_second(10).burst(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future that does not wait.
fn ready<F: Future>(future: F) -> F::Output {
    match poll(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits"),
    }
}

fn used_up() -> (Limiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(TENTHS).clock(clock.clone()).build();
    assert!(limiter.check().is_allowed());
    (limiter, clock)
}

fn keyed_used_up() -> (KeyedLimiter<str, TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::builder(TENTHS).clock(clock.clone()).build();
    assert!(limiter.check("alice").is_allowed());
    (limiter, clock)
}

fn pacer_used_up() -> (Pacer<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let pacer = Pacer::builder(Quota::per_second(10)).clock(clock.clone()).build();
    assert!(pacer.check().is_allowed());
    (pacer, clock)
}

fn policy(clock: &ManualClock) -> Policy<Rule, ManualClock> {
    let rules = Policy::builder()
        .rule("global", Quota::per_hour(100))
        .rule("user", TENTHS)
        .concurrency("in progress", 1)
        .clock(clock.clone());
    rules.build().expect("a valid policy")
}

// --- short forms

#[deny(unused_must_use)]
async fn acquire_as_statements(
    limiter: &KeyedLimiter<str, TokenBucket, ManualClock>,
) -> Result<(), AcquireError> {
    limiter.acquire("alice").await?;
    limiter.request("alice").cost(2).timeout(ms(1)).acquire().await?;
    Ok(())
}

#[test]
fn acquire_with_a_question_mark_needs_no_use_of_its_decision() {
    let quota = Quota::per_second(3);
    let limiter = KeyedLimiter::<str>::builder(quota).clock(ManualClock::new()).build();
    assert_eq!(ready(acquire_as_statements(&limiter)), Ok(()));
    assert_eq!(limiter.request("alice").cost(0).peek().remaining(), 0);
}

// --- allocations

fn allocations(mut call: impl FnMut()) -> u64 {
    (0..10).for_each(|_| call()); // the first calls may create what later ones use
    allocation_counter::measure(call).count_total
}

#[test]
fn check_with_a_cost_does_not_allocate() {
    let quota = Quota::per_hour(1_000);
    let (one, keyed, pacer) = (Limiter::new(quota), KeyedLimiter::<String>::new(quota), Pacer::new(quota));
    assert_eq!(allocations(|| assert!(one.request().cost(2).check().is_allowed())), 0);
    assert_eq!(allocations(|| assert!(keyed.request("alice").cost(2).check().is_allowed())), 0);
    let paced = || assert_eq!(pacer.request().cost(2).check().limit(), 1_000);
    assert_eq!(allocations(paced), 0);
}

#[test]
fn acquire_that_passes_at_once_does_not_allocate() {
    let quota = Quota::per_hour(1_000);
    let (one, keyed) = (Limiter::new(quota), KeyedLimiter::<String>::new(quota));
    let clock = ManualClock::new();
    let pacer = Pacer::builder(Quota::per_second(1)).clock(clock.clone()).build();
    let permits = ConcurrencyLimiter::builder(3).clock(clock.clone()).build();
    assert_eq!(allocations(|| assert!(one.request().cost(2).acquire_blocking().is_ok())), 0);
    assert_eq!(allocations(|| assert!(keyed.request("alice").cost(2).acquire_blocking().is_ok())), 0);
    assert_eq!(allocations(|| assert!(ready(permits.acquire()).is_ok())), 0);
    let paced = || {
        clock.advance(Duration::from_secs(1));
        assert!(ready(pacer.acquire()).is_ok());
    };
    assert_eq!(allocations(paced), 0);

    let one = Limiter::builder(quota).clock(clock.clone()).build();
    let keyed = KeyedLimiter::<String>::builder(quota).clock(clock).build();
    assert_eq!(allocations(|| assert!(ready(one.acquire()).is_ok())), 0);
    assert_eq!(allocations(|| assert!(ready(keyed.acquire("alice")).is_ok())), 0);
    assert_eq!(allocations(|| assert!(ready(keyed.request("bob").timeout(ms(1)).acquire()).is_ok())), 0);
}

#[test]
fn policy_request_with_up_to_four_named_rules_does_not_allocate() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let rules = NAMES.iter().fold(Policy::builder(), |rules, name| rules.rule(*name, Quota::per_hour(1_000)));
    let policy = rules.clock(ManualClock::new()).build().expect("a valid policy");
    for many in 1..=NAMES.len() {
        let request = || {
            let names = NAMES[..many].iter();
            names.fold(policy.request(), |request, name| request.rule_for(name, "alice")).cost(2)
        };
        assert_eq!(
            allocations(|| assert!(request().check().is_ok_and(|decision| decision.is_allowed()))),
            0,
            "check of {many} rules"
        );
        assert_eq!(allocations(|| assert!(ready(request().acquire()).is_ok())), 0, "acquire of {many} rules");
    }
}

// --- the setting of one request

#[test]
fn setting_with_another_state_size_is_an_error() {
    let limiter = KeyedLimiter::<u64>::new(Quota::per_hour(2)); // one word on the steady clock
    let error = limiter.request(&7).by(TokenBucket::new(Quota::per_second(999_983))).expect_err("two words");
    assert_eq!((error.words, error.expected), (2, 1));
    let message = "the algorithm needs states of 2 words, but the limiter stores 1; \
                   use parameters of the same size, or `change`";
    assert_eq!(error.to_string(), message);
}

#[test]
fn unlimited_quota_on_a_keyed_limiter_never_refuses() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(Quota::unlimited()).clock(clock.clone()).build();
    for round in 0..1_000 {
        for key in 0..3 {
            assert!(limiter.check(&key).is_allowed(), "round {round}, key {key}");
            assert!(limiter.request(&key).cost(u32::MAX).check().is_allowed(), "round {round}, key {key}");
            assert!(limiter.request(&key).cost(u32::MAX).acquire_blocking().is_ok());
        }
        if round % 10 == 0 {
            clock.advance(Duration::from_micros(1));
        }
    }
}

// --- timeouts and deadlines

const TOO_LONG: &str = "the wait would be 100ms, longer than the timeout of 99.999ms; retry after 100ms";
const TIMED_OUT: &str = "timed out after 100ms; retry later or use a longer timeout";

fn assert_too_long<T: std::fmt::Debug>(result: Result<T, AcquireError>) {
    let error = result.expect_err("a microsecond too short");
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(error.retry_after(), Some(Wait::micros(100_000)));
    let message = error.to_string();
    let prefix = error.rule().map_or(String::new(), |rule| format!("rule {rule:?}: "));
    assert_eq!(message, prefix + TOO_LONG);
}

/// Evaluates requests that are refused at once, and one that passes at 100 ms, with a timeout and a deadline.
macro_rules! assert_waits_up_to_its_timeout {
    ($request:expr, $clock:expr) => {{
        let (short, enough) = (Duration::from_micros(99_999), ms(100));
        assert_too_long($request.timeout(short).acquire_blocking());
        assert_too_long($request.deadline(Micros::new(99_999)).acquire_blocking());
        assert_too_long(ready($request.timeout(short).acquire()));
        assert_too_long(ready($request.deadline(Micros::new(99_999)).acquire()));
        for by_deadline in [false, true] {
            let began = $clock.now();
            let mut wait: Pin<Box<dyn Future<Output = bool>>> = if by_deadline {
                Box::pin(async { $request.deadline(began.plus(100_000)).acquire().await.is_ok() })
            } else {
                Box::pin(async { $request.timeout(enough).acquire().await.is_ok() })
            };
            assert!(poll(wait.as_mut()).is_pending());
            $clock.advance(Duration::from_micros(99_999));
            assert!(poll(wait.as_mut()).is_pending());
            $clock.advance(Duration::from_micros(1));
            assert_eq!(poll(wait.as_mut()), Poll::Ready(true));
        }
    }};
}

#[test]
fn limiter_waits_up_to_its_timeout_or_deadline() {
    let (limiter, clock) = used_up();
    assert_too_long(limiter.request().timeout(Duration::from_micros(99_999)).reserve());
    assert_too_long(limiter.request().deadline(Micros::new(99_999)).reserve());
    assert_waits_up_to_its_timeout!(limiter.request(), clock);
}

#[test]
fn keyed_limiter_waits_up_to_its_timeout_or_deadline() {
    let (limiter, clock) = keyed_used_up();
    assert_too_long(limiter.request("alice").timeout(Duration::from_micros(99_999)).reserve());
    assert_too_long(limiter.request("alice").deadline(Micros::new(99_999)).reserve());
    assert_waits_up_to_its_timeout!(limiter.request("alice"), clock);
}

#[test]
fn pacer_waits_up_to_its_timeout_or_deadline() {
    let (pacer, clock) = pacer_used_up();
    assert_too_long(pacer.request().timeout(Duration::from_micros(99_999)).reserve());
    assert_too_long(pacer.request().deadline(Micros::new(99_999)).reserve());
    assert_waits_up_to_its_timeout!(pacer.request(), clock);
}

#[test]
fn policy_waits_up_to_its_timeout_or_deadline() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    assert!(policy.request().rule_for("user", "alice").check().is_ok_and(|decision| decision.is_allowed()));
    assert_waits_up_to_its_timeout!(policy.request().rule("global").rule_for("user", "alice"), clock);
}

/// Waits for a permit, which cannot be predicted, end at the timeout or deadline.
macro_rules! assert_times_out {
    ($request:expr, $clock:expr) => {{
        let mut by_timeout = pin!($request.timeout(ms(100)).acquire());
        let mut by_deadline = pin!($request.deadline($clock.now().plus(100_000)).acquire());
        assert!(poll(by_timeout.as_mut()).is_pending() && poll(by_deadline.as_mut()).is_pending());
        $clock.advance(Duration::from_micros(99_999));
        assert!(poll(by_timeout.as_mut()).is_pending() && poll(by_deadline.as_mut()).is_pending());
        $clock.advance(Duration::from_micros(1));
        for error in [ready(by_timeout).map(drop), ready(by_deadline).map(drop)] {
            let error = error.expect_err("timed out");
            assert!(error.is_timeout(), "{error:?}");
            assert_eq!(error.retry_after(), None);
            assert!(error.to_string().ends_with(TIMED_OUT), "{error}");
        }
        assert!($request.timeout(Duration::ZERO).acquire_blocking().is_err_and(|error| error.is_timeout()));
        let now = $clock.now();
        assert!($request.deadline(now).acquire_blocking().is_err_and(|error| error.is_timeout()));
    }};
}

#[test]
fn wait_for_a_permit_ends_at_its_timeout_or_deadline() {
    let clock = ManualClock::new();
    let permits = ConcurrencyLimiter::builder(1).clock(clock.clone()).build();
    let held = permits.try_acquire().expect("free");
    assert_times_out!(permits.request(), clock);
    drop(held);

    let keyed = KeyedConcurrencyLimiter::<str>::builder(1).clock(clock.clone()).build();
    let held = keyed.try_acquire("alice").expect("free");
    assert_times_out!(keyed.request("alice"), clock);
    drop(held);

    let policy = policy(&clock);
    let held = policy.request().rule("in progress").try_acquire().expect("free");
    assert_times_out!(policy.request().rule("in progress"), clock);
    drop(held);
}

// --- reservations

#[test]
fn dropped_reservation_is_refunded() {
    let (limiter, _) = used_up();
    let before = limiter.request().peek();
    let reservation = limiter.request().reserve().expect("reserved");
    assert_eq!(limiter.request().peek().retry_after(), Some(Wait::micros(200_000)));
    drop(reservation);
    assert_eq!(limiter.request().peek(), before);

    let (limiter, _) = keyed_used_up();
    let before = limiter.request("alice").peek();
    let reservation = limiter.request("alice").reserve().expect("reserved");
    assert_eq!(limiter.request("alice").peek().retry_after(), Some(Wait::micros(200_000)));
    drop(reservation);
    assert_eq!(limiter.request("alice").peek(), before);

    let (pacer, _) = pacer_used_up();
    let before = pacer.request().peek();
    let reservation = pacer.request().cost(3).reserve().expect("reserved");
    assert_eq!(pacer.request().peek().retry_after(), Some(Wait::micros(400_000)));
    drop(reservation);
    assert_eq!(pacer.request().peek(), before);
}

#[test]
fn reservation_dropped_while_awaited_is_refunded() {
    let (limiter, _) = used_up();
    let (keyed, _) = keyed_used_up();
    let (pacer, _) = pacer_used_up();
    {
        let one = pin!(limiter.request().reserve().expect("reserved").ready());
        let other = pin!(keyed.request("alice").reserve().expect("reserved").ready());
        let paced = pin!(pacer.request().reserve().expect("reserved").ready());
        assert!(poll(one).is_pending() && poll(other).is_pending() && poll(paced).is_pending());
    }
    let waits = [limiter.check(), keyed.check("alice"), pacer.check()].map(|refused| refused.retry_after());
    assert_eq!(waits, [Some(Wait::micros(100_000)); 3]);
}

// --- changes

fn remaining_after(keep: Keep, used: u32, next: Quota) -> u64 {
    let clock = ManualClock::new();
    let one = Limiter::builder(Quota::per_minute(10)).clock(clock.clone()).build();
    let keyed = KeyedLimiter::<u64>::builder(Quota::per_minute(10)).clock(clock).build();
    assert!(one.request().cost(used).check().is_allowed());
    assert!(keyed.request(&7).cost(used).check().is_allowed());
    one.change_keeping(keep, TokenBucket::new(next));
    keyed.change_keeping(keep, TokenBucket::new(next));
    let remaining = one.request().cost(0).peek().remaining();
    assert_eq!(keyed.request(&7).cost(0).peek().remaining(), remaining);
    assert_eq!(
        keyed.request(&8).cost(0).peek().remaining(),
        next.max_burst(),
        "a key that was never charged"
    );
    remaining
}

#[test]
fn change_keeps_what_remains_or_its_ratio() {
    let (smaller, larger) = (Quota::per_minute(5), Quota::per_minute(30));
    assert_eq!(
        [Keep::Used, Keep::Remaining, Keep::Ratio].map(|keep| remaining_after(keep, 6, larger)),
        [24, 4, 12]
    );
    assert_eq!(
        [Keep::Used, Keep::Remaining, Keep::Ratio].map(|keep| remaining_after(keep, 4, smaller)),
        [1, 5, 3]
    );
    assert_eq!(
        [Keep::Used, Keep::Remaining, Keep::Ratio].map(|keep| remaining_after(keep, 10, larger)),
        [20, 0, 0]
    );
}

/// The pace stays the same and nothing remains, so every request has to wait for the same refill: a change that
/// admits more than the unchanged limiter has given something away.
#[test]
fn change_with_pending_reservations_admits_no_more_than_before() {
    for keep in [Keep::Remaining, Keep::Ratio] {
        for burst in [2, 5, 9, 40] {
            for cancelled in 0..3 {
                admits_no_more_than_before(keep, burst, cancelled);
            }
        }
    }
}

fn admits_no_more_than_before(keep: Keep, burst: u64, cancelled: usize) {
    let quota = Quota::per_second(10).burst(5);
    let clock = ManualClock::new();
    let unchanged = Limiter::builder(quota).clock(clock.clone()).build();
    let one = Limiter::builder(quota).clock(clock.clone()).build();
    let keyed = KeyedLimiter::<u64>::builder(quota).clock(clock.clone()).build();
    assert!(unchanged.request().cost(5).check().is_allowed());
    assert!(one.request().cost(5).check().is_allowed() && keyed.request(&7).cost(5).check().is_allowed());
    let before = [2, 1].map(|cost| unchanged.request().cost(cost).reserve().expect("reserved"));
    let mut ones = Vec::from([2, 1].map(|cost| one.request().cost(cost).reserve().expect("reserved")));
    let mut keys = Vec::from([2, 1].map(|cost| keyed.request(&7).cost(cost).reserve().expect("reserved")));
    let instants = before.each_ref().map(|reservation| reservation.ready_at());
    clock.advance(ms(50));
    let next = TokenBucket::new(Quota::per_second(10).burst(burst));
    one.change_keeping(keep, next);
    keyed.change_keeping(keep, next);
    assert_eq!([ones[0].ready_at(), ones[1].ready_at()], instants, "reservations keep their instants");
    assert_eq!([keys[0].ready_at(), keys[1].ready_at()], instants);

    let mut before = Vec::from(before);
    for _ in 0..cancelled {
        before.pop().expect("two").cancel();
        ones.pop().expect("two").cancel();
        keys.pop().expect("two").cancel();
    }
    let (mut allowed_before, mut allowed) = (0, 0);
    for step in 0..60 {
        clock.advance(ms(37));
        let taken = one.request().cost(100).take().amount;
        assert_eq!(keyed.request(&7).cost(100).take().amount, taken, "{keep:?}, {burst}, step {step}");
        allowed_before += unchanged.request().cost(100).take().amount;
        allowed += taken;
        assert!(allowed <= allowed_before, "{keep:?}, {burst}, step {step}: {allowed} of {allowed_before}");
    }
    assert!(allowed > 0, "{keep:?}, {burst}: the limiter still admits requests");
}

// --- observers

/// What an observer was told: allowed or not, and the rules with their costs.
type Told = (bool, Vec<(String, u32)>);

#[derive(Default)]
struct Recorder(Mutex<Vec<Told>>);

impl Recorder {
    fn record(&self, is_allowed: bool, charges: &[Charge<'_>]) {
        let charges = charges.iter().map(|charge| (charge.rule.to_owned(), charge.cost)).collect();
        self.0.lock().expect("no panic").push((is_allowed, charges));
    }

    /// Returns what was told since the last call.
    fn told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

impl Observer for Recorder {
    fn allowed(&self, decision: &Decision, charges: &[Charge<'_>]) {
        assert!(decision.is_allowed());
        self.record(true, charges);
    }

    fn denied(&self, decision: &Decision, charges: &[Charge<'_>]) {
        assert!(!decision.is_allowed());
        self.record(false, charges);
    }
}

fn told(is_allowed: bool, charges: &[(&str, u32)]) -> Told {
    (is_allowed, charges.iter().map(|(rule, cost)| ((*rule).to_owned(), *cost)).collect())
}

/// Evaluates every operation of a rate limiter of five per hour, and checks what its observer was told.
macro_rules! assert_told_costs {
    ($request:expr, $recorder:expr) => {{
        let _ = ($request.cost(2).check(), $request.cost(4).check(), $request.cost(9).peek());
        assert_eq!($recorder.told(), [told(true, &[("", 2)]), told(false, &[("", 4)])]);
        assert_eq!($request.cost(7).take().amount, 3);
        assert_eq!($recorder.told(), [told(true, &[("", 3)])], "the amount taken");
        $request.cost(4).refund();
        assert_eq!($recorder.told(), []);
        let _ = ($request.cost(1).check_each(), $request.cost(6).force());
        assert_eq!($recorder.told(), [told(true, &[("", 1)]), told(true, &[("", 6)])]);
        $request.reset();
        assert!($request.cost(5).acquire_blocking().is_ok());
        assert!($request.cost(2).timeout(ms(1)).acquire_blocking().is_err());
        drop($request.cost(3).reserve().expect("reserved"));
        assert_eq!(
            $recorder.told(),
            [told(true, &[("", 5)]), told(false, &[("", 2)]), told(true, &[("", 3)])]
        );
    }};
}

#[test]
fn observer_of_a_limiter_is_told_costs_with_an_empty_rule() {
    let (clock, quota) = (ManualClock::new(), Quota::per_hour(5));
    let recorder = Arc::new(Recorder::default());
    let one = Limiter::builder(quota).clock(clock.clone()).observer(recorder.clone()).build();
    assert_told_costs!(one.request(), recorder);
    let keyed = KeyedLimiter::<u64>::builder(quota).clock(clock).observer(recorder.clone()).build();
    assert_told_costs!(keyed.request(&7), recorder);
}

#[test]
fn observer_of_a_policy_is_told_rules_and_costs() {
    let recorder = Arc::new(Recorder::default());
    let clock = ManualClock::new();
    let rules = Policy::builder().rule("global", Quota::per_hour(9)).rule("user", Quota::per_hour(3));
    let policy = rules.concurrency("in progress", 1).clock(clock).observer(recorder.clone());
    let policy = policy.build().expect("a valid policy");
    let request = || policy.request().rule("global").rule_for("user", "alice");
    assert!(request().cost(2).check().is_ok_and(|decision| decision.is_allowed()));
    assert!(request().cost(2).check().is_ok_and(|decision| !decision.is_allowed()));
    assert!(request().peek().is_ok());
    assert_eq!(
        recorder.told(),
        [told(true, &[("global", 2), ("user", 2)]), told(false, &[("global", 2), ("user", 2)])]
    );
    let parts = [Part::of(RuleId(1)).key("bob").cost(3)];
    let admission = policy.request().rule("in progress").parts(&parts).try_acquire().expect("allowed");
    assert!(policy.request().rule("in progress").try_acquire().is_err());
    assert_eq!(
        recorder.told(),
        [told(true, &[("in progress", 1), ("user", 3)]), told(false, &[("in progress", 1)])]
    );
    drop(admission);
    assert!(request().acquire_blocking().is_ok());
    assert!(request().timeout(ms(1)).acquire_blocking().is_err());
    assert_eq!(
        recorder.told(),
        [told(true, &[("global", 1), ("user", 1)]), told(false, &[("global", 1), ("user", 1)])]
    );
}

// --- errors

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Timeout,
    Never,
    QueueFull,
    Closed,
    Busy,
    Invalid,
}

/// Returns the only predicate that holds.
#[track_caller]
fn kind(error: &AcquireError) -> Kind {
    let kinds = [
        (error.is_timeout(), Kind::Timeout),
        (error.is_never(), Kind::Never),
        (error.is_queue_full(), Kind::QueueFull),
        (error.is_closed(), Kind::Closed),
        (error.is_busy(), Kind::Busy),
        (error.invalid_request().is_some(), Kind::Invalid),
    ];
    let mut holding = kinds.iter().filter(|(holds, _)| *holds);
    let kind = holding.next().expect("one predicate holds").1;
    assert!(holding.next().is_none(), "only one predicate holds: {error:?}");
    kind
}

#[test]
fn error_of_a_limiter_has_one_kind_and_no_rule() {
    let clock = ManualClock::new();
    let rate = KeyedLimiter::<u64>::builder(TENTHS).clock(clock.clone());
    let rate = rate.max_keys(1).on_full(tidegate::OnFull::Refuse).max_waiting(0).build();
    let permits = ConcurrencyLimiter::builder(1).clock(clock).build();
    assert!(rate.check(&1).is_allowed());
    let _held = permits.try_acquire().expect("free");
    let tenth = Some(Wait::micros(100_000));
    let errors = [
        (rate.request(&1).timeout(ms(1)).acquire_blocking().expect_err("too long"), Kind::Timeout, tenth),
        (rate.request(&1).cost(2).acquire_blocking().expect_err("never"), Kind::Never, None),
        (rate.request(&1).acquire_blocking().expect_err("full"), Kind::QueueFull, None),
        (rate.request(&2).acquire_blocking().expect_err("no room"), Kind::Closed, tenth),
        (permits.try_acquire().expect_err("busy"), Kind::Busy, None),
        (permits.request().cost(2).try_acquire().expect_err("never"), Kind::Never, None),
    ];
    for (error, expected, retry_after) in errors {
        assert_eq!((kind(&error), error.retry_after()), (expected, retry_after), "{error:?}");
        assert_eq!((error.rule(), error.rule_id()), (None, RuleId(0)), "{error:?}");
    }
}

#[test]
fn error_of_a_policy_names_the_rule_that_refused() {
    let clock = ManualClock::new();
    let policy = policy(&clock);
    let user = || policy.request().rule("global").rule_for("user", "alice");
    let _held = user().rule("in progress").try_acquire().expect("allowed");

    let error = user().try_acquire().expect_err("the user has nothing left");
    assert_eq!((kind(&error), error.rule(), error.rule_id()), (Kind::Timeout, Some("user"), RuleId(1)));
    assert_eq!(error.retry_after(), Some(Wait::micros(100_000)));
    assert_eq!(error.to_string(), "rule \"user\": limit reached; retry after 100ms");

    let error = user().timeout(ms(99)).acquire_blocking().expect_err("too long");
    assert_eq!((kind(&error), error.rule(), error.rule_id()), (Kind::Timeout, Some("user"), RuleId(1)));
    assert_eq!(error.retry_after(), Some(Wait::micros(100_000)));

    let error = policy.request().rule("in progress").try_acquire().expect_err("in use");
    assert_eq!((kind(&error), error.rule(), error.rule_id()), (Kind::Busy, Some("in progress"), RuleId(2)));
    assert_eq!(error.retry_after(), None);
    let message = "rule \"in progress\": 1 of 1 permits are not available: too few are free, \
                   or earlier requests wait for them; retry later or wait";
    assert_eq!(error.to_string(), message);

    let error = policy.request().rule("global").cost(101).try_acquire().expect_err("never");
    assert_eq!((kind(&error), error.rule()), (Kind::Never, Some("global")));
    let message =
        "rule \"global\": cost 101 exceeds the limit of 100: it can never be allowed; use 100 or less";
    assert_eq!(error.to_string(), message);

    let error = policy.request().rule("unknown").try_acquire().expect_err("unknown");
    assert_eq!((kind(&error), error.rule(), error.retry_after()), (Kind::Invalid, None, None));
}

// --- requests to a policy

#[test]
fn unknown_rule_lists_the_known_ones() {
    let policy = policy(&ManualClock::new());
    let message = "there is no rule \"usr\"; the rules are \"global\", \"user\", \"in progress\"";
    let request = || policy.request().rule("global").rule_for("usr", "alice").rule("other");
    let error = request().check().expect_err("unknown");
    assert!(matches!(&error, InvalidRequest::NoSuchRule { name, .. } if &**name == "usr"), "{error:?}");
    assert_eq!(error.to_string(), message);
    assert_eq!(request().peek().expect_err("unknown"), error);
    assert_eq!(request().refund().expect_err("unknown"), error);
    assert_eq!(request().reset().expect_err("unknown"), error);
    assert_eq!(request().check_each().expect_err("unknown"), error);
    assert_eq!(request().try_acquire().expect_err("unknown").to_string(), message);
    assert_eq!(request().acquire_blocking().expect_err("unknown").invalid_request(), Some(&error));
    assert_eq!(ready(request().acquire()).expect_err("unknown").invalid_request(), Some(&error));
    assert_eq!(policy.request().rule("global").cost(0).peek().expect("known").remaining(), 100);
}

#[test]
fn check_of_a_concurrency_rule_is_an_error_that_says_try_acquire() {
    let policy = policy(&ManualClock::new());
    let request = || policy.request().rule("global").rule("in progress");
    let error = request().check().expect_err("a permit would be lost");
    assert_eq!(error, InvalidRequest::NeedsPermit { rule: "in progress".into() });
    assert_eq!(
        error.to_string(),
        "rule \"in progress\" is a concurrency limit, whose permit `check` would release at once; \
         use `try_acquire`"
    );
    assert_eq!(request().check_each().expect_err("a permit would be lost"), error);
    assert_eq!(policy.request().rule("global").cost(0).peek().expect("known").remaining(), 100);
    assert_eq!(request().try_acquire().expect("allowed").permits.len(), 1);
}

#[test]
fn parts_given_twice_are_an_error() {
    let policy = policy(&ManualClock::new());
    let (one, other) = ([Part::of(RuleId(0))], [Part::of(RuleId(1))]);
    let error = policy.request().parts(&one).parts(&other).check().expect_err("twice");
    assert_eq!(error, InvalidRequest::PartsTwice);
    assert_eq!(error.to_string(), "the request gives parts twice; give all of them in one slice");
    assert_eq!(policy.request().rule("global").cost(0).peek().expect("known").remaining(), 100);
}

#[test]
fn request_without_rules_is_an_error() {
    let policy = policy(&ManualClock::new());
    assert_eq!(policy.request().check(), Err(InvalidRequest::Empty));
    assert_eq!(policy.request().parts(&[]).peek(), Err(InvalidRequest::Empty));
}

const SIX: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn six_rules() -> Policy<Rule, ManualClock> {
    let rules = SIX.iter().fold(Policy::builder(), |rules, name| rules.rule(*name, Quota::per_hour(10)));
    rules.clock(ManualClock::new()).build().expect("a valid policy")
}

fn remaining(policy: &Policy<Rule, ManualClock>) -> [u64; 6] {
    SIX.map(|name| policy.request().rule(name).cost(0).peek().expect("known").remaining())
}

#[test]
fn more_than_four_named_rules_are_charged_all_or_none() {
    for many in 1..=SIX.len() {
        let policy = six_rules();
        let request =
            || SIX[..many].iter().fold(policy.request(), |request, name| request.rule(name)).cost(4);
        let charged = std::array::from_fn(|index| if index < many { 2 } else { 10 });
        assert!(request().check().is_ok_and(|decision| decision.is_allowed()));
        assert!(request().acquire_blocking().is_ok());
        assert_eq!(remaining(&policy), charged, "{many} rules");
        let error = request().try_acquire().expect_err("two are left of each");
        assert!(error.is_timeout());
        assert_eq!(remaining(&policy), charged, "{many} rules");
        assert_eq!(request().check_each().expect("a valid request").rules.len(), many);
        assert_eq!(request().refund(), Ok(()));
        assert_eq!(remaining(&policy), charged.map(|left| if left == 2 { 6 } else { left }));
    }
}

#[test]
fn cost_applies_to_named_rules_and_not_to_parts() {
    for many in 1..SIX.len() {
        let policy = six_rules();
        let parts = [Part::of(RuleId(5)).cost(1)];
        let names = SIX[..many].iter();
        let request = names.fold(policy.request().cost(3).parts(&parts), |request, name| request.rule(name));
        assert!(request.check().is_ok_and(|decision| decision.is_allowed()));
        let charged = std::array::from_fn(|index| match index {
            5 => 9,
            index if index < many => 7,
            _ => 10,
        });
        assert_eq!(remaining(&policy), charged, "{many} named rules");
    }
    let policy = six_rules();
    let parts = [Part::of(RuleId(0)).cost(2), Part::of(RuleId(1)).cost(5)];
    assert!(policy.request().parts(&parts).cost(9).check().is_ok_and(|decision| decision.is_allowed()));
    assert_eq!(remaining(&policy), [8, 5, 10, 10, 10, 10]);
}

#[test]
fn peek_of_a_pacer_reports_the_wait_of_a_check() {
    let (pacer, clock) = pacer_used_up();
    let refused = Outcome::RetryAfter(Wait::micros(100_000));
    assert_eq!((pacer.request().peek().outcome, pacer.check().outcome), (refused, refused));
    clock.advance(ms(100));
    assert_eq!((pacer.request().peek().outcome, pacer.check().outcome), (Outcome::Allowed, Outcome::Allowed));
}

// --- streams

#[cfg(all(feature = "stream", feature = "tokio"))]
mod stream {
    use std::future::poll_fn;

    use futures_core::Stream;
    use tidegate::TokioClock;
    use tidegate::stream::PacedExt;

    use super::*;

    /// Gives its items without waiting.
    struct Items<'a>(std::slice::Iter<'a, u32>);

    impl Stream for Items<'_> {
        type Item = u32;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
            Poll::Ready(self.0.next().copied())
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            self.0.size_hint()
        }
    }

    fn items(items: &[u32]) -> Items<'_> {
        Items(items.iter())
    }

    fn fifths() -> (Pacer<TokioClock>, TokioClock) {
        let clock = TokioClock::new();
        (Pacer::builder(Quota::per_second(5)).clock(clock).build(), clock)
    }

    /// Waits for the next item; returns it with the milliseconds of the clock.
    async fn next<S: Stream>(stream: &mut Pin<&mut S>, clock: &TokioClock) -> Option<(S::Item, u64)> {
        let item = poll_fn(|cx| stream.as_mut().poll_next(cx)).await?;
        assert_eq!(clock.now().get() % 1_000, 0, "at an exact instant");
        Some((item, clock.now().get() / 1_000))
    }

    #[tokio::test(start_paused = true)]
    async fn paced_stream_gives_items_at_exact_instants() {
        let (pacer, clock) = fifths();
        let mut stream = pin!(items(&[7, 8, 9]).paced(pacer));
        assert_eq!(next(&mut stream, &clock).await, Some((7, 0)));
        assert_eq!(next(&mut stream, &clock).await, Some((8, 200)));
        assert_eq!(next(&mut stream, &clock).await, Some((9, 400)));
        assert_eq!(next(&mut stream, &clock).await, None);
        assert_eq!(clock.now().get(), 400_000, "the end of the stream does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn paced_stream_charges_the_cost_of_each_item() {
        let (pacer, clock) = fifths();
        let mut stream = pin!(items(&[5, 1, 2, 1]).paced_by(pacer.clone(), |item: &u32| *item));
        assert_eq!(next(&mut stream, &clock).await, Some((5, 0)));
        assert_eq!(next(&mut stream, &clock).await, Some((1, 1_000)));
        assert_eq!(next(&mut stream, &clock).await, Some((2, 1_200)));
        assert_eq!(next(&mut stream, &clock).await, Some((1, 1_600)));
        assert_eq!(pacer.check().retry_after(), Some(Wait::micros(200_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_of_one_pacer_share_its_pace() {
        let (pacer, clock) = fifths();
        let mut one = pin!(items(&[1, 2]).paced(pacer.clone()));
        let mut other = pin!(items(&[3, 4]).paced(pacer));
        assert_eq!(next(&mut one, &clock).await, Some((1, 0)));
        assert_eq!(next(&mut other, &clock).await, Some((3, 200)));
        assert_eq!(next(&mut one, &clock).await, Some((2, 400)));
        assert_eq!(next(&mut other, &clock).await, Some((4, 600)));
    }

    #[tokio::test(start_paused = true)]
    async fn item_whose_wait_is_dropped_comes_later_at_its_instant() {
        let (pacer, clock) = fifths();
        let mut stream = pin!(items(&[1, 2, 3]).paced(pacer));
        assert_eq!(next(&mut stream, &clock).await, Some((1, 0)));
        assert!(tokio::time::timeout(ms(50), next(&mut stream, &clock)).await.is_err());
        assert_eq!(stream.size_hint(), (2, Some(2)), "one item is held, one is to come");
        assert_eq!(next(&mut stream, &clock).await, Some((2, 200)));
        assert_eq!(next(&mut stream, &clock).await, Some((3, 400)));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_dropped_while_an_item_waits_is_not_refunded() {
        let (pacer, clock) = fifths();
        {
            let mut stream = pin!(items(&[1, 2]).paced(pacer.clone()));
            assert_eq!(next(&mut stream, &clock).await, Some((1, 0)));
            assert!(tokio::time::timeout(ms(50), next(&mut stream, &clock)).await.is_err());
        }
        assert_eq!(pacer.check().retry_after(), Some(Wait::micros(350_000)));
    }
}
