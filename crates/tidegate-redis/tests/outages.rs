//! Redis stops, dies and forgets while many ask all the time: what each was told, counted, labelled and replayed.

mod gates;
mod load;
mod replay;
mod support;
mod told;

use std::time::{Duration, SystemTime};

use gates::{enforced, patient, ready};
use load::{Heard, Load, Record};
use replay::{BUCKETS, Replay, sorted};
use support::{Kind, Mode, Proxy, Server};
use tidegate::{Decision, Micros, Part, Quota, Rule, RuleId, Source};
use tidegate_redis::{Builder, Error, OnOutage, RedisGate};
use told::Told;

const TASKS: usize = 8;
const KEYS: usize = 3;
const KINDS: [(OnOutage, Source); 3] =
    [(OnOutage::Open, Source::Open), (OnOutage::Closed, Source::Closed), (OnOutage::Local, Source::Local)];

fn bucket() -> Rule {
    BUCKETS[0].text.parse().expect("a rule")
}

/// A gate whose keys are its own.
fn builder(server: &Server, when_lost: OnOutage) -> Builder {
    let builder = RedisGate::builder(server.url()).tenant(format!("{when_lost:?}"));
    builder.rule("user", bucket()).on_outage(when_lost)
}

fn cloned<'a>(told: impl Iterator<Item = &'a Told>) -> Vec<Told> {
    sorted(told.cloned().collect())
}

// --- stopped

const WELL: usize = 0;
const CHANGING: usize = 1;
const STOPPED: usize = 2;
const WELL_AGAIN: usize = 3;
/// How long it is stopped: a fault, and nothing that is measured.
const STOP: Duration = Duration::from_secs(5);

/// One gate of each kind, each with its load.
struct Stage {
    server: Server,
    gates: Vec<RedisGate>,
    loads: Vec<Load>,
}

impl Stage {
    fn set() -> Self {
        let server = Server::start(Kind::Redis, &[]);
        // The deadline is such that a busy machine is not taken for a server that has stopped.
        let gate = |(kind, _)| ready(builder(&server, kind).nodes(2).deadline(Duration::from_millis(500)));
        let gates: Vec<RedisGate> = KINDS.map(gate).into();
        let loads = Stage::load(&gates);
        Stage { server, gates, loads }
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

    /// Well, stopped, and well again, under load all the time.
    async fn play(&mut self) {
        self.decisions(2_000).await;
        self.enter(CHANGING);
        self.server.pause();
        self.enter(STOPPED);
        tokio::time::sleep(STOP).await;
        self.decisions(2_000).await;
        for gate in &self.gates {
            let health = gate.health();
            assert!(health.not_asked && health.enforced == Some(false), "{health:?}");
            assert_eq!((health.last_trouble, health.openings), (Some(Error::TooLate), 1));
        }
        self.enter(CHANGING);
        self.server.resume();
        self.gates.iter().for_each(enforced);
        self.enter(WELL_AGAIN);
        self.decisions(1_000).await;
    }
}

/// Who has asked and was not answered may have been charged, but only from the stop on. So until the last answer of
/// before, every answer is known.
fn known(record: &Record) -> Vec<Told> {
    let last = record.in_phase(WELL).map(Told::at).max().expect("there was a time when all was well");
    cloned(record.strict().filter(|told| told.at() <= last))
}

/// How many of those that came in since the limit was lost may pass, at most, for one key.
fn come_in(share: Quota, heard: &[&Told]) -> u128 {
    let at = |told: &&Told| told.at().get();
    let (first, last) =
        (heard.iter().map(at).min().expect("some"), heard.iter().map(at).max().expect("some"));
    let micros = u128::from(last - first);
    1 + micros * u128::from(share.limit()) / share.period().as_micros()
}

fn did_as_it_says(record: &Record, when_lost: OnOutage, source: Source) {
    for told in record.in_phase(STOPPED) {
        assert_eq!(told.decision.source, source, "{told:?}");
        assert!(when_lost != OnOutage::Open || told.decision.is_allowed(), "{told:?}");
        assert!(when_lost != OnOutage::Closed || !told.decision.is_allowed(), "{told:?}");
    }
    if when_lost != OnOutage::Local {
        return;
    }
    for key in (0..KEYS).map(|key| format!("k{key}")) {
        let local = record.heard.iter().map(|heard| &heard.told);
        let local = local.filter(|told| told.decision.source == source && told.parts[0].key == key);
        let local: Vec<&Told> = local.collect();
        let passed = local.iter().filter(|told| told.decision.is_allowed()).count();
        // 61 a second, for two.
        let most = come_in(Quota::per(61, Duration::from_secs(2)), &local);
        assert!(passed > 0 && passed as u128 <= most, "{key}: {passed} of at most {most}");
        assert!(passed < local.len(), "{key}: somebody must have been refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_for_five_seconds_under_load() {
    let mut stage = Stage::set();
    stage.play().await;
    let records = stage.records().await;
    for ((when_lost, source), record) in KINDS.into_iter().zip(&records) {
        for phase in [WELL, WELL_AGAIN] {
            let wrong = record.in_phase(phase).find(|told| told.decision.source != Source::Strict);
            assert!(wrong.is_none(), "{when_lost:?}, phase {phase}: {wrong:?}");
        }
        did_as_it_says(record, when_lost, source);
        Replay::of(BUCKETS).exactly(&known(record));
        Replay::of(BUCKETS).never_too_many(&cloned(record.strict()));
    }
    // What was sent and not answered has been charged by now; from a fresh start all is exact again.
    for gate in &stage.gates {
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            gate.reset(&[Part::of(RuleId(0)).key(&key)]).await.expect("a request").expect("an answer");
        }
    }
    stage.loads = Stage::load(&stage.gates);
    stage.decisions(1_000).await;
    let afterwards = stage.records().await;
    for (((_, source), gate), (during, after)) in
        KINDS.into_iter().zip(&stage.gates).zip(records.iter().zip(&afterwards))
    {
        assert_eq!(after.made_by(Source::Strict), after.heard.len() as u64, "{:?}", gate.health());
        Replay::of(BUCKETS).exactly(&cloned(after.strict()));
        let counted = gate.health().decisions;
        let made = |source| during.made_by(source) + after.made_by(source);
        let lost = counted.open + counted.closed + counted.local;
        assert_eq!((counted.strict, lost), (made(Source::Strict), made(source)), "{counted:?}");
    }
    assert_eq!(stage.server.keys_without_expiry(), Vec::<String>::new());
}

// --- killed

const KILLS: usize = 12;
/// What a key may have at once; by the day, so that nothing comes back while the test lasts.
const BURST: u64 = 5;

/// Microseconds since 1970, by the clock that Redis on this machine reads.
fn now() -> Micros {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    Micros::new(u64::try_from(since.as_micros()).expect("before 2255"))
}

/// How many passed for each key between two instants.
fn passed(record: &Record, from: Micros, to: Micros) -> Vec<u64> {
    let mut passed = vec![0; KEYS];
    for told in record.strict().filter(|told| told.at() > from && told.at() < to) {
        let key: usize = told.parts[0].key[1..].parse().expect("a number after the letter");
        passed[key] += u64::from(told.decision.is_allowed());
    }
    passed
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_restarted_empty_again_and_again_under_load() {
    let mut server = Server::start(Kind::Redis, &[]);
    let builder = RedisGate::builder(server.url()).rule("user", Quota::per_day(BURST));
    let gate = patient(builder.on_outage(OnOutage::Closed));
    let load = Load::start(&gate, TASKS, KEYS);
    let mut lives = vec![Micros::ZERO]; // each begins when the one before has ended
    for life in 0..KILLS {
        load.decisions(300).await;
        load.enter(2 * life + 1);
        server.kill();
        lives.push(now()); // nobody decides now
        server.restart();
        enforced(&gate);
        load.enter(2 * life + 2);
    }
    load.decisions(300).await;
    let record = load.stop().await;
    lives.push(Micros::MAX);

    for life in 0..=KILLS {
        let well: Vec<&Heard> = record.heard.iter().filter(|heard| heard.phase == Some(2 * life)).collect();
        assert!(!well.is_empty(), "life {life}");
        for heard in well {
            assert_eq!(heard.told.decision.source, Source::Strict, "life {life}: {heard:?}");
        }
        // What was charged and not answered when it died is missing, and nothing else can be.
        let passed = passed(&record, lives[life], lives[life + 1]);
        assert!(passed.iter().all(|passed| *passed <= BURST), "life {life}: {passed:?} of {BURST}");
        assert!(passed.iter().sum::<u64>() >= KEYS as u64 * BURST - TASKS as u64, "life {life}: {passed:?}");
    }
    let passed = record.heard.iter().filter(|heard| heard.told.decision.is_allowed()).count();
    assert!(passed <= KEYS * (KILLS + 1) * 5, "a burst for each key and life, and not {passed}");
    assert!(record.made_by(Source::Closed) > 0, "some asked while nobody was there");
    let noscript: Vec<_> = record.troubles.iter().filter(|trouble| trouble.contains("NOSCRIPT")).collect();
    assert!(noscript.is_empty(), "{noscript:?}");
    let counted = gate.health().decisions;
    assert_eq!(
        (counted.strict, counted.closed),
        (record.made_by(Source::Strict), record.made_by(Source::Closed))
    );
    assert_eq!(server.keys_without_expiry(), Vec::<String>::new());
}

// --- forgetful

const FLUSHES: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_forgotten_every_tenth_of_a_second_under_load() {
    let server = Server::start(Kind::Redis, &[]);
    let gate = patient(builder(&server, OnOutage::Closed));
    let load = Load::start(&gate, TASKS, KEYS);
    for _ in 0..FLUSHES {
        load.enter(0);
        server.cli(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
        load.decisions(TASKS).await;
    }
    let record = load.stop().await;
    assert_eq!(record.made_by(Source::Strict), record.heard.len() as u64, "{:?}", record.troubles);
    let tallies = Replay::of(BUCKETS).exactly(&cloned(record.strict()));
    assert!(tallies[0].passed >= 60 && tallies[0].refused > 100, "{tallies:?}");
    let loads = server.cli(&["INFO", "commandstats"]);
    let loads = loads.lines().find(|line| line.starts_with("cmdstat_script|load")).expect("it was loaded");
    let calls: usize = loads
        .split_once("calls=")
        .and_then(|(_, rest)| rest.split(',').next()?.parse().ok())
        .expect("how often");
    assert!(calls > FLUSHES, "it was loaded anew after each time: {loads}");
}

// --- lost for some nodes only

/// What one node decides while it hammers one key, by Redis and without it.
async fn hammered(gate: RedisGate, checks: usize) -> (Vec<Decision>, Vec<Decision>) {
    let (mut strict, mut local) = (Vec::new(), Vec::new());
    for _ in 0..checks {
        let decision = gate.check(&[Part::of(RuleId(0)).key("hot")]).await.expect("a request").decision;
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
async fn a_node_that_is_cut_off_alone_adds_at_most_its_share() {
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    let gate =
        |url: String| ready(RedisGate::builder(url).rule("user", Quota::per_second(100).burst(20)).nodes(2));
    let (there, cut_off) = (gate(server.url()), gate(proxy.url()));
    proxy.set(Mode::Refuse);
    let (there, cut_off) =
        tokio::join!(tokio::spawn(hammered(there, 600)), tokio::spawn(hammered(cut_off.clone(), 600)));
    let ((strict, _), (_, local)) = (there.expect("no panic"), cut_off.expect("no panic"));
    let (of_redis, of_share) =
        (20 + micros(&strict) * 100 / 1_000_000 + 1, micros(&local) * 50 / 1_000_000 + 1);
    assert!(admitted(&strict) <= of_redis, "{} of at most {of_redis}", admitted(&strict));
    assert!((1..=of_share).contains(&admitted(&local)), "{} of at most {of_share}", admitted(&local));
}
