//! The service with its counts in a real Redis: while it is there, before it is there, and when it is gone.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::binary::Binary;
use crate::http::post;

/// A Redis of this test's own, killed when it is dropped.
pub(crate) struct Redis {
    port: u16,
    child: Child,
}

impl Redis {
    pub(crate) fn start() -> Self {
        // A port that was free a moment ago; whoever is faster makes the server end, and another one is tried.
        for _ in 0..20 {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number");
            let mut child = Redis::command(free.port()).spawn().expect("redis-server");
            let is_there = until("a Redis", || {
                let ended = child.try_wait().expect("a child").is_some();
                (ended || TcpStream::connect(free).is_ok()).then_some(!ended)
            });
            if is_there {
                return Redis { port: free.port(), child };
            }
        }
        panic!("no port is free")
    }

    fn command(port: u16) -> Command {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.stdout(Stdio::null());
        command
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("a connection")
    }

    /// Sends a command as a line, and reads one line of the reply.
    pub(crate) fn say(&self, command: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("sent");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }

    /// Stops it, or lets it go on: `-STOP`, `-CONT`.
    pub(crate) fn signal(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill");
        assert!(told.success());
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill(); // it may be gone already
        let _ = self.child.wait();
    }

    pub(crate) fn restart(&mut self) {
        self.child = Redis::command(self.port).spawn().expect("redis-server");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Asks until there is an answer, but not for ever.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6_000 {
        if let Some(answer) = ask() {
            return answer;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}")
}

fn file(folder: &tempfile::TempDir, url: &str) -> String {
    let path = folder.path().join("tidegate.yaml");
    let rules = "rules:\n  - {name: user, key: user, missing: shared, quota: 5/day, when_lost: closed}\n  \
        - {name: open, match: {path: /open}, quota: 100/day, when_lost: open}\n  \
        - {name: watched, key: user, missing: shared, quota: 1/day, shadow: true}\n  \
        - {name: at work, match: {job: '*'}, key: job, quota: 1 at once lease 30s}\n";
    let file = format!("store: {{redis: {{url: \"{url}\", deadline: 10s}}}}\n{rules}");
    fs::write(&path, file).expect("written");
    path.to_str().expect("a name").to_owned()
}

fn check(server: &Binary, descriptors: Value) -> Value {
    post(server.http, "/v1/check", &json!({"descriptors": descriptors}))
}

/// Asks until Redis decides.
fn strictly(server: &Binary) {
    until("decided by Redis", || {
        let told = check(server, json!({"user": "nobody", "path": "/open"}));
        (told["source"] == json!("strict")).then_some(())
    });
}

#[test]
fn two_services_share_their_counts_and_every_verb_works() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let path = file(&folder, &redis.url());
    let [one, other] = [(); 2].map(|()| Binary::start(&["serve", "--config", &path]));
    strictly(&one);
    strictly(&other);
    let alice = json!({"descriptors": {"user": "alice"}});
    let told: Vec<_> =
        [&one, &other, &one].iter().map(|server| check(server, json!({"user": "alice"}))).collect();
    let left: Vec<_> = told.iter().map(|told| told["remaining"].clone()).collect();
    assert_eq!(left, [json!(4), json!(3), json!(2)]);
    assert_eq!((&told[0]["would_refuse"], &told[2]["would_refuse"]), (&Value::Null, &json!("watched")));
    assert_eq!(post(other.http, "/v1/peek", &alice)["remaining"], json!(1), "as if one more had passed");
    assert_eq!(post(other.http, "/v1/refund", &alice)["remaining"], json!(3));
    assert_eq!(post(one.http, "/v1/reset", &alice)["remaining"], json!(5));
    let explained = post(one.http, "/v1/explain", &alice);
    assert_eq!(explained["rules"][0]["limits"][0]["remaining"], json!(5), "{explained}");

    let job = json!({"descriptors": {"job": "x", "user": "bob"}});
    let held = post(one.http, "/v1/acquire", &job);
    assert_eq!(held["allowed"], json!(true), "{held}");
    assert_eq!(post(other.http, "/v1/acquire", &job)["outcome"], json!("busy"));
    assert_eq!(post(one.http, "/v1/release", &json!({"place": held["place"]})), json!({"released": true}));
    until("given back", || (post(other.http, "/v1/acquire", &job)["allowed"] == json!(true)).then_some(()));
}

#[test]
fn without_redis_each_rule_does_as_it_says_and_answers_keep_coming() {
    let (mut redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let server = Binary::start(&["serve", "--config", &file(&folder, &redis.url())]);
    strictly(&server);
    redis.kill();
    until("noticed", || {
        let told = check(&server, json!({"user": "alice"}));
        (told["allowed"] == json!(false) && told["source"] == json!("closed")).then_some(())
    });
    let named = post(server.http, "/v1/check", &json!({"rule": "open"}));
    assert_eq!((&named["allowed"], &named["source"]), (&json!(true), &json!("open")));
    redis.restart();
    strictly(&server);
}

#[test]
fn it_starts_before_redis_does() {
    let folder = tempfile::tempdir().expect("there is room");
    let server = Binary::start(&["serve", "--config", &file(&folder, "redis://127.0.0.1:1")]);
    let told = check(&server, json!({"user": "alice"}));
    assert_eq!((&told["allowed"], &told["source"]), (&json!(false), &json!("closed")));
}

/// A reload makes connections of its own, and nobody is decided on without Redis for it.
#[test]
fn a_reload_keeps_the_counts_in_redis() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().expect("there is room"));
    let path = file(&folder, &redis.url());
    let mut server = Binary::start(&["serve", "--config", &path]);
    strictly(&server);
    while !server.line().contains("redis-cli") {}
    assert_eq!(check(&server, json!({"user": "alice"}))["remaining"], json!(4));
    let more = fs::read_to_string(&path).expect("a file").replace("5/day", "7/day");
    fs::write(&path, more).expect("written");
    server.signal("-HUP");
    assert!(server.line().contains("1 changed"));
    let told = check(&server, json!({"user": "alice"}));
    assert_eq!((&told["remaining"], &told["source"]), (&json!(5), &json!("strict")), "2 of 7");
}
