//! `CL.THROTTLE` with its counts in a real Redis: the same answers, one count for all services, and what becomes of it
//! without Redis.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;

use crate::binary::Binary;
use crate::clients::{fits, rows};
use crate::grpc_client::{Asked, Client as Envoy, Descriptor, OK, OVER, Override, descriptor};
use crate::metrics::scrape;
use crate::shared::{Redis, until};

/// A client that writes lines and reads replies of both kinds: an array of numbers, or one line.
struct Client(BufReader<TcpStream>);

impl Client {
    fn of(server: &Binary) -> Self {
        Client(BufReader::new(server.connect()))
    }

    /// The reply, its numbers with spaces between them.
    fn say(&mut self, line: &str) -> String {
        self.send(line);
        self.reply()
    }

    fn send(&mut self, lines: &str) {
        self.0.get_mut().write_all(format!("{lines}\r\n").as_bytes()).expect("sent");
    }

    fn reply(&mut self) -> String {
        let first = self.line();
        match first.strip_prefix('*') {
            Some(count) => {
                let count: usize = count.parse().expect("a number of numbers");
                let numbers: Vec<String> = (0..count).map(|_| self.line()[1..].to_owned()).collect();
                numbers.join(" ")
            }
            None => first[1..].to_owned(),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).expect("a line") > 0, "the connection was closed");
        line.trim_end().to_owned()
    }
}

/// Without a rule: limits come with the call.
fn file(folder: &tempfile::TempDir, redis: &Redis, when_lost: &str) -> String {
    let path = folder.path().join(format!("{when_lost}.yaml"));
    let store = format!("{{url: \"{}\", deadline: 10s, when_lost: {when_lost}}}", redis.url());
    fs::write(&path, format!("store: {{redis: {store}}}\nrules: []\n")).expect("written");
    path.to_str().expect("a name").to_owned()
}

/// A service, from when Redis decides on.
fn serving(path: &str) -> Binary {
    let server = Binary::start(&["serve", "--config", path]);
    strictly(&server);
    server
}

fn strictly(server: &Binary) {
    let (mut client, before) = (Client::of(server), decided(server, "strict", "allowed"));
    until("decided by Redis", || {
        client.say("CL.THROTTLE nobody 0 1 1 0");
        (decided(server, "strict", "allowed") > before).then_some(())
    });
}

fn decided(server: &Binary, source: &str, outcome: &str) -> f64 {
    let name = format!("tidegate_throttle_decisions_total{{source=\"{source}\",outcome=\"{outcome}\"}}");
    scrape(server.admin).get(&name).copied().unwrap_or(0.0)
}

#[test]
fn the_answers_are_those_of_the_table() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let server = serving(&file(&folder, &redis, "closed"));
    let (mut client, before) = (Client::of(&server), decided(&server, "closed", "refused"));
    for (words, want) in rows() {
        let got = client.say(&format!("CL.THROTTLE {}", words.join(" ")));
        assert!(fits(&got, &want), "{words:?}: {got}, and not {want}");
    }
    assert_eq!(client.say("GCRA g 3 5 10"), "0 4 3 -1 2");
    assert_eq!(client.say("THROTTLE c 2 1 10"), "1 2 1 10 0");
    assert_eq!(decided(&server, "closed", "refused"), before, "all of it by Redis");
}

#[test]
fn keys_can_be_asked_about_and_deleted() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let path = file(&folder, &redis, "closed");
    let [one, other] = [(); 2].map(|()| serving(&path));
    let [mut one, mut other] = [&one, &other].map(Client::of);
    assert_eq!([one.say("TTL k"), one.say("TYPE k"), one.say("DEL k")], ["-2", "none", "0"]);
    assert_eq!(one.say("CL.THROTTLE k 4 1 3600 3"), "0 5 2 -1 10800");
    assert_eq!([other.say("TYPE k"), other.say("EXISTS k other k")], ["string", "2"]);
    assert!(fits(&other.say("TTL k"), "~10800"));
    let left: u64 = other.say("PTTL k").parse().expect("milliseconds");
    assert!((10_000_000..=10_800_000).contains(&left), "{left}");
    assert_eq!(other.say("DEL other k k"), "1");
    assert_eq!(one.say("CL.THROTTLE k 4 1 3600"), "0 5 4 -1 3600");
    assert_eq!(one.say("DBSIZE"), "0", "none of it is here");
}

/// Two services, eight clients, pipelines: of a hundred a hundred pass, each told another number of what is left.
#[test]
fn two_services_let_exactly_the_limit_pass() {
    const ASKED: usize = 60;
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let path = file(&folder, &redis, "closed");
    let servers = [(); 2].map(|()| serving(&path));
    let ask = |server: &Binary| {
        let mut client = Client::of(server);
        // Between them questions of other limits, so that replies in another order would be seen.
        let lines: Vec<String> = (0..ASKED)
            .map(|n| format!("CL.THROTTLE k 99 1 36000\r\nCL.THROTTLE k {} 1 36000 0", 1_000 + n))
            .collect();
        client.send(&lines.join("\r\n"));
        let replies = (0..ASKED).map(|n| {
            let reply = client.reply();
            let other = client.reply();
            assert!(other.starts_with(&format!("0 {} ", 1_001 + n)), "{other} after {n}");
            reply
        });
        replies.collect::<Vec<String>>()
    };
    let replies: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|client| &servers[client % 2])
            .map(|server| scope.spawn(move || ask(server)))
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("replies")).collect()
    });
    let mut left: Vec<u32> = replies
        .iter()
        .filter(|reply| reply.starts_with("0 100 "))
        .map(|reply| reply.split(' ').nth(2).and_then(|left| left.parse().ok()).expect("a number"))
        .collect();
    left.sort_unstable();
    assert_eq!(left, (0..100).collect::<Vec<u32>>());
    let refused = replies.iter().filter(|reply| reply.starts_with("1 100 0 ")).count();
    assert_eq!(refused, 8 * ASKED - 100);
}

#[test]
fn limits_that_envoy_sends_along_have_one_count_too() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let path = file(&folder, &redis, "closed");
    let servers = [(); 2].map(|()| serving(&path));
    let [mut one, mut other] = servers.each_ref().map(|server| Envoy::new(server.grpc));
    let limit = Some(Override { requests_per_unit: 3, unit: 4 }); // a day
    let asked = Asked {
        domain: "edge".into(),
        descriptors: vec![Descriptor { limit, ..descriptor("user=alice") }],
        ..Asked::default()
    };
    let ask = |client: &mut Envoy| client.ask(asked.clone()).expect("an answer").each();
    assert_eq!([ask(&mut one), ask(&mut other), ask(&mut one)].concat(), [(OK, 2), (OK, 1), (OK, 0)]);
    assert_eq!([ask(&mut other), ask(&mut one)].concat(), [(OVER, 0), (OVER, 0)]);
}

#[test]
fn a_service_that_is_started_again_goes_on_with_the_count() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let path = file(&folder, &redis, "closed");
    let first = serving(&path);
    assert_eq!(Client::of(&first).say("CL.THROTTLE k 4 1 3600 3"), "0 5 2 -1 10800");
    drop(first); // killed, with no word to anybody
    let again = serving(&path);
    let reply = Client::of(&again).say("CL.THROTTLE k 4 1 3600 2");
    assert!(reply.starts_with("0 5 0 -1 "), "{reply}");
    let reply = Client::of(&again).say("CL.THROTTLE k 4 1 3600");
    assert!(reply.starts_with("1 5 0 "), "{reply}");
}

/// Makes a list of every text in the Redis but the canary; how many there were.
const OVERWRITE: &str = "EVAL \"local n = 0 for _, k in ipairs(redis.call('keys', '*')) do \
    if redis.call('type', k).ok == 'string' and not k:find('canary') then \
    redis.call('del', k) redis.call('lpush', k, 'x') n = n + 1 end end return n\" 0";

/// Nobody else knows the names of the keys, so that is a store that cannot be relied on, and not a mistake of the caller.
#[test]
fn a_key_that_holds_something_else_is_as_good_as_lost_and_no_other_is() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let server = serving(&file(&folder, &redis, "closed"));
    let mut client = Client::of(&server);
    assert_eq!(client.say("CL.THROTTLE k 15 1 3600"), "0 16 15 -1 3600");
    assert_eq!(Client(BufReader::new(redis.connect())).say(OVERWRITE), "1");
    for _ in 0..20 {
        let told = client.say("CL.THROTTLE k 15 1 3600");
        assert!(fits(&told, "1 16 0 ~2 0"), "{told}");
    }
    assert_eq!(client.say("CL.THROTTLE other 15 1 3600"), "0 16 15 -1 3600");
    assert_eq!(scrape(server.admin)["tidegate_redis_breaker_open"], 0.0);
}

/// Kills Redis under a service that is told this, asks twice, and sees Redis decide again when it is back.
fn without_redis(when_lost: &str, outcome: &str, want: [&str; 2]) {
    let (mut redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let server = serving(&file(&folder, &redis, when_lost));
    let mut client = Client::of(&server);
    assert!(client.say("CL.THROTTLE k 15 1 3600 10").starts_with("0 16 6 "));
    redis.kill();
    until("noticed", || {
        client.say("CL.THROTTLE nobody 0 1 1 0");
        let counted = decided(&server, when_lost, "allowed") + decided(&server, when_lost, "refused");
        (counted > 0.0).then_some(())
    });
    let before = decided(&server, when_lost, outcome);
    for want in want {
        let got = client.say("CL.THROTTLE k 15 1 3600 1");
        assert!(fits(&got, want), "{when_lost}: {got}, and not {want}");
    }
    assert_eq!(decided(&server, when_lost, outcome), before + 2.0, "labelled and counted");
    for line in ["DEL k", "TTL k", "EXISTS k"] {
        let said = client.say(line);
        assert!(said.starts_with("ERR the store does not answer ("), "{line}: {said}");
    }
    let protection = scrape(server.admin)["tidegate_protection_ratio"];
    assert!((0.0..1.0).contains(&protection) || when_lost != "open", "{protection} is protected");
    redis.restart();
    strictly(&server);
    assert!(
        client.say("CL.THROTTLE k 15 1 3600").starts_with("0 16 15 "),
        "in a Redis that knows nothing any more"
    );
}

#[test]
fn without_redis_everything_passes_if_the_store_says_so() {
    without_redis("open", "allowed", ["0 16 16 -1 0", "0 16 16 -1 0"]);
}

#[test]
fn without_redis_everything_is_refused_if_the_store_says_so() {
    without_redis("closed", "refused", ["1 16 0 ~2 0", "1 16 0 ~2 0"]);
}

#[test]
fn without_redis_a_share_starts_empty_if_the_store_says_so() {
    without_redis("local", "refused", ["1 16 0 ~2 ~2", "1 16 0 ~2 ~2"]);
}

/// A limit that comes in quickly: in an outage this node gives its share of it, from the moment the outage began, and not
/// the burst that the key has left, or has used up, in Redis.
#[test]
fn an_outage_is_no_fresh_burst_and_its_states_are_dropped_when_it_is_over() {
    let (mut redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let path = folder.path().join("two.yaml");
    let store = format!("{{url: \"{}\", deadline: 10s, when_lost: local, nodes: 2}}", redis.url());
    fs::write(&path, format!("store: {{redis: {store}}}\nrules: []\n")).expect("written");
    let server = serving(path.to_str().expect("a name"));
    let mut client = Client::of(&server);
    redis.kill();
    until("noticed", || {
        client.say("CL.THROTTLE nobody 0 1 1 0");
        (decided(&server, "local", "refused") + decided(&server, "closed", "refused") > 0.0).then_some(())
    });
    // A thousand at once and a thousand an hour: half of it is one each 7.2 seconds, and none of the five hundred.
    let passed = (0..100).filter(|_| client.say("CL.THROTTLE k 999 1000 3600").starts_with("0 500 ")).count();
    assert!(passed < 50, "{passed} of 100 passed, which came in since");
    let slow = client.say("CL.THROTTLE slow 9 1 3600");
    assert!(fits(&slow, "1 5 0 ~2 ~2"), "{slow}: a share of five, and waits that are capped");
    let small = client.say("CL.THROTTLE small 0 1 3600");
    assert!(fits(&small, "1 1 0 ~2 0"), "{small}: half of one is closed");
    // Sixty thousand a minute: five hundred a second are this node's.
    until("its share comes in", || {
        client.say("CL.THROTTLE q 999 60000 60").starts_with("0 500 ").then_some(())
    });
    assert!(scrape(server.admin)["tidegate_throttle_keys"] >= 1.0);
    redis.restart();
    strictly(&server);
    assert!(client.say("CL.THROTTLE k 15 1 3600").starts_with("0 16 15 "), "by Redis");
    assert_eq!(scrape(server.admin)["tidegate_throttle_keys"], 0.0, "dropped with the outage");
}
