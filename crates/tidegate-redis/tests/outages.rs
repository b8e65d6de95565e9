//! Redis pauses, dies and loses its scripts under constant load: every decision is counted, labelled and
//! replayed.

mod exchange;
mod gates;
mod load;
mod replay;
mod support;

use std::time::{Duration, SystemTime};

use exchange::Exchange;
use gates::{enforced, long_deadline, ready};
use load::{Entry, Load, Record};
use replay::{BUCKETS, Replay, sorted};
use support::{Kind, Mode, Proxy, Server};
use tidegate::clock::Micros;
use tidegate::gate::{Part, RuleId};
use tidegate::{Decision, Quota, Rule, Source};
use tidegate_redis::{Builder, Error, OnOutage, RedisGate};

const TASKS: usize = 8;
const KEYS: usize = 3;
const KINDS: [(OnOutage, Source); 3] =
    [(OnOutage::Open, Source::Open), (OnOutage::Closed, Source::Closed), (OnOutage::Local, Source::Local)];

fn bucket() -> Rule {
    BUCKETS[0].text.parse().expect("a rule")
}

/// A gate with keys of its own.
fn builder(server: &Server, on_outage: OnOutage) -> Builder {
    let builder = RedisGate::builder(server.url()).tenant(format!("{on_outage:?}"));
    builder.rule("user", bucket()).on_outage(on_outage)
}

fn cloned<'a>(exchanges: impl Iterator<Item = &'a Exchange>) -> Vec<Exchange> {
    sorted(exchanges.cloned().collect())
}

// --- paused

const HEALTHY: usize = 0;
const CHANGING: usize = 1;
const PAUSED: usize = 2;
const RECOVERED: usize = 3;
/// The length of the pause: a fault, not a measurement.
const PAUSE: Duration = Duration::from_secs(5);

/// One gate for each `on_outage`, each with its load.
struct PausedServer {
    server: Server,
    gates: Vec<RedisGate>,
    loads: Vec<Load>,
}

impl PausedServer {
    fn start() -> Self {
        let server = Server::start(Kind::Redis, &[]);
        // The deadline is long enough that a busy machine is not taken for a paused server.
        let gate = |(kind, _)| ready(builder(&server, kind).nodes(2).deadline(Duration::from_millis(500)));
        let gates: Vec<RedisGate> = KINDS.map(gate).into();
        let loads = PausedServer::load(&gates);
        PausedServer { server, gates, loads }
    }

    fn load(gates: &[RedisGate]) -> Vec<Load> {
        gates.iter().map(|gate| Load::start(gate, TASKS, KEYS)).collect()
    }

    fn enter(&self, phase: usize) {
        self.loads.iter().for_each(|load| load.enter(phase));
    }

    async fn decisions(&self, many: usize) {
        for load in &self.loads {
            load.decisions(many).await;
        }
    }

    async fn records(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for load in self.loads.drain(..) {
            records.push(load.stop().await);
        }
        records
    }

    /// Healthy, paused, and healthy again, under load all the time.
    async fn run(&mut self) {
        self.decisions(2_000).await;
        self.enter(CHANGING);
        self.server.pause();
        self.enter(PAUSED);
        tokio::time::sleep(PAUSE).await;
        self.decisions(2_000).await;
        for gate in &self.gates {
            let health = gate.health();
            assert!(health.breaker_open && health.enforced == Some(false), "{health:?}");
            assert_eq!((health.last_error, health.breaker_openings), (Some(Error::timeout()), 1));
        }
        self.enter(CHANGING);
        self.server.resume();
        self.gates.iter().for_each(enforced);
        self.enter(RECOVERED);
        self.decisions(1_000).await;
    }
}

/// A request without a reply may have been charged, but only after the pause began. So up to the last reply
/// before the pause, every charge is known.
fn known(record: &Record) -> Vec<Exchange> {
    let last = record.in_phase(HEALTHY).map(Exchange::at).max().expect("there is a healthy phase");
    cloned(record.strict().filter(|exchange| exchange.at() <= last))
}

/// The maximum number of requests that a local share may admit for one key since the outage began.
fn admissible(share: Quota, exchanges: &[&Exchange]) -> u128 {
    let at = |exchange: &&Exchange| exchange.at().get();
    let (first, last) =
        (exchanges.iter().map(at).min().expect("some"), exchanges.iter().map(at).max().expect("some"));
    let micros = u128::from(last - first);
    1 + micros * u128::from(share.limit()) / share.period().as_micros()
}

fn assert_follows_on_outage(record: &Record, on_outage: OnOutage, source: Source) {
    for exchange in record.in_phase(PAUSED) {
        assert_eq!(exchange.decision.source, source, "{exchange:?}");
        assert!(on_outage != OnOutage::Open || exchange.decision.is_allowed(), "{exchange:?}");
        assert!(on_outage != OnOutage::Closed || !exchange.decision.is_allowed(), "{exchange:?}");
    }
    if on_outage != OnOutage::Local {
        return;
    }
    for key in (0..KEYS).map(|key| format!("k{key}")) {
        let local = record.entries.iter().map(|entry| &entry.exchange);
        let local =
            local.filter(|exchange| exchange.decision.source == source && exchange.parts[0].key == key);
        let local: Vec<&Exchange> = local.collect();
        let passed = local.iter().filter(|exchange| exchange.decision.is_allowed()).count();
        // 61 per second, shared by two nodes.
        let most = admissible(Quota::per(61, Duration::from_secs(2)), &local);
        assert!(passed > 0 && passed as u128 <= most, "{key}: {passed} of at most {most}");
        assert!(passed < local.len(), "{key}: some requests must be refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_five_seconds_under_load_follows_on_outage_and_recovers_exactly() {
    let mut stage = PausedServer::start();
    stage.run().await;
    let records = stage.records().await;
    for ((on_outage, source), record) in KINDS.into_iter().zip(&records) {
        for phase in [HEALTHY, RECOVERED] {
            let wrong = record.in_phase(phase).find(|exchange| exchange.decision.source != Source::Strict);
            assert!(wrong.is_none(), "{on_outage:?}, phase {phase}: {wrong:?}");
        }
        assert_follows_on_outage(record, on_outage, source);
        Replay::of(BUCKETS).exactly(&known(record));
        Replay::of(BUCKETS).never_too_many(&cloned(record.strict()));
    }
    // Requests without a reply have been charged by now; after a reset every decision is exact again.
    for gate in &stage.gates {
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            gate.request().parts(&[Part::of(RuleId(0)).key(&key)]).reset().await.expect("a reply");
        }
    }
    stage.loads = PausedServer::load(&stage.gates);
    stage.decisions(1_000).await;
    let afterwards = stage.records().await;
    for (((_, source), gate), (during, after)) in
        KINDS.into_iter().zip(&stage.gates).zip(records.iter().zip(&afterwards))
    {
        assert_eq!(after.made_by(Source::Strict), after.entries.len() as u64, "{:?}", gate.health());
        Replay::of(BUCKETS).exactly(&cloned(after.strict()));
        let counted = gate.health().decisions;
        let made = |source| during.made_by(source) + after.made_by(source);
        let fallbacks = counted.open + counted.closed + counted.local;
        assert_eq!((counted.strict, fallbacks), (made(Source::Strict), made(source)), "{counted:?}");
    }
    assert_eq!(stage.server.keys_without_expiry(), Vec::<String>::new());
}

// --- killed

const KILLS: usize = 12;
/// The burst of a key; per day, so that nothing refills while the test runs.
const BURST: u64 = 5;

/// Microseconds since 1970, by the clock that Redis on this machine reads.
fn now() -> Micros {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    Micros::new(u64::try_from(since.as_micros()).expect("before 2255"))
}

/// How many requests passed for each key between two instants.
fn passed(record: &Record, from: Micros, to: Micros) -> Vec<u64> {
    let mut passed = vec![0; KEYS];
    for exchange in record.strict().filter(|exchange| exchange.at() > from && exchange.at() < to) {
        let key: usize = exchange.parts[0].key[1..].parse().expect("a number after the letter");
        passed[key] += u64::from(exchange.decision.is_allowed());
    }
    passed
}

#[tokio::test(flavor = "multi_thread")]
async fn each_restart_of_an_empty_redis_under_load_admits_one_burst_per_key() {
    let mut server = Server::start(Kind::Redis, &[]);
    let builder = RedisGate::builder(server.url()).rule("user", Quota::per_day(BURST));
    let gate = long_deadline(builder.on_outage(OnOutage::Closed));
    let load = Load::start(&gate, TASKS, KEYS);
    let mut lives = vec![Micros::ZERO]; // each begins when the one before has ended
    for life in 0..KILLS {
        load.decisions(300).await;
        load.enter(2 * life + 1);
        server.kill();
        lives.push(now()); // no server decides now
        server.restart();
        enforced(&gate);
        load.enter(2 * life + 2);
    }
    load.decisions(300).await;
    let record = load.stop().await;
    lives.push(Micros::MAX);

    for life in 0..=KILLS {
        let healthy: Vec<&Entry> =
            record.entries.iter().filter(|entry| entry.phase == Some(2 * life)).collect();
        assert!(!healthy.is_empty(), "life {life}");
        for entry in healthy {
            assert_eq!(entry.exchange.decision.source, Source::Strict, "life {life}: {entry:?}");
        }
        // Charges without a reply when the server died are missing, and nothing else can be.
        let passed = passed(&record, lives[life], lives[life + 1]);
        assert!(passed.iter().all(|passed| *passed <= BURST), "life {life}: {passed:?} of {BURST}");
        assert!(passed.iter().sum::<u64>() >= KEYS as u64 * BURST - TASKS as u64, "life {life}: {passed:?}");
    }
    let passed = record.entries.iter().filter(|entry| entry.exchange.decision.is_allowed()).count();
    assert!(passed <= KEYS * (KILLS + 1) * 5, "a burst for each key and life, and not {passed}");
    assert!(record.made_by(Source::Closed) > 0, "some requests came while the server was down");
    let noscript: Vec<_> = record.errors.iter().filter(|error| error.contains("NOSCRIPT")).collect();
    assert!(noscript.is_empty(), "{noscript:?}");
    let counted = gate.health().decisions;
    assert_eq!(
        (counted.strict, counted.closed),
        (record.made_by(Source::Strict), record.made_by(Source::Closed))
    );
    assert_eq!(server.keys_without_expiry(), Vec::<String>::new());
}

// --- scripts flushed

const FLUSHES: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn flushing_scripts_under_load_leaves_every_decision_strict_and_exact() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = long_deadline(builder(&server, OnOutage::Closed));
    let load = Load::start(&gate, TASKS, KEYS);
    for _ in 0..FLUSHES {
        load.enter(0);
        server.cli(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
        load.decisions(TASKS).await;
    }
    let record = load.stop().await;
    assert_eq!(record.made_by(Source::Strict), record.entries.len() as u64, "{:?}", record.errors);
    let tallies = Replay::of(BUCKETS).exactly(&cloned(record.strict()));
    assert!(tallies[0].passed >= 60 && tallies[0].refused > 100, "{tallies:?}");
    let loads = server.cli(&["INFO", "commandstats"]);
    let loads = loads.lines().find(|line| line.starts_with("cmdstat_script|load")).expect("it was loaded");
    let calls: usize = loads
        .split_once("calls=")
        .and_then(|(_, rest)| rest.split(',').next()?.parse().ok())
        .expect("the number of calls");
    assert!(calls > FLUSHES, "the script is loaded again after each flush: {loads}");
}

// --- an outage for some nodes only

/// The decisions of one node that hammers one key: by Redis, and without it.
async fn check_repeatedly(gate: RedisGate, checks: usize) -> (Vec<Decision>, Vec<Decision>) {
    let (mut strict, mut local) = (Vec::new(), Vec::new());
    for _ in 0..checks {
        let decision = gate.check_parts(&[Part::of(RuleId(0)).key("hot")]).await.expect("a request").decision;
        if decision.source == Source::Strict { &mut strict } else { &mut local }.push(decision);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (strict, local)
}

fn admitted(decisions: &[Decision]) -> u64 {
    decisions.iter().filter(|decision| decision.is_allowed()).count() as u64
}

fn micros(decisions: &[Decision]) -> u64 {
    let at = |decision: Option<&Decision>| decision.map_or(0, |decision| decision.at().get());
    at(decisions.last()) - at(decisions.first())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_node_adds_at_most_its_share() {
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    let gate =
        |url: String| ready(RedisGate::builder(url).rule("user", Quota::per_second(100).burst(20)).nodes(2));
    let (there, cut_off) = (gate(server.url()), gate(proxy.url()));
    proxy.set(Mode::Refuse);
    let (there, cut_off) = tokio::join!(
        tokio::spawn(check_repeatedly(there, 600)),
        tokio::spawn(check_repeatedly(cut_off.clone(), 600))
    );
    let ((strict, _), (_, local)) = (there.expect("no panic"), cut_off.expect("no panic"));
    let (of_redis, of_share) =
        (20 + micros(&strict) * 100 / 1_000_000 + 1, micros(&local) * 50 / 1_000_000 + 1);
    assert!(admitted(&strict) <= of_redis, "{} of at most {of_redis}", admitted(&strict));
    assert!((1..=of_share).contains(&admitted(&local)), "{} of at most {of_share}", admitted(&local));
}
