//! What the service says of itself, for people and for programs.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::http::{connect, exchange, post, serving};
use crate::metrics::scrape;
use crate::running::PATIENCE;
use crate::shared::{Redis, until};

/// A service whose every line has to be an object. Killed when it is dropped.
struct Logging {
    child: Child,
    lines: Receiver<Value>,
}

impl Logging {
    fn start(command: &mut Command) -> Self {
        for protocol in ["HTTP", "GRPC", "RESP", "ADMIN"] {
            command.env(format!("TIDEGATE_{protocol}"), "127.0.0.1:0");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary");
        let (tell, lines) = channel();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("a pipe")), Box::new(child.stderr.take().expect("a pipe"))];
        for stream in streams {
            let tell = tell.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let event = serde_json::from_str(&line).unwrap_or_else(|_| json!({"no object": line}));
                    let _ = tell.send(event); // the test may be over
                }
            });
        }
        Logging { child, lines }
    }

    /// The next event whose message has this in it. Each before it is as it should be, too.
    fn event(&self, wanted: &str) -> Value {
        loop {
            let event = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event: {wanted}"));
            let text =
                |name: &str| event[name].as_str().unwrap_or_else(|| panic!("no {name}: {event}")).to_owned();
            let (time, level, message) = (text("time"), text("level"), text("message"));
            assert!(time.len() == 24 && time.ends_with('Z'), "{event}");
            assert!(["info", "warn", "error"].contains(&level.as_str()), "{event}");
            assert!(!event.to_string().contains("sesame"), "a secret: {event}");
            if message.contains(wanted) {
                return event;
            }
        }
    }

    fn address(&self, protocol: &str) -> SocketAddr {
        let event = self.event(&format!("{protocol} on "));
        assert_eq!((&event["protocol"], &event["level"]), (&json!(protocol), &json!("info")));
        event["address"].as_str().and_then(|address| address.parse().ok()).expect("an address")
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments);
    command
}

const RULES: &str = "rules: [{name: user, match: {user: '*'}, key: user, quota: 5/h}]\n";

#[test]
fn every_line_is_an_object_from_the_beginning_to_the_end() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    let text = format!(
        "listeners: {{http: {{address: '127.0.0.1:0', auth: {{token: \"${{TOKEN}}\"}}}}, resp: {{address: '127.0.0.1:0', \
         auth: {{password: \"${{TOKEN}}\"}}}}}}\n{RULES}"
    );
    std::fs::write(&path, &text).expect("written");
    let file = path.to_str().expect("a name");
    let mut command = tidegate(&["serve", "--log-format", "json", "--config", file]);
    let mut server = Logging::start(command.env("TOKEN", "sesame"));

    let start = server.event("1 rule of");
    assert_eq!((&start["file"], &start["rules"]), (&json!(file), &json!(["user"])));
    let [_, _, _, admin] = ["http", "grpc", "resp", "admin"].map(|protocol| server.address(protocol));

    let key = "a\nb\"}\u{1b}";
    let _ = post(admin, "/admin/block", &json!({"rule": "user", "key": key, "for": 600}));
    let blocked = server.event("blocked for 600 s by an administrator");
    assert_eq!((&blocked["rule"], &blocked["key"]), (&json!("user"), &json!([key])));
    let _ = post(admin, "/admin/unblock", &json!({"rule": "user", "key": key}));
    assert_eq!(server.event("unblocked")["key"], json!([key]));
    let _ = post(admin, "/admin/reset", &json!({"rule": "user", "key": key}));
    assert_eq!(server.event("reset by an administrator")["key"], json!([key]));

    std::fs::write(&path, format!("{text}  - {{name: b, qouta: 5/day}}\n")).expect("written");
    let rejected = server.event("is not in force");
    assert_eq!((&rejected["level"], &rejected["file"]), (&json!("warn"), &json!(file)));
    assert!(rejected["detail"].as_str().is_some_and(|detail| detail.lines().count() > 2), "{rejected}");
    std::fs::write(&path, text.replace("5/h", "6/h")).expect("written");
    assert_eq!(server.event("is in force")["changes"], "0 kept, 1 changed, 0 added, 0 removed");

    let told = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().expect("kill");
    assert!(told.success());
    assert_eq!(server.event("told to end")["level"], "info");
    let _ = server.event("ended");
    assert!(server.child.wait().expect("an end").success());
}

#[test]
fn who_cannot_start_says_so_in_one_line_for_each() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("bad.yaml");
    std::fs::write(&path, "rules:\n  - {name: a, quota: 5/x}\n  - {name: b, qouta: 5/s}\n").expect("written");
    let mut command = tidegate(&["serve", "--config", path.to_str().expect("a name")]);
    let server = Logging::start(command.env("TIDEGATE_LOG_FORMAT", "json"));
    let event = server.event("cannot be used");
    let faults = event["faults"].as_array().expect("a list");
    assert!(event["level"] == "error" && faults.len() >= 2, "{event}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let server = Logging::start(&mut tidegate(&["serve", "--log-format", "json", "--http", &address]));
    assert_eq!(server.event("in use by another program")["level"], "error");
}

#[test]
fn a_format_that_is_none_is_a_sentence_and_exit_code_2() {
    let output = tidegate(&["serve", "--log-format", "xml"]).output().expect("the binary");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("'xml'") && said.contains("text, json"), "{said}");
}

#[test]
fn in_text_a_key_cannot_make_a_line_of_its_own() {
    let (mut server, _file) = serving(RULES);
    let key = "x\ntidegate: ended";
    let (status, ..) = exchange(
        &mut connect(server.admin),
        "POST /admin/block",
        &json!({"rule": "user", "key": key, "for": 9}).to_string(),
    );
    assert_eq!(status, 200);
    let line = std::iter::repeat_with(|| server.line()).find(|line| line.contains("administrator"));
    assert_eq!(
        line.as_deref(),
        Some(
            "tidegate: key [\"x\\ntidegate: ended\"] of rule \"user\" blocked for 9 s by an administrator\n"
        )
    );
}

#[test]
fn what_goes_on_for_long_is_said_when_it_begins_and_when_it_ends() {
    let mut redis = Redis::start();
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    std::fs::write(&path, format!("store: {{redis: {{url: '{}'}}}}\n{RULES}", redis.url())).expect("written");
    let file = path.to_str().expect("a name");
    let server = Logging::start(&mut tidegate(&[
        "serve",
        "--log-format",
        "json",
        "--connections",
        "1",
        "--config",
        file,
    ]));
    let address = server.address("http");
    redis.kill();
    let lost = server.event("Redis unavailable (");
    assert!(lost["level"] == "warn" && lost["why"].is_string(), "{lost}");
    assert!(
        lost["message"].as_str().is_some_and(|it| it.ends_with("each rule follows its `when_lost` setting"))
    );
    redis.restart();
    let over = server.event("Redis available again: 0 decisions were made without it");
    assert!(over["level"] == "info" && over["seconds"].is_number(), "{over}");

    let _first = TcpStream::connect(address).expect("a connection");
    let _others: Vec<_> = (0..3).map(|_| TcpStream::connect(address).expect("a connection")).collect();
    let turned_away = server.event("turned away");
    assert_eq!((&turned_away["protocol"], &turned_away["level"]), (&json!("http"), &json!("warn")));
}

/// A service whose counts are in this Redis, and where it answers HTTP and administration.
fn with_redis(redis: &Redis, settings: &str) -> (Logging, [SocketAddr; 2], tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    let store =
        format!("store: {{redis: {{url: '{}', when_lost: closed, {settings}}}}}\n{RULES}", redis.url());
    std::fs::write(&path, store).expect("written");
    let file = path.to_str().expect("a name");
    let server = Logging::start(&mut tidegate(&["serve", "--log-format", "json", "--config", file]));
    let [http, _, _, admin] = ["http", "grpc", "resp", "admin"].map(|protocol| server.address(protocol));
    (server, [http, admin], folder)
}

/// The source of the decision on a request.
fn source(http: SocketAddr) -> Value {
    post(http, "/v1/check", &json!({"descriptors": {"user": "alice"}}))["source"].clone()
}

fn fallbacks(admin: SocketAddr) -> f64 {
    let all = scrape(admin);
    let counts = all.iter().filter(|(name, _)| name.starts_with("tidegate_fallback_decisions_total{reason="));
    let counts: Vec<f64> = counts.map(|(_, count)| *count).collect();
    assert_eq!(counts.len(), 5, "every reason is there from the beginning");
    counts.iter().sum()
}

impl Logging {
    /// Reads on until the lines have told of so many decisions without Redis, and not of more.
    fn decisions(&self, wanted: f64) -> Vec<Value> {
        let (mut told, mut events) = (0.0, Vec::new());
        while told < wanted {
            let event = self.event("made without");
            told += event["decisions"].as_f64().unwrap_or_else(|| panic!("no number: {event}"));
            events.push(event);
        }
        assert_eq!(told, wanted, "{events:?}");
        events
    }
}

#[test]
fn the_end_of_an_outage_is_logged_with_the_number_of_decisions_without_redis() {
    let mut redis = Redis::start();
    let (server, [http, admin], _folder) = with_redis(&redis, "deadline: 10s");
    assert_eq!((source(http), fallbacks(admin)), (json!("strict"), 0.0));
    redis.kill();
    for _ in 0..30 {
        assert_eq!(source(http), json!("closed"));
    }
    let began = server.event("Redis unavailable (");
    assert_eq!(began["level"], "warn");
    assert_eq!(fallbacks(admin), 30.0);
    redis.restart();
    let over = server.event("Redis available again: ");
    let told = over["decisions"].as_u64().expect("a number");
    assert!(over["level"] == "info" && (1..=30).contains(&told), "{over}");
    until("decided by Redis", || (source(http) == json!("strict")).then_some(()));
}

/// The canary asks every five seconds and need not see it; where it does, the end of that outage tells the number.
#[test]
fn a_single_missed_deadline_is_logged_and_counted() {
    let redis = Redis::start();
    let (server, [http, admin], _folder) = with_redis(&redis, "deadline: 100ms");
    until("decided by Redis", || (source(http) == json!("strict")).then_some(()));
    let before = fallbacks(admin);
    if before > 0.0 {
        server.decisions(before); // on a busy machine
    }
    redis.say("CLIENT PAUSE 300 ALL");
    assert_eq!(source(http), json!("closed"));
    let missed = fallbacks(admin) - before;
    assert!(missed >= 1.0);
    let events = server.decisions(missed);
    assert!(
        events.iter().all(|event| event["level"] == "warn" || event["seconds"].is_number()),
        "{events:?}"
    );
}

/// Its standard output is a pipe that nobody reads, as of a pager.
#[test]
fn a_log_that_nobody_reads_blocks_neither_requests_nor_the_end() {
    let (mut server, _file) = serving("rules: [{name: user, key: user, missing: shared, quota: 10/s}]");
    let key = "k".repeat(1_000);
    for number in 0..2_000 {
        let blocked = json!({"rule": "user", "key": format!("{number}{key}"), "for": 60});
        post(server.admin, "/admin/block", &blocked);
    }
    assert!(scrape(server.admin)["tidegate_log_lines_dropped_total"] > 100.0);
    server.signal("-TERM");
    assert_eq!(server.child.wait().expect("an end").code(), Some(0));
}
