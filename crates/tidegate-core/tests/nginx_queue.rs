//! The queue that counts as nginx does, against a model of nginx: signed thousandths, milliseconds, truncated
//! at each request, and several zones that are all checked before any is charged.

mod random;

use std::time::Duration;

use random::Random;
use tidegate_core::{Algorithm, Micros, NginxQueue, Outcome, Quota, Rule, Wait};

/// A zone with one key in it, as nginx keeps it.
#[derive(Clone, Debug)]
struct Zone {
    rate: i64,
    burst: i64,
    delay: i64,
    /// The key's excess and when it was last written; none before its first request.
    node: Option<(i64, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Delay(i64),
    Reject,
}

impl Zone {
    fn draw(random: &mut Random) -> (Zone, NginxQueue) {
        let (limit, seconds) =
            if random.one_in(2) { (random.between(1, 50), 1) } else { (random.between(1, 300), 60) };
        let (burst, delay) = (small(random.below(8)), small(random.below(10)));
        let nodelay = random.one_in(4);
        let quota = Quota::per(limit, Duration::from_secs(seconds));
        let queue = NginxQueue::new(quota, burst).delay(delay);
        let zone = Zone {
            rate: signed(limit * 1_000 / seconds),
            burst: i64::from(burst) * 1_000,
            delay: if nodelay { i64::MAX } else { i64::from(delay) * 1_000 },
            node: None,
        };
        (zone, if nodelay { queue.nodelay() } else { queue })
    }

    /// The excess with one more request, and whether any time has passed.
    fn excess(&self, now: i64) -> (i64, bool) {
        let Some((excess, last)) = self.node else { return (0, true) };
        let passed = match now - last {
            back if back < -60_000 => 1,
            back if back < 0 => 0,
            passed => passed,
        };
        ((excess - self.rate * passed / 1_000 + 1_000).max(0), passed != 0)
    }

    fn account(&mut self, now: i64) -> i64 {
        let (excess, time_passed) = self.excess(now);
        let last = if time_passed { now } else { self.node.map_or(now, |(_, last)| last) };
        self.node = Some((excess, last));
        (excess.saturating_sub(self.delay)).max(0) * 1_000 / self.rate
    }
}

fn request(zones: &mut [Zone], now: i64) -> Verdict {
    if zones.iter().any(|zone| zone.excess(now).0 > zone.burst) {
        return Verdict::Reject;
    }
    match zones.iter_mut().map(|zone| zone.account(now)).max() {
        Some(wait) if wait > 0 => Verdict::Delay(wait),
        _ => Verdict::Pass,
    }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).expect("a small number")
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("a small number")
}

fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Allowed => Verdict::Pass,
        Outcome::AllowedAfter(wait) => Verdict::Delay(signed(wait.as_micros() / 1_000)),
        Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => Verdict::Reject,
    }
}

/// Milliseconds until the next request: mostly short, sometimes long, sometimes back.
fn step(random: &mut Random) -> i64 {
    match random.below(20) {
        0..8 => 0,
        8..14 => signed(random.below(120)),
        14..18 => signed(random.below(2_000)),
        18 => signed(random.below(100_000)),
        _ => -signed(random.below(59_000)),
    }
}

#[test]
fn one_zone_or_several_decide_as_nginx_does() {
    let mut random = Random::seeded(70);
    let mut met = [0u32; 3];
    for _ in 0..400 {
        let (mut zones, queues): (Vec<Zone>, Vec<NginxQueue>) =
            (0..random.between(1, 3)).map(|_| Zone::draw(&mut random)).unzip();
        let rules: Vec<Rule> = queues.into_iter().map(Rule::NginxQueue).collect();
        let mut state = vec![0; rules.as_slice().words()];
        let (mut now, mut latest) = (1_000_000_000_i64, 0);
        for _ in 0..300 {
            // Further back nginx would refuse until the clock has caught up. Tidegate does not: see below.
            now = (now + step(&mut random)).max(latest - 60_000);
            latest = latest.max(now);
            let micros = u64::try_from(now).expect("after the beginning") * 1_000 + random.below(1_000);
            let got = rules.as_slice().decide(&mut state[..], Micros::new(micros), 1);
            let want = request(&mut zones, now);
            assert_eq!(verdict(got.outcome), want, "{zones:?} at {now} ms: {got:?}");
            met[match want {
                Verdict::Pass => 0,
                Verdict::Delay(_) => 1,
                Verdict::Reject => 2,
            }] += 1;
        }
    }
    assert!(met.iter().all(|times| *times > 2_000), "every outcome is met often: {met:?}");
}

#[test]
fn a_rate_per_minute_is_truncated_as_nginx_truncates_it() {
    let queue = NginxQueue::new(Quota::per_minute(1), 0);
    let mut state = [0; 2];
    let first = queue.decide(&mut state, Micros::ZERO, 1);
    assert_eq!(first.reset_after(), Wait::micros(62_500_000));
}

#[test]
fn a_far_step_back_of_the_clock_is_accepted_from_then_on() {
    let queue = NginxQueue::new(Quota::per_second(1), 0);
    let mut state = [0; 2];
    assert!(queue.decide(&mut state, Micros::new(100_000_000), 1).is_allowed());
    let back = queue.decide(&mut state, Micros::new(30_000_000), 1);
    assert_eq!(back.retry_after(), Some(Wait::micros(1_000_000)));
    assert!(queue.decide(&mut state, Micros::new(31_000_000), 1).is_allowed());
}

#[test]
fn the_largest_rate_is_accepted_and_one_more_is_refused() {
    let in_1000_seconds = |limit| Quota::try_new(limit, Duration::from_secs(1_000), 1).expect("exact");
    let largest = u64::from(u32::MAX);
    assert!(NginxQueue::try_new(in_1000_seconds(largest), 0).is_ok());
    assert!(NginxQueue::try_new(in_1000_seconds(largest + 1), 0).is_err());
}

/// A thread may use a clock reading from long before the last write. That must not look like a far step back.
#[test]
fn last_seen_of_a_zone_is_the_millisecond_of_its_last_write() {
    let queue = NginxQueue::new(Quota::per_second(1), 0);
    let mut state = [0; 2];
    assert_eq!(queue.last_seen(&state), Micros::ZERO);
    let _ = queue.force(&mut state, Micros::new(100_000_999), 1);
    assert_eq!(queue.last_seen(&state), Micros::new(100_000_000));
}
