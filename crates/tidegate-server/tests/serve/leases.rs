//! The service leases from a real Redis: who decided, what comes back, and that nothing passes twice.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::binary::Binary;
use crate::grpc_client::{Client, OK};
use crate::http::{connect, exchange, post};
use crate::metrics::scrape;
use crate::shared::{Redis, until};

/// A service with its counts in a Redis, and its file.
pub(crate) struct Served {
    pub(crate) binary: Binary,
    path: PathBuf,
    url: String,
    _folder: tempfile::TempDir,
}

impl Served {
    /// One that has been seen to limit. The deadline is for tests on a busy machine.
    pub(crate) fn start(redis: &Redis, rules: &str) -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let (path, url) = (folder.path().join("tidegate.yaml"), redis.url());
        fs::write(&path, file(&url, rules)).expect("written");
        let mut binary =
            Binary::start(&["serve", "--notice", "0", "--config", path.to_str().expect("a name")]);
        while !binary.line().contains("redis-cli") {} // the last of what it says at first
        let served = Served { binary, path, url, _folder: folder };
        until("limits are enforced", || {
            let (_, _, body) = exchange(&mut connect(served.binary.http), "GET /readyz", "");
            body.contains("ok").then_some(())
        });
        served
    }

    fn reload(&mut self, rules: &str) -> String {
        fs::write(&self.path, file(&self.url, rules)).expect("written");
        self.binary.signal("-HUP");
        self.binary.line()
    }

    pub(crate) fn post(&self, verb: &str, body: &Value) -> Value {
        post(self.binary.http, verb, body)
    }

    fn check(&self, user: &str) -> Value {
        self.post("/v1/check", &json!({"descriptors": {"user": user}}))
    }

    /// Reads the metrics after a request that costs more than a grant, so that Redis decides it.
    fn told_after_a_check_in_redis(&self, user: &str) -> HashMap<String, f64> {
        let reply = self.post("/v1/check", &json!({"descriptors": {"user": user}, "cost": 600}));
        assert_eq!(reply["allowed"], json!(true), "{reply}");
        self.told()
    }

    /// How many of so many pass.
    fn passed(&self, user: &str, times: usize) -> usize {
        (0..times).filter(|_| self.check(user)["allowed"] == json!(true)).count()
    }

    fn told(&self) -> HashMap<String, f64> {
        scrape(self.binary.admin)
    }

    fn tokens(&self, what: &str) -> f64 {
        self.told()[&format!("tidegate_lease_tokens_total{{what=\"{what}\"}}")]
    }

    /// What Redis would still give, whatever is held here.
    fn left(&self, user: &str) -> u64 {
        let told = self.post("/v1/explain", &json!({"descriptors": {"user": user}}));
        told["rules"][0]["limits"][0]["remaining"].as_u64().expect("a number")
    }
}

fn file(url: &str, rules: &str) -> String {
    format!("store: {{redis: {{url: \"{url}\", deadline: 10s}}}}\nrules:\n{rules}")
}

fn rule(quota: &str, lease: &str) -> String {
    format!("  - {{name: user, key: user, missing: shared, quota: {quota}, lease: {lease}}}\n")
}

const LONG: &str = "{ttl: 10min}";

/// Sends a line, and reads the values of the answer.
pub(crate) fn resp(stream: &mut TcpStream, line: &str) -> Vec<String> {
    stream.write_all(format!("{line}\r\n").as_bytes()).expect("sent");
    let mut reader = BufReader::new(stream);
    let mut next = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    };
    let first = next();
    let Some(count) = first.strip_prefix('*') else { return vec![first] };
    let mut values = Vec::new();
    for _ in 0..count.parse::<usize>().expect("a count") {
        let value = next();
        values.push(if value.starts_with('$') { next() } else { value });
    }
    values
}

#[test]
fn decisions_are_made_from_lots_and_every_protocol_says_so() {
    let redis = Redis::start();
    let served = Served::start(&redis, &rule("1000/day", LONG));
    assert_eq!(served.passed("alice", 40), 40);
    let told = served.check("alice");
    assert_eq!((&told["source"], &told["limit"]), (&json!("lease"), &json!(1_000)), "{told}");
    let by_redis = resp(&mut served.binary.connect(), "TG.CHECK user alice");
    assert_eq!((&*by_redis[0], &*by_redis[7]), (":1", "lease"), "{by_redis:?}");
    assert_eq!(Client::new(served.binary.grpc).check(&["user=alice"]).overall_code, OK);
    let each = Client::new(served.binary.grpc).check(&["user=alice", "user=bob"]);
    assert_eq!(each.each().len(), 2);

    let told = served.told();
    let leased = told["tidegate_decisions_total{rule=\"user\",source=\"lease\",outcome=\"allowed\"}"];
    assert_eq!(leased, 45.0, "{told:?}");
    assert_eq!(
        told["tidegate_lease_requests_total{outcome=\"allowed\"}"], 44.0,
        "two of them were one request"
    );
    let (asked, granted) = (told["tidegate_lease_commands_total"], served.tokens("granted"));
    assert!((1.0..16.0).contains(&asked), "45 decisions, {asked} calls");
    assert!(granted >= 45.0, "{granted}");
    let left = served.left("alice") + served.left("bob");
    assert_eq!((2_000 - left).to_string(), granted.to_string(), "the rest is still there");
}

/// Two services on one key, of which one reads other rules meanwhile: what it held comes back, and nothing passes twice.
#[test]
fn a_reload_gives_back_what_was_unspent_and_the_new_limit_is_kept_to() {
    let redis = Redis::start();
    let mut one = Served::start(&redis, &rule("400/day", LONG));
    let other = Served::start(&redis, &rule("500/day", LONG));
    let mut passed = one.passed("alice", 100) + other.passed("alice", 60);
    assert_eq!(passed, 160);
    let granted = one.tokens("granted");
    assert!(one.reload(&rule("500/day", LONG)).contains("1 changed"));
    until("what was unspent came back", || (one.tokens("returned") >= granted - 100.0).then_some(()));
    assert!(one.tokens("granted") >= granted, "numbers go on");
    passed += one.passed("alice", 600);
    other.post("/v1/check", &json!({"descriptors": {"user": "nobody"}}));
    passed += other.passed("alice", 600);
    assert_eq!(passed, 500);
    let refused = other.check("alice");
    assert_eq!((&refused["allowed"], &refused["source"]), (&json!(false), &json!("lease")), "{refused}");
    assert!(refused["wait"].as_f64().is_some_and(|wait| wait > 0.0), "{refused}");
}

#[test]
fn who_ends_gives_everything_back() {
    let redis = Redis::start();
    let mut one = Served::start(&redis, &rule("1000/day", LONG));
    assert_eq!(one.passed("alice", 100) + one.passed("bob", 30), 130);
    assert!(one.left("alice") < 900, "some is held");
    one.binary.signal("-TERM");
    assert_eq!(one.binary.child.wait().expect("an end").code(), Some(0));
    let other = Served::start(&redis, &rule("1000/day", "off"));
    assert_eq!((other.left("alice"), other.left("bob")), (900, 970));
    assert_eq!(other.check("alice")["source"], json!("strict"));
}

/// The connections of the new rules must not end with the thread that has answered the administrator.
#[test]
fn who_ends_after_an_administrator_has_reloaded_gives_everything_back() {
    let redis = Redis::start();
    let mut one = Served::start(&redis, &rule("500/day", LONG));
    fs::write(&one.path, file(&one.url, &rule("1000/day", LONG))).expect("written");
    post(one.binary.admin, "/admin/reload", &json!({}));
    assert_eq!(one.passed("alice", 100), 100);
    assert!(one.left("alice") < 900, "some is held");
    one.binary.signal("-TERM");
    assert_eq!(one.binary.child.wait().expect("an end").code(), Some(0));
    let other = Served::start(&redis, &rule("1000/day", "off"));
    assert_eq!(other.left("alice"), 900);
}

#[test]
fn all_verbs_know_what_is_held_here() {
    let redis = Redis::start();
    let served = Served::start(&redis, &rule("100/day", LONG));
    let alice = json!({"descriptors": {"user": "alice"}});
    assert_eq!(served.passed("alice", 200), 100);
    assert_eq!(served.post("/v1/peek", &alice)["allowed"], json!(false));
    served.post("/v1/refund", &alice);
    assert_eq!(served.passed("alice", 9), 1, "the one that came back");
    let reset = served.post("/v1/reset", &alice);
    assert_eq!((&reset["remaining"], &reset["source"]), (&json!(100), &json!("strict")));
    assert_eq!(served.passed("alice", 200), 100);
}

/// Rules that stay strict beside one that is leased, places among them, and one that only watches.
#[test]
fn leased_and_strict_rules_stand_or_fall_together() {
    let redis = Redis::start();
    let more = "  - {name: everybody, quota: 1000/day, lease: on}\n  \
        - {name: user, key: user, missing: shared, quota: 2/day, when_lost: closed}\n  \
        - {name: watched, key: user, missing: shared, quota: 1000/day, lease: on, shadow: true}\n  \
        - {name: at work, match: {job: '*'}, key: job, quota: 1 at once lease 30s}\n";
    let mut served = Served::start(&redis, more);
    assert_eq!([served.passed("alice", 5), served.passed("bob", 5)], [2, 2]);
    let job = json!({"descriptors": {"user": "carol", "job": "x"}});
    let held = served.post("/v1/acquire", &job);
    assert_eq!(held["allowed"], json!(true), "{held}");
    assert_eq!(served.post("/v1/acquire", &job)["outcome"], json!("busy"));
    served.binary.signal("-TERM");
    assert_eq!(served.binary.child.wait().expect("an end").code(), Some(0));
    let other = Served::start(&redis, more);
    // What was taken for a request that was refused, and meanwhile told to be spent, comes back with time.
    assert!((988..=995).contains(&other.left("nobody")), "five have passed, seven were refused");
}

#[test]
fn metrics_of_a_real_redis() {
    let mut redis = Redis::start();
    let mut served = Served::start(&redis, &rule("1000/day", "{ttl: 20ms}"));
    for _ in 0..5 {
        assert_eq!(served.passed("alice", 20), 20);
    }
    let tokens = |told: &HashMap<String, f64>, what: &str| {
        told[&format!("tidegate_lease_tokens_total{{what=\"{what}\"}}")]
    };
    let told = until("all that is not spent came back or ended", || {
        let told = served.told();
        let spent = told["tidegate_lease_requests_total{outcome=\"allowed\"}"];
        let gone = spent + tokens(&told, "returned") + tokens(&told, "expired");
        (tokens(&told, "granted") == gone).then_some(told)
    });
    assert_eq!(tokens(&told, "stranded"), 0.0);
    let decided = "tidegate_decisions_total{rule=\"user\",source=\"lease\",outcome=\"allowed\"}";
    assert_eq!(
        told[decided] + told["tidegate_decisions_total{rule=\"user\",source=\"strict\",outcome=\"allowed\"}"],
        100.0
    );
    let (commands, leased) = (told["tidegate_redis_commands_total"], told["tidegate_lease_commands_total"]);
    assert!(
        leased > 0.0 && commands >= leased + 6.0,
        "with the canary's on two connections: {commands} {leased}"
    );
    let rows = [
        ("tidegate_redis_connections", 2.0),
        ("tidegate_redis_connections_wanted", 2.0),
        ("tidegate_redis_breaker_open", 0.0),
        ("tidegate_redis_breaker_openings_total", 0.0),
        ("tidegate_redis_canary_enforced", 1.0),
        ("tidegate_protection_ratio", 1.0),
    ];
    for (name, value) in rows {
        assert_eq!(told.get(name), Some(&value), "{name}");
    }
    let told = served.told_after_a_check_in_redis("carol");
    let waited = told["tidegate_redis_duration_seconds_count"];
    assert!(waited > 0.0 && waited <= 101.0, "requests that waited for Redis: {waited}");
    assert_eq!(told["tidegate_redis_duration_seconds_bucket{le=\"+Inf\"}"], waited);
    let lines = told.len();

    redis.kill();
    until("it is seen that Redis is gone", || {
        let _ = served.check("bob");
        let told = served.told();
        let is_seen =
            told["tidegate_redis_breaker_open"] == 1.0 && told["tidegate_redis_canary_enforced"] == 0.0;
        let stranded = tokens(&told, "stranded") > 0.0;
        (is_seen && stranded && told["tidegate_redis_connections"] == 0.0).then_some(())
    });
    let told = served.told();
    assert!(told["tidegate_redis_breaker_openings_total"] >= 1.0);
    assert_eq!(told["tidegate_protection_ratio"], 0.0, "the canary says that nothing is enforced");
    assert!(told.len() <= lines + 4, "no more lines, but for sources that have come up");
    assert!(served.reload(&rule("900/day", "off")).contains("1 changed"));
    let after = served.told();
    for name in ["tidegate_redis_breaker_openings_total", "tidegate_redis_commands_total"] {
        assert!(after[name] >= told[name], "{name} only grows");
    }
    assert!(tokens(&after, "stranded") >= tokens(&told, "stranded"));
}

// === lent to clients ===

const LENT: &str = "  - {name: user, key: user, missing: shared, quota: 100/day, lease: {stock: 80}}\n  \
    - {name: window, key: user, missing: shared, quota: fixed_window 100/day}\n  \
    - {name: log, key: user, missing: shared, quota: sliding_log 100/day}\n";

#[test]
fn a_grant_of_a_bucket_comes_back_through_any_service_and_once() {
    let redis = Redis::start();
    let [one, other] = [(); 2].map(|()| Served::start(&redis, LENT));
    let (mut here, mut there) = (one.binary.connect(), other.binary.connect());
    let granted = resp(&mut here, "TG.LEASE user alice 60 TTL 600000");
    assert_eq!((granted.len(), &*granted[0], &*granted[1]), (12, ":1", "allowed"), "{granted:?}");
    assert_eq!((&*granted[9], &*granted[10], &*granted[11]), (":60", ":60", ":590625000"), "{granted:?}");
    let more = resp(&mut there, "TG.LEASE user alice 60 TTL 600000");
    assert_eq!(more[9], ":20", "no more than the stock is out: {more:?}");
    let none = resp(&mut there, "TG.LEASE user alice 60 TTL 600000");
    assert_eq!((&*none[0], &*none[1], &*none[8], &*none[9]), (":0", "refused", "", ":0"), "{none:?}");
    assert!(none[2].trim_start_matches(':').parse::<u64>().is_ok_and(|wait| wait > 0), "{none:?}");
    assert_eq!(resp(&mut here, "TG.PEEK user alice COST 0")[4], ":20", "what is lent is charged");
    for server in [&mut there, &mut here] {
        let back = resp(server, &format!("TG.RETURN user alice {} 45", granted[8]));
        assert_eq!((back.len(), &*back[4]), (8, ":65"), "once, wherever it is said: {back:?}");
    }
    let told = other.told();
    assert_eq!(told["tidegate_loan_tokens_total{what=\"granted\"}"], 20.0);
    let error = resp(&mut here, "TG.LEASE log alice 1");
    assert!(error[0].starts_with("-ERR rule \"log\" cannot be lent of"), "{error:?}");
}

#[test]
fn a_grant_of_a_window_comes_back_once_and_http_lends_the_same() {
    let redis = Redis::start();
    let served = Served::start(&redis, LENT);
    let ask = json!({"rule": "window", "key": "alice", "amount": 70, "ttl": 3});
    let lent = served.post("/v1/lease", &ask);
    assert_eq!(
        (&lent["allowed"], &lent["amount"], &lent["ready"]),
        (&json!(true), &json!(70), &json!(70)),
        "{lent}"
    );
    assert!(lent["lasts"].as_f64().is_some_and(|lasts| lasts > 0.0 && lasts < 3.0), "{lent}");
    assert_eq!(served.post("/v1/lease", &ask)["amount"], json!(30), "what is left");
    let back = json!({"rule": "window", "key": "alice", "grant": lent["grant"], "unspent": 999});
    assert_eq!(served.post("/v1/return", &back)["remaining"], json!(70), "no more than was granted");
    assert_eq!(served.post("/v1/return", &back)["remaining"], json!(70), "and once");
    for (wrong, said) in [
        (json!({"rule": "window", "key": "alice", "amount": 0}), "`amount` is 0"),
        (json!({"rule": "window", "key": "alice", "amount": 1, "ttl": 0.001}), "seconds from 0.02 to 3600"),
        (json!({"rule": "nobody", "key": "alice", "amount": 1}), "there is no rule"),
        (json!({"rule": "log", "key": "alice", "amount": 1}), "cannot be lent of"),
    ] {
        let (status, _, problem) =
            exchange(&mut connect(served.binary.http), "POST /v1/lease", &wrong.to_string());
        assert!(status == 400 && problem.contains(said), "{problem}");
    }
}

/// Redis is gone: nothing is lent, and that is said.
#[test]
fn without_redis_nothing_is_lent() {
    let mut redis = Redis::start();
    let served = Served::start(&redis, LENT);
    redis.kill();
    let told = resp(&mut served.binary.connect(), "TG.LEASE user alice 60");
    assert!(told[0].starts_with("-ERR the store does not answer"), "{told:?}");
}
