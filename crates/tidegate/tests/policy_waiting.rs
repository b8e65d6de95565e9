//! Waiting for a policy: lines at the states that refuse, and what is promised to those who stand in them.

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
const EVERYBODY: RuleId = RuleId(0);
const USER: RuleId = RuleId(1);
const AT_WORK: RuleId = RuleId(2);

type Manual = Policy<Rule, ManualClock>;
type Answer = Result<Admission, NotAdmitted>;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Five at once and one in 100 ms for everybody, one an hour for each user, two at work.
fn policy() -> (Manual, ManualClock) {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .rule("everybody", Quota::per_second(10).burst(5))
        .rule("user", Quota::per_hour(1))
        .concurrency("at work", 2)
        .max_waiting(3)
        .build()
        .expect("a valid policy")
        .with_clock(clock.clone());
    (policy, clock)
}

/// The same, with nothing left for everybody.
fn used_up() -> (Manual, ManualClock) {
    let (policy, clock) = policy();
    assert!(policy.check(&[everybody(5)]).expect("valid").is_allowed());
    (policy, clock)
}

fn everybody(cost: u32) -> Part<'static> {
    Part::of(EVERYBODY).cost(cost)
}

fn user(name: &str) -> Part<'_> {
    Part::of(USER).key(name)
}

fn at_work(cost: u32) -> Part<'static> {
    Part::of(AT_WORK).cost(cost)
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

// --- waits that are looked at by hand

struct Waits<'a> {
    future: Pin<Box<dyn Future<Output = Answer> + 'a>>,
    calls: Arc<Calls>,
}

#[derive(Default)]
struct Calls(AtomicU32);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<'a> Waits<'a> {
    fn new(future: impl Future<Output = Answer> + 'a) -> Self {
        Waits { future: Box::pin(future), calls: Arc::default() }
    }

    /// Looks once; `None` if it goes on.
    fn look(&mut self) -> Option<Answer> {
        self.calls.0.store(0, Ordering::Relaxed);
        match self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.calls.clone()))) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Whether it was woken since it looked.
    fn is_called(&self) -> bool {
        self.calls.0.load(Ordering::Relaxed) > 0
    }

    /// Looks only if it was woken, as a runtime does; the instant at which it passed.
    fn passed_at(&mut self) -> Option<u64> {
        if !self.is_called() {
            return None;
        }
        self.look().map(|answer| answer.expect("it waited for its turn").decision.at().get())
    }
}

/// A wait that has begun.
fn begun<'a>(policy: &'a Manual, request: &'a [Part<'a>]) -> Waits<'a> {
    let mut wait = Waits::new(policy.acquire(request));
    assert!(wait.look().is_none(), "it has to wait");
    wait
}

// --- first come, first served

#[test]
fn who_finds_enough_does_not_wait() {
    let (policy, _) = policy();
    let request = [everybody(1), user("alice"), at_work(1)];
    let admission = Waits::new(policy.acquire(&request)).look().expect("at once").expect("admitted");
    assert_eq!((admission.decision.outcome, admission.permits.len()), (Outcome::Allowed, 1));
    assert_eq!((left(&policy, everybody(0)), left(&policy, at_work(0))), (4, 1));
    assert!(policy.acquire_blocking(&[everybody(1)]).is_ok());
    assert_eq!(policy.waiting(), 0);
}

#[test]
fn first_come_first_served() {
    let (policy, clock) = used_up();
    let request = [everybody(1)];
    let mut waits = [(); 3].map(|()| begun(&policy, &request));
    for passes in 0..3 {
        assert_eq!(policy.waiting(), 3 - passes);
        clock.advance(ms(99));
        assert!(waits.iter_mut().all(|wait| wait.passed_at().is_none()));
        clock.advance(ms(1));
        let passed: Vec<_> = waits.iter_mut().map(Waits::passed_at).collect();
        let instant = (passes as u64 + 1) * 100 * MS;
        let want: Vec<_> = (0..3).map(|n| (n == passes).then_some(instant)).collect();
        assert_eq!(passed, want);
        waits.iter_mut().filter(|wait| wait.is_called()).for_each(|next| assert!(next.look().is_none()));
    }
    assert_eq!((policy.waiting(), left(&policy, everybody(0))), (0, 0));
}

#[test]
fn a_large_request_is_not_starved_by_small_ones_that_wait() {
    let (policy, clock) = used_up();
    let (large, small) = ([everybody(5)], [everybody(1)]);
    let mut large = begun(&policy, &large);
    let mut waits = Vec::new();
    for step in 1..=5 {
        assert!(!large.is_called());
        if step < 3 {
            waits.push(begun(&policy, &small));
        }
        clock.advance(ms(100));
        assert!(waits.iter_mut().all(|wait| wait.passed_at().is_none()), "nobody overtakes");
    }
    assert_eq!(large.passed_at(), Some(500 * MS));
    clock.advance(ms(100));
    assert!(waits[0].look().expect("its turn").is_ok());
    assert!(waits[1].look().is_none());
    clock.advance(ms(100));
    assert_eq!(waits[1].passed_at(), Some(700 * MS));
}

#[test]
fn a_large_request_is_not_starved_by_checks() {
    let (policy, clock) = used_up();
    let (request, small) = ([everybody(5)], [everybody(1)]);
    let mut large = begun(&policy, &request);
    for millis in 0..500 {
        let decision = check(&policy, &small);
        let first_waits = 500 - millis;
        assert_eq!(decision.outcome, Outcome::RetryAfter(Wait::micros(first_waits * MS)), "as the first");
        assert_eq!((decision.rule, decision.remaining()), (EVERYBODY, 0));
        assert_eq!(policy.peek(&small).expect("valid"), decision, "it is told what a check is told");
        let each = policy.check_each(&[everybody(1), user("bob")]).expect("valid");
        assert_eq!((each.decision, each.rules[1].outcome), (decision, Outcome::Allowed));
        clock.advance(ms(1));
    }
    assert!(!check(&policy, &small).is_allowed(), "it is the other's, although it has not come for it yet");
    assert_eq!(left(&policy, everybody(0)), 5, "a cost of 0 asks what is left, and is for everybody");
    assert_eq!(large.passed_at(), Some(500 * MS));
    assert_eq!(left(&policy, user("bob")), 1, "who was refused has spent nothing");
    clock.advance(ms(100));
    assert!(check(&policy, &small).is_allowed());
}

#[test]
fn nobody_is_held_up_by_somebody_who_waits_for_a_bucket_of_her_own() {
    let (policy, clock) = policy();
    let (alice, bob) = ([everybody(1), user("alice")], [everybody(1), user("bob")]);
    assert!(check(&policy, &alice).is_allowed());
    let mut waits = begun(&policy, &alice);
    assert_eq!(left(&policy, everybody(0)), 4, "she has charged nothing");
    assert!(check(&policy, &bob).is_allowed());
    assert!(policy.acquire_blocking(&[everybody(2)]).is_ok());
    assert_eq!(
        check(&policy, &[user("alice")]).retry_after().expect("she waits"),
        Duration::from_secs(3_600)
    );
    clock.advance(Duration::from_secs(3_600));
    assert!(waits.passed_at().is_some());
}

#[test]
fn who_was_the_first_and_leaves_calls_the_next() {
    let (policy, clock) = used_up();
    let (large, small) = ([everybody(5)], [everybody(1)]);
    let first = begun(&policy, &large);
    let (mut second, mut third) = (begun(&policy, &small), begun(&policy, &small));
    clock.advance(ms(100));
    assert!(!second.is_called());
    drop(first);
    assert!(second.is_called() && !third.is_called());
    assert_eq!(second.passed_at(), Some(100 * MS));
    assert!(third.is_called() && third.look().is_none());
    assert_eq!(policy.waiting(), 1);
    drop(third);
    assert_eq!(policy.waiting(), 0);
    clock.advance(ms(100));
    assert_eq!(left(&policy, everybody(0)), 1, "a dropped wait leaves no trace");
    assert!(check(&policy, &small).is_allowed());
}

/// From the middle of a line, too; and what was dropped is not called any more.
#[test]
fn who_leaves_from_the_middle_is_not_missed() {
    let (policy, clock) = used_up();
    let small = [everybody(1)];
    let (mut first, second, mut third) =
        (begun(&policy, &small), begun(&policy, &small), begun(&policy, &small));
    let calls = second.calls.clone();
    drop(second);
    assert!(!first.is_called() && !third.is_called());
    clock.advance(ms(200));
    assert_eq!((first.passed_at(), third.passed_at()), (Some(200 * MS), Some(200 * MS)));
    assert_eq!((calls.0.load(Ordering::Relaxed), Arc::strong_count(&calls)), (0, 1), "nobody remembers it");
}

// --- between two states

/// One in 100 ms of each of two, and others who want one of the one, or one of the other, all the time.
#[test]
fn a_request_for_two_states_is_not_starved_by_requests_for_one_of_them() {
    let clock = ManualClock::new();
    let rule = Quota::per_second(10).burst(1);
    let policy = Policy::builder().rule("a", rule).rule("b", rule).build().expect("valid");
    let policy = policy.with_clock(clock.clone());
    let [a, b] = [Part::of(RuleId(0)), Part::of(RuleId(1))];
    assert!(check(&policy, &[a]).is_allowed());
    clock.advance(ms(50));
    assert!(check(&policy, &[b]).is_allowed());
    let request = [a, b];
    let mut both = begun(&policy, &request);
    let mut passed = None;
    for _ in 0..1_000 {
        if passed.is_none() {
            passed = both.passed_at();
        }
        let _ = (check(&policy, &[a]), check(&policy, &[b]));
        clock.advance(ms(1));
    }
    // Until 150 ms it waited for b, and while it waits for a, until 200 ms, it keeps its place there.
    assert_eq!(passed, Some(200 * MS));
}

/// The same where permits are one of the two.
#[test]
fn a_request_for_a_rate_and_a_permit_is_not_starved() {
    let (policy, clock) = used_up();
    let request = [everybody(5), at_work(2)];
    let mut both = begun(&policy, &request);
    let mut at_work_now = Vec::new();
    let mut passed = None;
    for millis in 0..2_000_u64 {
        passed = passed.or_else(|| both.passed_at());
        at_work_now.extend(policy.check(&[at_work(1)]).expect("valid").into_result().ok());
        if millis % 7 == 0 && !at_work_now.is_empty() {
            drop(at_work_now.remove(0));
        }
        let _ = check(&policy, &[everybody(1)]);
        clock.advance(ms(1));
    }
    assert!(passed.is_some_and(|at| at <= 600 * MS), "{passed:?}");
}

/// She has waited 100 ms for everybody's bucket, and finds that her own is empty for an hour.
#[test]
fn a_place_is_not_kept_for_longer_than_it_was_waited_for() {
    let (policy, clock) = used_up();
    let alice = [everybody(1), user("alice")];
    let mut waits = begun(&policy, &alice);
    assert!(!check(&policy, &[everybody(1)]).is_allowed());
    assert!(check(&policy, &[user("alice")]).is_allowed(), "she stands at the other's line");
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), None);
    assert!(check(&policy, &[everybody(1)]).is_allowed(), "and does not hold up everybody for an hour");
    assert!(!check(&policy, &[user("alice")]).is_allowed());
    clock.advance(Duration::from_secs(3_600));
    assert!(waits.passed_at().is_some());
}

/// She has waited an hour for her own bucket, and finds everybody's empty for 100 ms. Nobody gets in between.
#[test]
fn a_place_is_kept_for_as_long_as_it_was_waited_for() {
    let (policy, clock) = policy();
    let alice = [everybody(1), user("alice")];
    assert!(check(&policy, &alice).is_allowed());
    let mut waits = begun(&policy, &alice);
    clock.advance(Duration::from_secs(3_600));
    assert!(check(&policy, &[everybody(5)]).is_allowed());
    assert_eq!(waits.passed_at(), None);
    assert_eq!(check(&policy, &[user("alice")]).retry_after().expect("it is kept"), ms(100));
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), Some(3_600_100 * MS));
}

/// Nobody can say when a permit comes back. So a place elsewhere is kept for a while, and given up then.
#[test]
fn a_place_kept_for_a_permit_is_given_up_in_the_end() {
    let (policy, clock) = used_up();
    let request = [everybody(1), at_work(2)];
    let mut waits = begun(&policy, &request);
    let busy = policy.check(&[at_work(1)]).expect("valid");
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), None);
    assert_eq!(
        check(&policy, &[everybody(1)]).retry_after().expect("kept as long as it was waited for"),
        ms(100)
    );
    assert_eq!(check(&policy, &[at_work(1)]).outcome, Outcome::Busy);
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), None);
    assert!(check(&policy, &[everybody(1)]).is_allowed(), "and no longer");
    assert_eq!(check(&policy, &[at_work(1)]).outcome, Outcome::Busy, "there it still stands");
    drop(busy);
    assert_eq!(waits.passed_at(), Some(200 * MS));
}

// --- permits

#[test]
fn a_permit_that_comes_back_calls_the_first() {
    let (policy, _) = policy();
    let request = [everybody(1), at_work(2)];
    let one = policy.check(&[at_work(1)]).expect("valid");
    let mut large = begun(&policy, &request);
    let small = [at_work(1)];
    let mut behind = begun(&policy, &small);
    assert_eq!(check(&policy, &small).outcome, Outcome::Busy, "one is free, and is the other's");
    assert_eq!(left(&policy, everybody(0)), 5, "nothing is held while it waits");
    drop(one);
    assert!(large.is_called() && !behind.is_called());
    let admission = large.look().expect("its turn").expect("admitted");
    assert_eq!((admission.permits.len(), left(&policy, at_work(0))), (1, 0));
    assert!(behind.is_called() && behind.look().is_none());
    admission.permits.succeeded();
    let admission = behind.look().expect("its turn").expect("admitted");
    drop(admission);
    assert_eq!((left(&policy, at_work(0)), policy.waiting()), (2, 0));
}

#[test]
fn who_waits_for_a_permit_and_leaves_is_not_called() {
    let (policy, _) = policy();
    let both = policy.check(&[at_work(2)]).expect("valid");
    let small = [at_work(1)];
    let (first, mut second) = (begun(&policy, &small), begun(&policy, &small));
    let calls = first.calls.clone();
    drop(first);
    assert_eq!(Arc::strong_count(&calls), 1, "nobody remembers it");
    assert!(second.is_called() && second.look().is_none());
    drop(both);
    assert!(second.is_called() && second.look().expect("its turn").is_ok());
    assert_eq!((calls.0.load(Ordering::Relaxed), left(&policy, at_work(0))), (0, 2));
}

#[test]
fn a_higher_limit_calls_the_first() {
    let (policy, _) = policy();
    let both = policy.check(&[at_work(2)]).expect("valid");
    let one = [at_work(1)];
    let mut waits = begun(&policy, &one);
    policy.resize(AT_WORK, 0).expect("there is such a rule");
    assert!(waits.is_called() && waits.look().is_none(), "a pause is no reason to give up");
    policy.resize(AT_WORK, 3).expect("there is such a rule");
    assert!(waits.is_called() && waits.look().expect("its turn").is_ok());
    let three = [at_work(3)];
    let mut large = begun(&policy, &three);
    policy.resize(AT_WORK, 2).expect("there is such a rule");
    let never = large.look().expect("not ever").expect_err("three of two");
    assert_eq!(never, refused(AT_WORK, WaitRefused::Never { cost: 3, limit: 2 }));
    drop(both);
}

// --- what is given back, and other settings

#[test]
fn a_refund_a_reset_and_another_setting_call_the_first() {
    let ways: [fn(&Manual); 3] = [
        |policy| policy.refund(&[everybody(2)]).expect("valid"),
        |policy| policy.reset(&[everybody(0)]).expect("valid"),
        |policy| policy.change(EVERYBODY, Quota::per_second(10).burst(7)).expect("there is such a rule"),
    ];
    for way in ways {
        let (policy, clock) = used_up();
        let (two, own) = ([everybody(2)], [everybody(1), user("alice")]);
        let mut first = begun(&policy, &two);
        let mut second = begun(&policy, &own);
        way(&policy);
        assert!(first.is_called() && !second.is_called());
        assert_eq!(first.passed_at(), Some(0));
        clock.advance(ms(100));
        assert!(second.look().expect("its turn").is_ok());
        assert!(check(&policy, &[user("bob")]).is_allowed());
    }
}

#[test]
fn another_setting_under_which_it_never_passes_ends_a_wait() {
    let (policy, _) = used_up();
    let request = [everybody(5)];
    let mut waits = begun(&policy, &request);
    policy.change(EVERYBODY, Quota::per_second(10).burst(4)).expect("there is such a rule");
    let never = waits.look().expect("not ever").expect_err("five of four");
    assert_eq!(never, refused(EVERYBODY, WaitRefused::Never { cost: 5, limit: 4 }));
    assert_eq!(policy.waiting(), 0);
}

// --- time

#[test]
fn what_cannot_suffice_is_refused_at_once() {
    let (policy, clock) = used_up();
    let request = [everybody(1), at_work(1)];
    let too_long = WaitRefused::TooLong { wait: Wait::micros(100 * MS), within: Wait::micros(99 * MS) };
    let at_once = policy.acquire_blocking_timeout(&request, ms(99)).expect_err("a millisecond is missing");
    assert_eq!(at_once, refused(EVERYBODY, too_long));
    assert_eq!(at_once.to_string(), format!("rule 0: {too_long}"));
    let never = policy.acquire_blocking(&[everybody(6)]).expect_err("six of five");
    assert_eq!(never, refused(EVERYBODY, WaitRefused::Never { cost: 6, limit: 5 }));
    let never = policy.acquire_blocking(&[at_work(3)]).expect_err("three of two");
    assert_eq!(never, refused(AT_WORK, WaitRefused::Never { cost: 3, limit: 2 }));
    let busy = policy.check(&[at_work(2)]).expect("valid");
    let hidden =
        policy.acquire_blocking_timeout(&request, ms(99)).expect_err("permits or not, it takes 100 ms");
    assert_eq!(hidden, refused(EVERYBODY, too_long));
    let mut in_time = Waits::new(policy.acquire_until(&request, Micros::new(100 * MS)));
    assert!(in_time.look().is_none());
    drop(busy);
    assert_eq!(in_time.passed_at(), None);
    clock.advance(ms(100));
    assert!(in_time.look().expect("at the last moment").is_ok());
    assert_eq!(policy.waiting(), 0);
}

#[test]
fn a_wait_of_which_nobody_knows_how_long_it_takes_ends_when_time_is_up() {
    let (policy, clock) = policy();
    let busy = policy.check(&[at_work(1)]).expect("valid");
    let (two, one) = ([at_work(2), everybody(1)], [at_work(1)]);
    let mut first = Waits::new(policy.acquire_timeout(&two, ms(100)));
    let mut second = Waits::new(policy.acquire_timeout(&one, ms(50)));
    assert!(first.look().is_none() && second.look().is_none());
    clock.advance(ms(50));
    let timed_out = second.look().expect("time is up").expect_err("it was behind the first");
    assert_eq!(timed_out, refused(AT_WORK, WaitRefused::TimedOut { within: Wait::micros(50 * MS) }));
    assert_eq!(timed_out.to_string(), "rule 2: it was not its turn within 50ms; wait longer, or try later");
    clock.advance(ms(50));
    assert!(first.is_called());
    let timed_out = first.look().expect("time is up").expect_err("no permit came back");
    assert_eq!(timed_out, refused(AT_WORK, WaitRefused::TimedOut { within: Wait::micros(100 * MS) }));
    assert_eq!((policy.waiting(), left(&policy, everybody(0))), (0, 5));
    assert!(check(&policy, &one).is_allowed());
    drop(busy);
}

/// The first would take 400 ms. It may leave at any time, so it is no reason to refuse somebody who has 10 ms.
#[test]
fn whether_a_wait_is_in_vain_does_not_depend_on_who_is_before() {
    let (policy, clock) = policy();
    assert!(check(&policy, &[everybody(4)]).is_allowed());
    let (large, small) = ([everybody(5)], [everybody(1)]);
    let first = begun(&policy, &large);
    let mut behind = Waits::new(policy.acquire_timeout(&small, ms(10)));
    assert!(behind.look().is_none(), "it would pass if the first went");
    clock.advance(ms(5));
    drop(first);
    assert_eq!(behind.passed_at(), Some(5 * MS));
}

#[test]
fn a_deadline_that_has_passed_is_no_reason_not_to_pass() {
    let (policy, clock) = policy();
    clock.advance(ms(1));
    assert!(policy.acquire_blocking_until(&[everybody(5)], Micros::ZERO).is_ok());
    assert!(policy.acquire_blocking_until(&[everybody(1)], Micros::ZERO).is_err());
    let both = policy.check(&[at_work(2)]).expect("valid");
    let timed_out = policy.acquire_blocking_timeout(&[at_work(1)], Duration::ZERO).expect_err("no time");
    assert_eq!(timed_out, refused(AT_WORK, WaitRefused::TimedOut { within: Wait::micros(0) }));
    drop(both);
}

// --- bounds

#[test]
fn the_number_of_those_who_wait_is_bounded() {
    let (policy, clock) = used_up();
    let (small, permits) = ([everybody(1)], [at_work(2)]);
    let busy = policy.check(&permits).expect("valid");
    let mut waits = [begun(&policy, &small), begun(&policy, &permits), begun(&policy, &small)];
    let full = WaitRefused::LineFull { max_waiting: 3 };
    assert_eq!(policy.acquire_blocking(&small).expect_err("three wait"), refused(EVERYBODY, full));
    clock.advance(ms(100));
    assert!(waits[0].passed_at().is_some());
    let _again = begun(&policy, &permits);
    assert_eq!(policy.acquire_blocking(&permits).expect_err("three wait"), refused(AT_WORK, full));
    drop(busy);

    let clock = ManualClock::new();
    let nobody = Policy::builder().rule("a", Quota::per_hour(1)).max_waiting(0).build().expect("valid");
    let nobody = nobody.with_clock(clock);
    assert!(nobody.acquire_blocking(&small).is_ok());
    let full = WaitRefused::LineFull { max_waiting: 0 };
    assert_eq!(nobody.acquire_blocking(&small).expect_err("nobody waits"), refused(RuleId(0), full));
}

#[test]
fn a_request_that_is_none_does_not_wait() {
    let (policy, _) = policy();
    assert_eq!(policy.acquire_blocking(&[]).expect_err("empty"), NotAdmitted::Invalid(InvalidRequest::Empty));
    let twice = policy.acquire_blocking(&[everybody(1), everybody(1)]).expect_err("the same twice");
    assert_eq!(twice, InvalidRequest::SameKeyTwice { rule: EVERYBODY }.into());
    assert_eq!(twice.to_string(), InvalidRequest::SameKeyTwice { rule: EVERYBODY }.to_string());
}

#[test]
fn there_is_no_line_where_there_is_no_room() {
    let clock = ManualClock::new();
    let rules = Policy::builder().rule("log", "sliding_log 1/h".parse::<Rule>().expect("valid"));
    let policy = rules.concurrency("at work", 1).max_keys(1).build().expect("valid").with_clock(clock);
    let (log, at_work) = (Part::of(RuleId(0)), Part::of(RuleId(1)));
    let first = policy.check(&[log.key("a"), at_work.key("a")]).expect("valid");
    assert!(first.is_allowed());
    let hour = Wait::micros(3_600_000 * MS);
    let no_room = policy.acquire_blocking(&[log.key("b")]).expect_err("another key");
    assert_eq!(no_room, refused(RuleId(0), WaitRefused::TooManyKeys { retry_after: hour }));
    let no_room = policy.acquire_blocking(&[at_work.key("b")]).expect_err("another key");
    assert_eq!(no_room, refused(RuleId(1), WaitRefused::TooManyKeys { retry_after: Wait::micros(0) }));
    assert_eq!(no_room.to_string(), "rule 1: there are as many keys as may be; try later");
}

// --- queues

/// A queue would let it in now for a turn later. Who waits takes its turn when it comes, and has nothing to give back.
#[test]
fn a_turn_in_a_queue_is_taken_when_it_comes() {
    let clock = ManualClock::new();
    let queue = LeakyQueue::new(Quota::per_second(10), 5);
    let policy =
        Policy::builder().rule("queue", queue).rule("b", Quota::per_second(100)).build().expect("valid");
    let policy = policy.with_clock(clock.clone());
    let request = [Part::of(RuleId(0)), Part::of(RuleId(1))];
    assert!(policy.acquire_blocking(&request).is_ok());
    let (dropped, mut waits) = (begun(&policy, &request), begun(&policy, &request));
    drop(dropped);
    assert_eq!(check(&policy, &request).retry_after().expect("after the one who waits"), ms(100));
    assert_eq!(left(&policy, request[1]), 99);
    assert!(waits.look().is_none());
    clock.advance(ms(100));
    assert_eq!(waits.passed_at(), Some(100 * MS));
    assert_eq!(check(&policy, &request).outcome, Outcome::AllowedAfter(Wait::micros(100 * MS)));
}

// --- watching

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
fn an_observer_sees_what_came_of_a_wait_and_that_once() {
    let (policy, clock) = used_up();
    let seen = Arc::new(Seen::default());
    let policy = policy.with_observer(seen.clone());
    let take = || std::mem::take(&mut *seen.0.lock().expect("no panic"));
    let (one, six) = ([everybody(1)], [everybody(6), user("alice")]);
    assert!(policy.acquire_blocking(&[user("bob")]).is_ok());
    assert_eq!(take(), [(true, USER)]);
    assert!(policy.acquire_blocking(&six).is_err());
    assert_eq!(take(), [(false, EVERYBODY)]);
    let mut waits = begun(&policy, &one);
    assert!(take().is_empty());
    clock.advance(ms(100));
    assert!(waits.passed_at().is_some());
    assert_eq!(take(), [(true, EVERYBODY)]);
    let busy = policy.check(&[at_work(2)]).expect("valid");
    let _ = take();
    assert!(policy.acquire_blocking_timeout(&[at_work(1)], Duration::ZERO).is_err());
    assert_eq!(take(), [(false, AT_WORK)]);
    drop(busy);
}
