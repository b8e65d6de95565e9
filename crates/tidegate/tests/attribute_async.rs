//! The attribute on async functions and on functions that return a future.

#![cfg(all(feature = "macros", feature = "tokio"))]

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::algorithm::TokenBucket;
use tidegate::attribute::{CallDenied, CallLimit};
use tidegate::clock::Clock;
use tidegate::gate::{Answer, Gate, Part};
use tidegate::{
    Admission, ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedLimiter, Limiter, Pacer, Policy, Quota,
    TokioClock, rate_limit,
};

fn is_send<F: Future + Send>(future: F) -> F {
    future
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Not `Send`, like the guard of a lock.
struct Guard<'a>(&'a str, std::marker::PhantomData<*const ()>);

#[tokio::test]
async fn async_function_is_limited_when_it_is_polled() {
    #[rate_limit("1/day", key = Guard(user, std::marker::PhantomData).0)]
    async fn send(user: &str) -> Result<usize, CallDenied> {
        tokio::task::yield_now().await;
        Ok(user.len())
    }
    let never_polled = send("alice");
    assert_eq!(is_send(send("alice")).await, Ok(5));
    drop(never_polled);
    assert_eq!(send("alice").await.unwrap_err().limit(), Some(CallLimit::Rate("1/day")));
    assert_eq!(send("bob").await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn task_waits_up_to_the_given_time() {
    let clock = TokioClock::new();
    let limiter =
        KeyedLimiter::<str, TokenBucket, _>::builder(Quota::per_second(10).burst(1)).clock(clock).build();
    #[rate_limit(limiter = limiter, key = user, wait = "200ms")]
    async fn send(
        limiter: &KeyedLimiter<str, TokenBucket, TokioClock>,
        clock: &TokioClock,
        user: &str,
    ) -> Result<u64, CallDenied> {
        let _ = (limiter, user);
        Ok(clock.now().get())
    }
    let send = |user| is_send(send(&limiter, &clock, user));
    let all = tokio::join!(send("alice"), send("alice"), send("alice"), send("alice"), send("bob"));
    assert_eq!([all.0.unwrap(), all.1.unwrap(), all.2.unwrap()], [0, 100_000, 200_000]);
    assert_eq!(
        all.3.unwrap_err().retry_after().map(|wait| wait.duration()),
        Some(Duration::from_millis(300))
    );
    assert!(all.4.is_ok());
}

#[tokio::test(start_paused = true)]
async fn every_limiter_can_be_waited_for() {
    macro_rules! waits_at {
        ($limiter:expr, $ty:ty) => {{
            #[rate_limit(limiter = limiter, wait = "1s")]
            async fn call(limiter: &$ty) -> Result<(), CallDenied> {
                Ok(())
            }
            let limiter: $ty = $limiter;
            let clock = TokioClock::new();
            let start = clock.now().get();
            for _ in 0..3 {
                call(&limiter).await.unwrap();
            }
            clock.now().get() - start
        }};
    }
    let quota = Quota::per_second(10).burst(1);
    let clock = TokioClock::new();
    let policy = Policy::builder().rule("only", quota).clock(clock).build().unwrap();
    assert_eq!(
        waits_at!(Limiter::builder(quota).clock(clock).build(), Limiter<TokenBucket, TokioClock>),
        200_000
    );
    assert_eq!(waits_at!(policy, Policy<tidegate::Rule, TokioClock>), 200_000);
    assert_eq!(waits_at!(Pacer::builder(quota).clock(clock).build(), Pacer<TokioClock>), 200_000);
    assert_eq!(
        waits_at!(ConcurrencyLimiter::builder(1).clock(clock).build(), ConcurrencyLimiter<TokioClock>),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_concurrency_permit_times_out() {
    let slots = ConcurrencyLimiter::builder(1).clock(TokioClock::new()).build();
    #[rate_limit(limiter = slots, wait = "1s")]
    async fn work(slots: &ConcurrencyLimiter<TokioClock>) -> Result<(), CallDenied> {
        tokio::time::sleep(Duration::from_millis(600)).await;
        Ok(())
    }
    let (one, two, three) = tokio::join!(work(&slots), work(&slots), work(&slots));
    assert_eq!((one.is_ok(), two.is_ok()), (true, true));
    assert!(
        three.unwrap_err().to_string().ends_with("timed out after 1s; retry later or use a longer timeout")
    );

    let slots = KeyedConcurrencyLimiter::<str>::builder(1).clock(TokioClock::new()).build();
    #[rate_limit(limiter = slots, key = user, wait = "1s")]
    async fn by(slots: &KeyedConcurrencyLimiter<str, TokioClock>, user: &str) -> Result<usize, CallDenied> {
        let _ = slots;
        tokio::time::sleep(Duration::from_millis(600)).await;
        Ok(user.len())
    }
    let all = tokio::join!(by(&slots, "a"), by(&slots, "a"), by(&slots, "a"), by(&slots, "bc"));
    assert_eq!((all.0, all.1, all.2.is_err(), all.3), (Ok(1), Ok(1), true, Ok(2)));
    assert_eq!(slots.stats().keys, 0);
}

#[tokio::test(start_paused = true)]
async fn leaky_queue_delay_is_waited_for_without_a_wait_argument() {
    #[rate_limit("leaky_queue 1 per 300days queue 1", key = user)]
    async fn call(user: &str) -> Result<(), CallDenied> {
        let _ = user;
        Ok(())
    }
    assert!(call("alice").await.is_ok());
    let mut queued = pin!(call("alice"));
    assert!(poll(queued.as_mut()).is_pending());
    assert!(call("alice").await.is_err()); // the queue is full
    assert!(queued.await.is_ok()); // 300 days later on the paused clock
    assert!(call("bob").await.is_ok());
}

#[tokio::test]
async fn permit_is_held_until_the_future_ends_or_is_dropped() {
    #[rate_limit(concurrency = 1)]
    async fn work() -> Result<(), CallDenied> {
        tokio::task::yield_now().await;
        Ok(())
    }
    {
        let mut first = pin!(work());
        assert!(poll(first.as_mut()).is_pending());
        assert!(work().await.is_err());
    }
    assert!(work().await.is_ok());
    assert!(work().await.is_ok());
}

#[tokio::test]
async fn limit_given_in_the_attribute_can_be_waited_for() {
    #[rate_limit("1/day", key = user, wait = "1ms")]
    async fn task(user: &str) -> Result<usize, CallDenied> {
        Ok(user.len())
    }
    #[rate_limit("1/day", key = user, wait = "1ms")]
    fn thread(user: &str) -> Result<usize, CallDenied> {
        Ok(user.len())
    }
    #[rate_limit(concurrency = 1, wait = "1h")]
    async fn one_at_a_time() -> Result<(), CallDenied> {
        tokio::task::yield_now().await;
        Ok(())
    }
    assert_eq!((task("a").await, thread("a"), task("b").await), (Ok(1), Ok(1), Ok(1)));
    for denied in [task("a").await.unwrap_err(), thread("a").unwrap_err()] {
        let message = denied.to_string();
        assert!(message.contains(" is limited to 1/day: the wait would be "), "{message}");
        assert!(message.contains(", longer than the timeout of "), "{message}");
    }
    assert_eq!(tokio::join!(one_at_a_time(), one_at_a_time(), one_at_a_time()), (Ok(()), Ok(()), Ok(())));
}

#[tokio::test]
async fn fallback_is_awaited_like_the_function() {
    struct Service(u32);
    impl Service {
        #[rate_limit("1/day", key = id, otherwise = Self::cached)]
        async fn fetch(&mut self, id: u32, mut name: String) -> String {
            self.0 += 1;
            name.push_str(&id.to_string());
            name
        }
        async fn cached(&mut self, id: u32, name: String) -> String {
            tokio::task::yield_now().await;
            format!("cached {name} {id} {}", self.0)
        }
    }
    let mut service = Service(0);
    assert_eq!(service.fetch(7, "a".into()).await, "a7");
    assert_eq!(is_send(service.fetch(7, "a".into())).await, "cached a 7 1");
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

trait Store {
    fn get<'a>(
        &'a self,
        key: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<usize, CallDenied>> + Send + 'a>>;
    fn put(&self, key: String) -> impl Future<Output = Result<usize, CallDenied>> + Send;
}

struct Memory;

#[rate_limit("1/day", key = key)]
impl Store for Memory {
    fn get<'a>(
        &'a self,
        key: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<usize, CallDenied>> + Send + 'a>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            Ok(key.len())
        })
    }

    fn put(&self, key: String) -> impl Future<Output = Result<usize, CallDenied>> + Send {
        async move { Ok(key.len()) }
    }
}

#[tokio::test]
async fn functions_that_return_a_future_are_limited_when_it_is_polled() {
    let not_polled = Memory.get("a");
    assert_eq!(Memory.get("a").await, Ok(1));
    assert_eq!(not_polled.await.unwrap_err().function(), "get");
    assert_eq!(Memory.put("a".into()).await, Ok(1));
    assert_eq!(is_send(Memory.put("a".into())).await.unwrap_err().function(), "put");

    #[rate_limit("1/day", otherwise = instead)]
    fn number(n: u32) -> impl Future<Output = u32> + Send {
        std::future::ready(n)
    }
    fn instead(n: u32) -> Boxed<'static, u32> {
        Box::pin(async move { n * 2 })
    }
    assert_eq!((number(21).await, number(21).await), (21, 42));
}

#[tokio::test]
async fn function_may_return_its_future_early() {
    #[rate_limit("1/day", key = n)]
    fn boxed(n: u32) -> Pin<Box<dyn Future<Output = Result<u32, CallDenied>> + Send>> {
        if n == 0 {
            return Box::pin(std::future::ready(Ok(100)));
        }
        Box::pin(async move {
            if n == 1 {
                return Ok(101);
            }
            Ok(n)
        })
    }
    #[rate_limit("1/day", key = n)]
    fn hidden(n: &u32) -> impl Future<Output = Result<u32, CallDenied>> + Send + use<'_> {
        if *n == 0 {
            return std::future::ready(Ok(100));
        }
        std::future::ready(Ok(*n))
    }
    assert_eq!((boxed(0).await, boxed(1).await, boxed(2).await), (Ok(100), Ok(101), Ok(2)));
    assert!(boxed(0).await.is_err() && boxed(2).await.is_err());
    assert_eq!((hidden(&0).await, hidden(&2).await), (Ok(100), Ok(2)));
    assert!(is_send(hidden(&0)).await.is_err());
}

#[async_trait::async_trait]
trait Remote {
    async fn get(&self, key: &str, more: Vec<u8>) -> Result<usize, CallDenied>;
    async fn count(&mut self, key: String) -> usize;
}

struct Far;

#[async_trait::async_trait]
impl Remote for Far {
    #[rate_limit("1/day", key = key)]
    async fn get(&self, key: &str, more: Vec<u8>) -> Result<usize, CallDenied> {
        if more.is_empty() {
            return Ok(0);
        }
        Ok(key.len() + more.len())
    }

    #[rate_limit("1/day", key = key, otherwise = Self::guess)]
    async fn count(&mut self, key: String) -> usize {
        key.len()
    }
}

impl Far {
    async fn guess(&mut self, _: String) -> usize {
        42
    }
}

#[tokio::test]
async fn methods_of_an_async_trait_are_limited() {
    assert_eq!(Far.get("ab", vec![1]).await, Ok(3));
    assert_eq!(Far.get("b", vec![]).await, Ok(0));
    assert_eq!(is_send(Far.get("ab", vec![])).await.unwrap_err().function(), "get");
    assert_eq!((Far.count("ab".into()).await, Far.count("ab".into()).await), (2, 42));
}

/// A gate that answers asynchronously, as a remote gate does.
struct RemoteGate(Limiter);

impl Gate for RemoteGate {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        Answer::Pending(Box::pin(async move {
            let woken = std::sync::atomic::AtomicBool::new(false);
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                let before = woken.swap(true, std::sync::atomic::Ordering::Relaxed);
                if before { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Ok(Admission::without_permits(self.0.request().cost(request[0].cost).check()))
        }))
    }
}

#[tokio::test]
async fn asynchronous_gate_is_awaited_by_tasks_and_blocks_threads() {
    #[rate_limit(limiter = gate, cost = 2)]
    async fn task(gate: &dyn Gate) -> Result<(), CallDenied> {
        let _ = gate;
        Ok(())
    }
    #[rate_limit(limiter = gate)]
    fn thread(gate: &RemoteGate) -> Result<(), CallDenied> {
        let _ = gate;
        Ok(())
    }
    let gate = RemoteGate(Limiter::new(Quota::per_day(3)));
    assert!(is_send(task(&gate)).await.is_ok());
    assert_eq!([thread(&gate).is_ok(), thread(&gate).is_ok()], [true, false]);
    assert!(task(&gate).await.is_err());
}
