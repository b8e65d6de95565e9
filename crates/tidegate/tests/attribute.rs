//! Functions with `#[rate_limit(…)]`: they run if allowed, and otherwise return `CallDenied`.

#![cfg(feature = "macros")]

use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tidegate::algorithm::TokenBucket;
use tidegate::attribute::{CallDenied, CallLimit, FromDenied};
use tidegate::gate::{Part, RuleId};
use tidegate::{
    ConcurrencyLimiter, KeyedLimiter, Limiter, ManualClock, Outcome, Policy, Quota, Rule, rate_limit,
};

type By<C> = KeyedLimiter<str, TokenBucket, C>;

/// A limiter with a manual clock.
fn with_manual_clock(quota: Quota) -> (By<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (KeyedLimiter::builder(quota).clock(clock.clone()).build(), clock)
}

#[test]
fn each_key_has_its_own_limit_and_denied_names_it() {
    #[rate_limit("1/day", key = user)]
    fn send(user: &str) -> Result<usize, CallDenied> {
        Ok(user.len())
    }
    assert_eq!((send("alice"), send("bob")), (Ok(5), Ok(3)));
    let denied = send("alice").unwrap_err();
    assert_eq!(
        (denied.function(), denied.limit(), denied.rule()),
        ("send", Some(CallLimit::Rate("1/day")), RuleId(0))
    );
    assert_eq!(denied.retry_after().map(|wait| wait.as_secs_up()), Some(86_400));
    assert_eq!(denied.decision().map(|decision| decision.limit()), Some(1));
    assert!(denied.to_string().starts_with("send is limited to 1/day: limit of 1 reached; retry after 86"));
}

#[test]
fn limit_can_be_given_in_parts() {
    #[rate_limit(algorithm = sliding_window, limit = 2, per = "1day", key = (ip, path))]
    fn get(ip: std::net::IpAddr, path: &str) -> Result<(), CallDenied> {
        let _ = (ip, path);
        Ok(())
    }
    #[rate_limit(limit = 1, per = "day", burst = 3)]
    fn bucket() -> Result<(), CallDenied> {
        Ok(())
    }
    let [one, two] = [1, 2].map(|last| std::net::IpAddr::from([127, 0, 0, last]));
    let passed =
        [(one, "/"), (one, "/"), (one, "/"), (two, "/"), (one, "/a")].map(|(ip, path)| get(ip, path).is_ok());
    assert_eq!(passed, [true, true, false, true, true]);
    assert_eq!(
        get(one, "/").unwrap_err().limit().map(|limit| limit.to_string()).as_deref(),
        Some("sliding_window 2 per 1day cells 10")
    );
    assert_eq!([(); 4].map(|()| bucket().is_ok()), [true, true, true, false]);
}

#[test]
fn several_limits_are_all_or_nothing() {
    #[rate_limit("3/day", key = user)]
    #[rate_limit("4/day", cost = cost)]
    fn send(user: &str, cost: usize) -> Result<(), CallDenied> {
        let _ = (user, cost);
        Ok(())
    }
    assert!(send("alice", 1).is_ok());
    let denied = send("alice", 4).unwrap_err(); // the global limit has 3 left
    assert_eq!((denied.rule(), denied.limit()), (RuleId(1), Some(CallLimit::Rate("4/day"))));
    assert!(send("alice", 1).is_ok() && send("alice", 1).is_ok()); // so alice was not charged for it
    assert_eq!(send("alice", 1).unwrap_err().rule(), RuleId(0));
    assert!(send("bob", 1).is_ok()); // and the global limit not for alice's denied call

    #[rate_limit("1/day", key = "fixed")]
    fn fixed() -> Result<(), CallDenied> {
        Ok(())
    }
    assert!(fixed().is_ok() && fixed().is_err());

    #[rate_limit("5/day", "2/h", key = user)]
    fn both(user: u32) -> Result<u32, CallDenied> {
        Ok(user)
    }
    assert_eq!(
        [both(1).is_ok(), both(1).is_ok(), both(1).is_ok(), both(2).is_ok()],
        [true, true, false, true]
    );
    assert_eq!(both(1).unwrap_err().limit(), Some(CallLimit::Rate("2/h")));
}

#[test]
fn given_limiter_is_shared() {
    static ALL: LazyLock<By<ManualClock>> = LazyLock::new(|| with_manual_clock(Quota::per_minute(2)).0);

    #[rate_limit(limiter = ALL, key = user)]
    fn send(user: &str) -> Result<(), CallDenied> {
        let _ = user;
        Ok(())
    }
    #[rate_limit(limiter = *ALL, key = user, cost = 2u64)]
    fn send_twice(user: String) -> Result<String, CallDenied> {
        Ok(user)
    }
    assert!(send("alice").is_ok());
    let denied = send_twice("alice".to_owned()).unwrap_err();
    assert_eq!((denied.function(), denied.limit()), ("send_twice", None));
    assert_eq!(denied.to_string(), "send_twice is limited: limit of 2 reached; retry after 30s");
    assert_eq!(ALL.request("alice").peek().remaining(), 0); // peek counts the token that its check would take
    assert!(ALL.check("alice").is_allowed()); // the same key, checked directly
    assert!(send("alice").is_err());
    assert!(send_twice("bob".to_owned()).is_ok());
}

#[test]
fn limiter_with_a_manual_clock_denies_until_the_exact_instant() {
    let (limiter, clock) = with_manual_clock(Quota::per_minute(1));
    struct Mailer<G>(G);
    impl<G: tidegate::gate::Gate> Mailer<G> {
        #[rate_limit(limiter = self.0, key = to)]
        fn send(&self, to: &str) -> Result<(), CallDenied> {
            let _ = to;
            Ok(())
        }
    }
    let mailer = Mailer(limiter);
    assert!(mailer.send("alice").is_ok());
    clock.advance(Duration::from_micros(59_999_999));
    assert_eq!(mailer.send("alice").unwrap_err().retry_after().map(|wait| wait.as_micros()), Some(1));
    clock.advance(Duration::from_micros(1));
    assert!(mailer.send("alice").is_ok());
}

#[test]
fn rule_of_a_policy_can_be_chosen() {
    const USER: RuleId = RuleId(1);
    let policy =
        Policy::builder().rule("all", Quota::per_day(3)).rule("user", Quota::per_day(1)).build().unwrap();

    #[rate_limit(limiter = policy)]
    #[rate_limit(rule = USER, key = user)]
    fn send(policy: &Policy, user: &str) -> Result<(), CallDenied> {
        let _ = user;
        Ok(())
    }
    #[rate_limit(limiter = policy, rule = 7)]
    fn wrong(policy: &Policy) -> Result<(), CallDenied> {
        Ok(())
    }
    assert!(send(&policy, "alice").is_ok());
    assert_eq!(send(&policy, "alice").unwrap_err().rule(), USER);
    assert_eq!(policy.request().parts(&[Part::of(RuleId(0)).cost(0)]).peek().unwrap().remaining(), 2);
    assert_eq!(
        wrong(&policy).unwrap_err().to_string(),
        "wrong is limited: invalid request to its limiter: \
         there is no rule number 7 among 2 rules, counted from 0; find it by its name"
    );
}

#[test]
fn fallback_gets_the_same_arguments() {
    struct Id(u64);
    struct Page {
        number: u32,
        size: u32,
    }
    #[rate_limit("1/day", otherwise = cheaper)]
    fn list(Id(id): Id, Page { number, size }: Page, (mut a, b): (u8, u8), _: &str) -> u64 {
        a += b;
        id + u64::from(number + size) + u64::from(a)
    }
    fn cheaper(Id(id): Id, page: Page, pair: (u8, u8), text: &str) -> u64 {
        [id, page.number.into(), page.size.into(), pair.0.into(), pair.1.into()].into_iter().product::<u64>()
            * text.len() as u64
    }
    let call = || list(Id(2), Page { number: 3, size: 5 }, (7, 11), "ab");
    assert_eq!((call(), call()), (2 + 3 + 5 + 7 + 11, 2 * 3 * 5 * 7 * 11 * 2));
}

#[test]
fn fallback_may_be_generic() {
    #[rate_limit("1/day", otherwise = fewer::<T>)]
    fn all<T: Copy>(items: &[T]) -> Vec<T> {
        items.to_vec()
    }
    fn fewer<T: Copy>(items: &[T]) -> Vec<T> {
        items[..1].to_vec()
    }
    assert_eq!((all(&[1, 2]), all(&['a', 'b'])), (vec![1, 2], vec!['a']));
}

#[test]
fn fallback_works_for_a_function_without_a_return_value() {
    thread_local!(static LOST: Cell<u32> = const { Cell::new(0) });
    #[rate_limit("1/day", otherwise = lose)]
    fn log(line: &str) {
        let _ = line;
    }
    fn lose(_: &str) {
        LOST.set(LOST.get() + 1);
    }
    (0..3).for_each(|_| log("a"));
    assert_eq!(LOST.get(), 2);
}

#[derive(Debug, PartialEq)]
enum AppError {
    Limited(CallDenied),
}

impl From<CallDenied> for AppError {
    fn from(denied: CallDenied) -> Self {
        AppError::Limited(denied)
    }
}

#[test]
fn generics_lifetimes_and_impl_trait_are_supported() {
    #[rate_limit("2/day", key = (name, std::mem::size_of::<T>()))]
    fn first<'a, T, const N: usize>(name: &'a str, items: &'a [T; N]) -> Result<&'a T, AppError>
    where
        T: PartialOrd,
    {
        items.first().ok_or_else(|| unreachable!("{name}"))
    }
    #[rate_limit("1/day", key = name)]
    fn letters(name: &str) -> Result<impl Iterator<Item = char> + '_, AppError> {
        Ok(name.chars())
    }
    #[rate_limit("1/day", key = name)]
    fn shown(
        name: impl AsRef<str> + std::hash::Hash,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        Ok(name.as_ref().to_owned())
    }
    assert_eq!(first("a", &[1u8, 2]), Ok(&1));
    assert_eq!(first("a", &[1u8]), Ok(&1)); // one limit for every N
    assert!(first("a", &[1u8, 2, 3]).is_err());
    assert_eq!(first("a", &[1u64, 2]), Ok(&1));
    assert_eq!(letters("ab").unwrap().count(), 2);
    assert!(letters("ab").is_err());
    assert!(shown("a").is_ok());
    assert!(shown(String::from("a")).unwrap_err().is::<CallDenied>()); // the same key, by another type
}

#[test]
fn argument_names_do_not_clash_with_generated_names() {
    static LIMITER: LazyLock<Limiter> = LazyLock::new(|| Limiter::new(Quota::per_day(1)));
    #[rate_limit(limiter = LIMITER, cost = request, key = (denied, admitted), otherwise = instead)]
    fn odd(request: u32, permits: u32, admitted: u32, denied: &str, key_0: u32) -> u32 {
        request + permits + admitted + key_0 + u32::try_from(denied.len()).unwrap()
    }
    fn instead(request: u32, permits: u32, admitted: u32, denied: &str, key_0: u32) -> u32 {
        request * permits * admitted * key_0 * u32::try_from(denied.len()).unwrap()
    }
    assert_eq!((odd(1, 2, 3, "four", 5), odd(1, 2, 3, "four", 5)), (15, 120));
}

#[test]
fn body_may_move_arguments_used_as_the_key() {
    #[rate_limit("1/day", key = names[0], cost = names.len())]
    fn take(names: Vec<String>) -> Result<Vec<String>, CallDenied> {
        Ok(names)
    }
    assert_eq!(take(vec!["a".to_owned()]).map(|names| names.len()), Ok(1));
    assert!(take(vec!["a".to_owned()]).is_err());
    let too_many = take(vec!["b".to_owned(), "c".to_owned()]).unwrap_err();
    assert_eq!(too_many.decision().map(|decision| decision.outcome), Some(Outcome::Never));
}

#[test]
fn concurrency_permit_is_held_until_the_function_returns() {
    #[rate_limit(concurrency = 2, key = name)]
    fn nested(name: &str, depth: u32) -> Result<u32, CallDenied> {
        if depth == 0 { Ok(0) } else { nested(name, depth - 1).map(|deeper| deeper + 1) }
    }
    assert_eq!(nested("a", 1), Ok(1));
    let denied = nested("a", 2).unwrap_err();
    assert_eq!(
        denied.to_string(),
        "nested is limited to 2 concurrent: all 2 permits are in use; retry when one is free"
    );
    assert_eq!((denied.retry_after(), nested("a", 1)), (None, Ok(1))); // all permits were released
}

#[test]
fn call_takes_one_concurrency_permit_whatever_its_cost() {
    #[rate_limit("5/day", concurrency = 1, cost = 2)]
    fn work() -> Result<(), CallDenied> {
        Ok(())
    }
    assert_eq!([(); 3].map(|()| work().is_ok()), [true, true, false]);
}

#[test]
fn panic_releases_the_permit() {
    #[rate_limit(concurrency = 1)]
    fn fail(panics: bool) -> Result<(), CallDenied> {
        assert!(!panics);
        Ok(())
    }
    assert!(std::panic::catch_unwind(|| fail(true)).is_err());
    assert!(fail(false).is_ok());
}

#[test]
fn thread_waits_by_the_clock_of_its_limiter_up_to_the_given_time() {
    let (limiter, clock) = with_manual_clock(Quota::per_second(10).burst(1));
    #[rate_limit(limiter = limiter, key = user, wait = "250ms")]
    fn send(limiter: &By<ManualClock>, user: &str) -> Result<(), CallDenied> {
        let _ = user;
        Ok(())
    }
    assert!(send(&limiter, "alice").is_ok());
    std::thread::scope(|scope| {
        let waits = [(); 2].map(|()| scope.spawn(|| send(&limiter, "alice")));
        // Both threads are queued once the next free instant is 300 ms away: too late for a third.
        while limiter
            .request("alice")
            .peek()
            .retry_after()
            .is_none_or(|wait| wait != Duration::from_millis(300))
        {
            std::thread::yield_now();
        }
        let denied = send(&limiter, "alice").unwrap_err();
        assert_eq!(denied.retry_after().map(|wait| wait.duration()), Some(Duration::from_millis(300)));
        assert!(
            denied
                .to_string()
                .ends_with("the wait would be 300ms, longer than the timeout of 250ms; retry after 300ms")
        );
        clock.advance(Duration::from_millis(200));
        assert!(waits.into_iter().all(|wait| wait.join().unwrap().is_ok()));
    });
}

#[test]
fn call_waits_for_the_delay_of_a_pacer() {
    let pacer = tidegate::Pacer::builder(Quota::per_second(1_000_000)).clock(ManualClock::new()).build();
    #[rate_limit(limiter = pacer)]
    fn call(pacer: &tidegate::Pacer<ManualClock>) -> Result<(), CallDenied> {
        Ok(())
    }
    #[rate_limit(limiter = pacer, wait = "1us", cost = 2)]
    fn within(pacer: &tidegate::Pacer<ManualClock>) -> Result<(), CallDenied> {
        Ok(())
    }
    assert!(call(&pacer).is_ok() && call(&pacer).is_ok() && call(&pacer).is_ok());
    assert_eq!(within(&pacer).unwrap_err().retry_after().map(|wait| wait.as_micros()), Some(3));
}

#[test]
fn call_waits_for_a_permit_and_releases_it() {
    let slots = ConcurrencyLimiter::builder(1).clock(ManualClock::new()).build();
    #[rate_limit(limiter = slots, wait = "1s")]
    fn work(slots: &ConcurrencyLimiter<ManualClock>) -> Result<u64, CallDenied> {
        Ok(slots.stats().in_use)
    }
    assert_eq!((work(&slots), slots.stats().in_use), (Ok(1), 0));
    let held = slots.try_acquire().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| work(&slots));
        while slots.stats().waiting == 0 {
            std::thread::yield_now();
        }
        drop(held);
        assert_eq!(waits.join().unwrap(), Ok(1));
    });
}

/// A page, standing in for a response.
#[derive(Debug, PartialEq)]
struct Page(u16);

impl FromDenied for Page {
    fn from_denied(_: CallDenied) -> Self {
        Page(429)
    }
}

struct Shop {
    tenant: String,
}

#[rate_limit("2/day", key = self.tenant)]
impl Shop {
    /// Not a method: not limited.
    fn new(tenant: &str) -> Self {
        Shop { tenant: tenant.to_owned() }
    }

    fn buy(&self) -> Result<&str, CallDenied> {
        Ok(&self.tenant)
    }

    fn sell(&mut self) -> Result<(), CallDenied> {
        self.tenant.push('!');
        Ok(())
    }

    #[rate_limit("1/day", key = (self.tenant, item), otherwise = Self::guess)]
    fn look(&self, item: &str) -> usize {
        item.len()
    }

    fn page(self) -> Page {
        Page(200)
    }

    #[rate_limit(unlimited)]
    fn guess(&self, _: &str) -> usize {
        0
    }
}

#[test]
fn attribute_on_an_impl_is_the_default_of_methods_without_their_own() {
    let mut shop = Shop::new("acme");
    assert_eq!([(); 3].map(|()| shop.buy().is_ok()), [true, true, false]);
    assert!(Shop::new("other").buy().is_ok());
    assert!(shop.sell().is_ok(), "each method has its own limit");
    shop.tenant = "acme".to_owned();
    assert!(shop.sell().is_ok());
    shop.tenant = "acme".to_owned();
    assert_eq!(shop.sell().unwrap_err().function(), "sell");
    assert_eq!([shop.look("cup"), shop.look("cup"), shop.look("plate")], [3, 0, 5]);
    assert!((0..10).all(|_| shop.guess("cup") == 0));
    assert_eq!([(); 3].map(|()| Shop::new("acme").page()), [Page(200), Page(200), Page(429)]);
}

struct Tape {
    name: String,
    length: usize,
}

#[rate_limit("1/day", key = (self.name, self.length))]
impl Tape {
    const LENGTH: usize = 1;

    fn shared(self: Arc<Self>) -> Result<String, CallDenied> {
        Ok(self.name.clone())
    }

    #[expect(clippy::boxed_local, reason = "the test is about the box")]
    fn boxed(self: Box<Self>) -> Result<String, CallDenied> {
        Ok(self.name)
    }

    fn pinned(self: Pin<&mut Self>) -> Result<usize, CallDenied> {
        Ok(self.length)
    }

    fn longer(mut self) -> Result<Self, CallDenied> {
        self.length += Self::LENGTH;
        Ok(self)
    }

    fn letters<'a>(&'a self) -> Result<impl Iterator<Item = char> + use<'a>, CallDenied> {
        Ok(self.name.chars())
    }

    #[cfg(any())]
    fn is_not_there(&self) -> NorIsThis {}

    #[inline]
    #[cfg_attr(all(), doc = "Has attributes, before which that of the block is put.")]
    fn annotated(&self) -> Result<usize, CallDenied> {
        Ok(self.length)
    }
}

#[test]
fn fields_of_every_kind_of_receiver_can_be_the_key() {
    let tape = |length| Tape { name: "a".to_owned(), length };
    let twice = |call: &dyn Fn() -> bool| (call(), call());
    assert_eq!(twice(&|| Arc::new(tape(1)).shared().is_ok()), (true, false));
    assert_eq!(twice(&|| Box::new(tape(1)).boxed().is_ok()), (true, false));
    assert_eq!(twice(&|| Pin::new(&mut tape(1)).pinned().is_ok()), (true, false));
    assert_eq!(twice(&|| tape(1).letters().is_ok()), (true, false));
    assert_eq!(twice(&|| tape(1).annotated().is_ok()), (true, false));
    assert_eq!(tape(1).longer().map(|tape| tape.length), Ok(2));
    assert!(tape(1).longer().is_err() && tape(2).longer().is_ok());
}

#[test]
fn raw_identifiers_and_patterns_are_supported() {
    #[rate_limit("1/day", key = (r#type, a, rest[0]),)]
    fn r#match(
        r#type: &str,
        (a, ref b): (u8, String),
        rest @ [_, last]: [u8; 2],
    ) -> Result<String, CallDenied> {
        Ok(format!("{type} {a} {b} {rest:?} {last}"))
    }
    #[rate_limit("1/day", key = r#type)]
    fn r#loop(r#type: &str, &mut ref mut number: &mut u8) -> Result<u8, CallDenied> {
        *number += u8::try_from(r#type.len()).unwrap();
        Ok(*number)
    }
    assert_eq!(r#match("x", (1, "y".to_owned()), [2, 3]).as_deref(), Ok("x 1 y [2, 3] 3"));
    assert!(r#match("x", (1, "z".to_owned()), [2, 4]).is_err());
    let mut number = 1;
    assert_eq!(r#loop("abc", &mut number), Ok(4));
    let denied = r#loop("abc", &mut number).unwrap_err();
    assert_eq!((number, denied.function()), (4, "loop"), "the name without r#");
}

trait Greets {
    fn greet(&self) -> Result<String, CallDenied>;
    #[rate_limit("1/day", key = self.name())]
    fn bye(&self) -> Result<String, CallDenied> {
        Ok(format!("bye, {}", self.name()))
    }
    fn name(&self) -> String;
}

#[rate_limit("1/day")]
impl Greets for u8 {
    fn greet(&self) -> Result<String, CallDenied> {
        Ok(self.name())
    }
    #[rate_limit(unlimited)]
    fn name(&self) -> String {
        self.to_string()
    }
}

#[test]
fn trait_methods_can_be_limited() {
    assert_eq!((1u8.greet().is_ok(), 2u8.greet().is_ok()), (true, false));
    assert_eq!((1u8.bye().is_ok(), 2u8.bye().is_ok(), 1u8.bye().is_ok()), (true, true, false));
}

#[test]
fn every_algorithm_can_be_named() {
    macro_rules! passes {
        ($($text:literal, $algorithm:ident $(, $part:ident = $value:literal)*;)*) => {
            $({
                #[rate_limit($text)]
                fn by_text() -> Result<(), CallDenied> { Ok(()) }
                #[rate_limit(algorithm = $algorithm, limit = 1, per = "300days" $(, $part = $value)*)]
                fn in_parts() -> Result<(), CallDenied> { Ok(()) }
                let (text, parts) = ([by_text().is_ok(), by_text().is_ok()], [in_parts().is_ok(), in_parts().is_ok()]);
                assert_eq!((text, parts), ([true, false], [true, false]), $text);
                assert!($text.parse::<Rule>().is_ok());
            })*
        };
    }
    passes! {
        "token_bucket 1/day", token_bucket;
        "gcra 1/day", gcra;
        "leaky_meter 1/day", leaky_meter;
        "stepped_bucket 1 per 300days", stepped_bucket;
        "leaky_queue 1/day queue 0", leaky_queue, queue = 0;
        "fixed_window 1 per 300days", fixed_window;
        "sliding_log 1/day", sliding_log;
        "sliding_window 1/day cells 2", sliding_window, cells = 2;
    }
}
