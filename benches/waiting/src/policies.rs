//! Several limits on one request: one decision that charges all of them or none, beside a check of one after the other.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;

use bench_harness::case::Case;
use bench_harness::goal::Goal;
use bench_harness::keys::{each_number, fill_numbers};
use bench_harness::report::Section;
use bench_harness::rounds::measure;
use bench_harness::turns::Turns;
use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultDirectRateLimiter, RateLimiter};
use tidegate::algorithm::{Algorithm, TokenBucket};
use tidegate::builder::PolicyBuilder;
use tidegate::gate::{Part, RuleId};
use tidegate::{Decision, Policy, Quota, Rule};

const GOVERNOR: &str = "governor, one check after the other";
const TIDEGATE: &str = "**tidegate**";
const PARTS: &str = "**tidegate**, rules by number";
const ANY: &str = "**tidegate**, rules of any algorithm";

const TWO: &str = "global and user";
const TWO_TWO: &str = "global and user, 2 threads";
const THREE: &str = "global, company and user";
const THREE_TWO: &str = "global, company and user, 2 threads";

pub(crate) fn section(turns: &Turns) -> Section {
    let mut cases = governor();
    cases.extend(tidegate::<TokenBucket>(TIDEGATE, two, three));
    cases.extend(tidegate::<TokenBucket>(PARTS, two_parts, three_parts));
    cases.extend(tidegate::<Rule>(ANY, two, three));
    let title = "Several limits on one request, a million users";
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for each request on each thread. There are a thousand companies. Tidegate charges all limits \
               or none; governor's checks are independent of each other. A request names its rules; *rules by number* \
               are parts with the numbers, as a service keeps them.",
        measured: measure(title, &cases, turns),
        goals: vec![
            Goal::same(TWO, TIDEGATE, GOVERNOR, 0.8, 0.65),
            Goal::same(TWO_TWO, TIDEGATE, GOVERNOR, 0.8, 0.65),
            Goal::same(THREE_TWO, TIDEGATE, GOVERNOR, 1.0, 0.8),
            Goal::same(TWO, TIDEGATE, PARTS, 1.2, 1.05),
            Goal::same(THREE, TIDEGATE, PARTS, 1.2, 1.05),
        ],
    }
}

/// The company of a user.
#[inline]
fn company(user: u64) -> u64 {
    user % 1_000
}

// === governor ===

type Keyed = RateLimiter<u64, DashMapStateStore<u64>, DefaultClock>;

struct Governor {
    global: DefaultDirectRateLimiter,
    companies: Keyed,
    users: Keyed,
}

impl Governor {
    #[inline]
    fn two(&self, user: u64) -> bool {
        black_box(self.global.check()).is_ok() && black_box(self.users.check_key(&user)).is_ok()
    }

    #[inline]
    fn three(&self, user: u64) -> bool {
        black_box(self.global.check()).is_ok()
            && black_box(self.companies.check_key(&company(user))).is_ok()
            && black_box(self.users.check_key(&user)).is_ok()
    }
}

fn governor() -> Vec<Case> {
    let count = |n| NonZeroU32::new(n).expect("not zero");
    let open = governor::Quota::per_second(count(1_000_000)).allow_burst(count(1_000_000_000));
    let lasting = governor::Quota::per_hour(count(1)).allow_burst(count(1_000_000));
    let limiters = Arc::new(Governor {
        global: RateLimiter::direct(open),
        companies: RateLimiter::dashmap(lasting),
        users: RateLimiter::dashmap(lasting),
    });
    fill_numbers(|user| limiters.three(user));
    let case = |what, ask: fn(&Governor, u64) -> bool| {
        let limiters = Arc::clone(&limiters);
        Case::new(what, GOVERNOR, move |n| {
            let limiters = &*limiters; // the way to it is gone once, as with a handle
            each_number(n, |user| ask(limiters, user))
        })
    };
    vec![
        case(TWO, Governor::two),
        case(TWO_TWO, Governor::two).threads(2),
        case(THREE, Governor::three),
        case(THREE_TWO, Governor::three).threads(2),
    ]
}

// === Tidegate ===

#[inline]
fn two<A: Algorithm>(policy: &Policy<A>, user: u64) -> bool {
    let decision = policy.request().rule("global").rule_for("user", &user.to_le_bytes()).check();
    read(decision.expect(VALID))
}

#[inline]
fn three<A: Algorithm>(policy: &Policy<A>, user: u64) -> bool {
    let (company, user) = (company(user).to_le_bytes(), user.to_le_bytes());
    let request = policy.request().rule("global").rule_for("company", &company).rule_for("user", &user);
    read(request.check().expect(VALID))
}

const GLOBAL: Part<'static> = Part::of(RuleId(0));
const COMPANY: Part<'static> = Part::of(RuleId(1));
const USER: Part<'static> = Part::of(RuleId(2));

#[inline]
fn two_parts<A: Algorithm>(policy: &Policy<A>, user: u64) -> bool {
    let admission = policy.check_parts(&[GLOBAL, USER.key(&user.to_le_bytes())]);
    read(admission.expect(VALID).decision)
}

#[inline]
fn three_parts<A: Algorithm>(policy: &Policy<A>, user: u64) -> bool {
    let (company, user) = (company(user).to_le_bytes(), user.to_le_bytes());
    let admission = policy.check_parts(&[GLOBAL, COMPANY.key(&company), USER.key(&user)]);
    read(admission.expect(VALID).decision)
}

const VALID: &str = "a valid request";

/// Reads what a caller needs to serve or refuse the request.
#[inline]
fn read(decision: Decision) -> bool {
    black_box((decision.outcome, decision.rule, decision.source));
    decision.is_allowed()
}

type Check<A> = fn(&Policy<A>, u64) -> bool;

fn tidegate<A>(who: &'static str, two: Check<A>, three: Check<A>) -> Vec<Case>
where
    A: Algorithm + From<Quota> + Send + Sync + 'static,
{
    let open = Quota::per_second(1_000_000).burst(1_000_000_000);
    // Always allowed, and no key is idle before an hour has passed.
    let lasting = Quota::per_hour(1).burst(1_000_000);
    let built =
        PolicyBuilder::<A>::new().rule("global", open).rule("company", lasting).rule("user", lasting).build();
    let policy = built.expect("a valid policy");
    fill_numbers(|user| three(&policy, user));
    let case = |what, check: Check<A>| {
        let policy = policy.clone();
        Case::new(what, who, move |n| each_number(n, |user| check(&policy, user)))
    };
    vec![case(TWO, two), case(TWO_TWO, two).threads(2), case(THREE, three), case(THREE_TWO, three).threads(2)]
}
