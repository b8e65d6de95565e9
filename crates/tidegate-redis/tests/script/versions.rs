//! # Two wire versions on one Redis
//!
//! During a rolling upgrade nodes of two versions share a Redis. Each version has keys of its own, so neither reads the values
//! of the other, and each admits one limit. Scripts refuse calls of another version. `previous.lua` is the script before
//! version 1; version 2 is this one under another number.

use redis::Connection;
use tidegate_core::{Micros, Rule};

use crate::mock_clock::MockClockScript;
use crate::random_walk::{RULES, Random};
use crate::reference::Reference;
use crate::script_files::of_version;
use crate::server::{Kind, Server};
use crate::wire::{Reply, RuleArgs, encode, script};

const PREVIOUS: &str = include_str!("previous.lua");
const NOON: Micros = Micros::new(1_700_000_000_000_000);
/// Of tenant "" and key "alice".
const TAG: &str = "bqmI7nN6aND7HXu3YEDoBA";

/// How a version names keys and operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Previous,
    One,
    Two,
}

impl Version {
    fn script(self) -> String {
        match self {
            Version::Previous => PREVIOUS.to_owned(),
            Version::One => script(),
            Version::Two => of_version("2"),
        }
    }

    fn key(self, rule: &str) -> String {
        match self {
            Version::Previous => format!("tg:{{{TAG}}}{rule}"),
            Version::One => format!("tg1{{{TAG}}}{rule}"),
            Version::Two => format!("tg2{{{TAG}}}{rule}"),
        }
    }

    fn operation(self, name: &str) -> String {
        let letters =
            ["check", "peek", "take", "force", "refund", "reset", "renew", "release", "lease", "return"];
        let letter = letters.iter().position(|letter| *letter == name).expect("an operation");
        match self {
            Version::Previous => "cptfrxnlku"[letter..=letter].to_owned(),
            Version::One => format!("1:{name}"),
            Version::Two => format!("2:{name}"),
        }
    }
}

/// One node: the script of a version on a Redis that others use too.
struct Node {
    version: Version,
    sha: String,
}

impl Node {
    fn join(version: Version, mock: &mut MockClockScript) -> Self {
        mock.load(&version.script());
        Node { version, sha: mock.sha.clone() }
    }

    fn call_at(
        &self,
        mock: &mut MockClockScript,
        at: Micros,
        operation: &str,
        args: &RuleArgs,
        id: Option<&[u8]>,
    ) -> Reply {
        let () =
            redis::cmd("SET").arg("test:now").arg(at.get()).query(&mut mock.connection).expect("a reply");
        let numbers = self.send(&mut mock.connection, operation, args, id).expect("the script replies");
        Reply::decode(&numbers)
    }

    fn send(
        &self,
        connection: &mut Connection,
        operation: &str,
        args: &RuleArgs,
        id: Option<&[u8]>,
    ) -> redis::RedisResult<Vec<u64>> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(1).arg(self.version.key(&args.key)).arg(self.version.operation(operation));
        cmd.arg(&args.cost).arg(&args.rule).arg(id).query(connection)
    }
}

/// Both nodes send requests for the same key and rule. Each gets the replies that the core gives without the other node.
fn assert_versions_are_independent(versions: [Version; 2]) {
    let mut mock = MockClockScript::of(Kind::Redis);
    let nodes = versions.map(|version| Node::join(version, &mut mock));
    let mut random = Random(0x0DD);
    for text in RULES {
        let rule: Rule = text.parse().expect("a rule");
        let mut cores = [0, 1].map(|_| Reference::new(&[rule], false));
        let limit = u32::try_from(crate::scripted::limit(&rule)).unwrap_or(u32::MAX);
        let mut at = NOON;
        for _ in 0..60 {
            let of = random.one_of(&[0, 1]);
            let operation =
                random.one_of(&["check", "check", "check", "peek", "take", "force", "refund", "reset"]);
            let cost = random.one_of(&[0, 1, 1, 2, limit / 2 + 1, limit]);
            at = at.plus(random.one_of(&[0, 0, 1, 1_000, 300_000]));
            let want = cores[of].call(at, operation, &[cost]);
            let got = nodes[of].call_at(&mut mock, at, operation, &RuleArgs::rate(text, cost, &rule), None);
            assert_eq!(
                got, want,
                "{:?} beside {versions:?}: {operation} {cost} of {text} at {at}",
                versions[of]
            );
        }
    }
}

#[test]
fn nodes_of_the_previous_and_this_version_count_independently() {
    assert_versions_are_independent([Version::Previous, Version::One]);
}

#[test]
fn nodes_of_this_and_the_next_version_count_independently() {
    assert_versions_are_independent([Version::One, Version::Two]);
}

/// What `WIRE.md` states: at most one limit per version, of rates, permits and leases.
#[test]
fn at_most_one_limit_per_version_is_admitted() {
    for versions in [[Version::Previous, Version::One], [Version::One, Version::Two]] {
        let mut mock = MockClockScript::of(Kind::Redis);
        let nodes = versions.map(|version| Node::join(version, &mut mock));
        let bucket =
            RuleArgs { key: "user".into(), cost: "1".into(), rule: encode(b'b', &[3_600_000_000, 1, 5]) };
        let permits = RuleArgs::concurrency("work", 1, 3, 30_000_000);
        let lease = RuleArgs { key: "api".into(), cost: "1 5 1000000 0".into(), ..bucket.clone() };
        let mut admitted = [[0, 0, 0]; 2];
        for round in 0..20_u8 {
            for (of, node) in nodes.iter().enumerate() {
                let id = [round; 16];
                let mut outcome = |operation, args: &RuleArgs, id| {
                    u64::from(node.call_at(&mut mock, NOON, operation, args, id).rules[0].outcome == 0)
                };
                admitted[of][0] += outcome("check", &bucket, None);
                admitted[of][1] += outcome("check", &permits, Some(&id[..]));
                admitted[of][2] += outcome("lease", &lease, Some(&id[..]));
            }
        }
        assert_eq!(admitted, [[5, 3, 5]; 2], "{versions:?}");
    }
}

#[test]
fn a_script_refuses_the_calls_of_another_version_and_writes_nothing() {
    let server = Server::start();
    let args = RuleArgs { key: "user".into(), cost: "1".into(), rule: encode(b'b', &[1_000, 1, 5]) };
    for (script, caller, found) in [
        (Version::Previous, Version::One, "tidegate: verb '1:check'; expected one of the letters"),
        (Version::One, Version::Previous, "tidegate: operation 'c'; expected wire version 1, as in 1:check"),
        (Version::One, Version::Two, "tidegate: operation '2:check'; expected wire version 1, as in 1:check"),
        (Version::Two, Version::One, "tidegate: operation '1:check'; expected wire version"),
    ] {
        let (mut connection, sha) = server.load(&script.script());
        let error =
            Node { version: caller, sha }.send(&mut connection, "check", &args, None).expect_err(found);
        assert!(error.detail().is_some_and(|detail| detail.starts_with(found)), "{error}");
        let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).expect("a reply");
        assert_eq!(keys, 0, "{caller:?} of {script:?}");
    }
}

/// Rules of one key share a slot in a cluster, whatever the version, and the name is no longer than before.
#[test]
fn the_version_is_before_the_hash_tag_and_costs_no_byte() {
    let names = [Version::Previous, Version::One].map(|version| version.key("abc"));
    assert_eq!(names.each_ref().map(String::len), [30, 30]);
    assert!(names.iter().all(|name| name.find('{') == Some(3) && name.find('}') == Some(26)));
}
