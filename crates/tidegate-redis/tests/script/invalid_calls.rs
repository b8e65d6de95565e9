//! # An invalid call returns an error that names the argument, and writes nothing

use redis::Connection;

use crate::server::Server;
use crate::wire::{RuleArgs, call, encode, script};

struct LoadedScript {
    connection: Connection,
    sha: String,
    _server: Server,
}

impl LoadedScript {
    fn start() -> Self {
        let server = Server::start();
        let (connection, sha) = server.load(&script());
        LoadedScript { connection, sha, _server: server }
    }

    #[track_caller]
    fn refuses(&mut self, operation: &str, args: &[RuleArgs], id: Option<&[u8]>, sentence: &str) {
        let reply: Result<Vec<u64>, _> = call(&self.sha, operation, args, id).query(&mut self.connection);
        let error = reply.expect_err(sentence);
        assert_eq!((error.code(), error.detail()), (Some("ERR"), Some(sentence)));
        let keys: u64 = redis::cmd("DBSIZE").query(&mut self.connection).expect("a reply");
        assert_eq!(keys, 0, "written by an invalid request: {sentence}");
    }
}

fn args(cost: &str, letter: u8, numbers: &[u64]) -> RuleArgs {
    RuleArgs { key: "k".to_owned(), cost: cost.to_owned(), rule: encode(letter, numbers) }
}

/// A second rule, on another key.
fn second_args(cost: &str, letter: u8, numbers: &[u64]) -> RuleArgs {
    RuleArgs { key: "k2".to_owned(), ..args(cost, letter, numbers) }
}

#[test]
fn every_wrong_argument_is_named_with_its_value_and_the_expected_one() {
    let mut script = LoadedScript::start();
    let bucket = |cost| args(cost, b'b', &[1, 1, 5]);
    let arguments = "at least one key; as arguments an operation, a cost and a rule for each key, and for permits and leases an id";
    script.refuses("check", &[], None, &format!("tidegate: 0 keys and 1 arguments; expected {arguments}"));
    let names = "check, peek, take, force, refund, rollback, reset, renew, release, lease, return";
    for wrong in ["c", "chec", "checks", "check, peek"] {
        let expected = if wrong.contains(' ') {
            "wire version 1, as in 1:check"
        } else {
            &format!("one of {names} after 1:")
        };
        let sentence = format!("tidegate: operation '1:{wrong}'; expected {expected}");
        script.refuses(wrong, &[bucket("1")], None, &sentence);
    }
    let costs = "an integer from 0 to 4294967295";
    for wrong in ["", "-1", "1.5", "nan", "inf", "4294967296", "many"] {
        script.refuses(
            "check",
            &[bucket(wrong)],
            None,
            &format!("tidegate: cost 1 is '{wrong}'; expected {costs}"),
        );
        let second = second_args(wrong, b'b', &[1, 1, 5]);
        let sentence = format!("tidegate: cost 2 is '{wrong}'; expected {costs}");
        script.refuses("check", &[bucket("1"), second], None, &sentence);
    }
    let same = "the same cost for every rule of a take";
    let sentence = format!("tidegate: cost 2 is '2'; expected {same}");
    script.refuses("take", &[bucket("1"), second_args("2", b'b', &[1, 1, 5])], None, &sentence);
    let twice = "tidegate: key 2 is 'k', a duplicate; expected each key once";
    script.refuses("check", &[bucket("1"), bucket("1")], None, twice);
}

#[test]
fn every_wrong_rule_is_named() {
    let mut script = LoadedScript::start();
    let letters = "one of the letters b, q, g, s, w, h, l, c, n and its numbers";
    script.refuses(
        "check",
        &[args("1", b'z', &[])],
        None,
        &format!("tidegate: rule 1 is 'z'; expected {letters}"),
    );
    let long = "tidegate: rule 1 is 'b' and 16 bytes; expected 24 bytes after the letter, 8 for each number";
    script.refuses("check", &[args("1", b'b', &[1, 1])], None, long);
    for (letter, numbers, wrong) in [
        ('b', &[0, 1, 5][..], "p 0; expected p from 1 to 9007199254740991"),
        ('b', &[1, 0, 5], "q 0; expected q from 1 to 9007199254740991"),
        ('b', &[1, 1, 0], "burst 0; expected burst from 1 to 9007199254740991"),
        (
            'b',
            &[1 << 40, 1, 1 << 20],
            "a product of 1152921504606846976; expected p · burst, or period · cells, below 2^53",
        ),
        ('q', &[1, 1, 0, 1], "full 0; expected full from 1 to 9007199254740991"),
        ('g', &[0, 1, 1], "rate 0; expected rate from 1 to 9007199254740991"),
        ('s', &[1, 0, 0, 1], "period 0; expected period from 1 to 9007199254740991"),
        ('w', &[1, 5, 5], "offset 5; expected an offset below the period"),
        ('h', &[0, 5], "limit 0; expected limit from 1 to 9007199254740991"),
        ('l', &[16_385, 5], "limit 16385; expected limit from 1 to 16384"),
        ('c', &[1, 5_000, 1_001, 0], "cells 1001; expected cells from 1 to 1000"),
        ('c', &[1, 5, 5, 3], "oldest 3; expected oldest from 0 to 2"),
        ('n', &[1, 0], "lease 0; expected lease from 1 to 9007199254740991"),
    ] {
        let byte = u8::try_from(letter).expect("an ASCII letter");
        let sentence = format!("tidegate: rule 1 is '{letter}' with {wrong}");
        script.refuses("check", &[args("1", byte, numbers)], Some(b"an id of 16 byte"), &sentence);
    }
}

#[test]
fn permits_need_an_id() {
    let mut script = LoadedScript::start();
    let permits = args("1", b'n', &[1, 5]);
    let id = "the id of the permits or the grant as the last argument";
    for operation in ["check", "take", "force", "refund", "renew", "release"] {
        let sentence = format!("tidegate: rule 1 and operation {operation} without an id; expected {id}");
        script.refuses(operation, std::slice::from_ref(&permits), None, &sentence);
    }
    for (id, shown) in [
        (String::new(), String::new()),
        ("i".repeat(15), "i".repeat(15)),
        ("i".repeat(65), "i".repeat(40) + "…"),
    ] {
        let bytes = id.len();
        let sentence = format!("tidegate: id '{shown}' of {bytes} bytes; expected 16 unique bytes");
        script.refuses("check", std::slice::from_ref(&permits), Some(id.as_bytes()), &sentence);
    }
}

#[test]
fn a_key_with_unknown_content_is_not_changed() {
    let mut script = LoadedScript::start();
    let args = [args("1", b'b', &[1, 1, 5])];
    for unknown in ["hello", "", "1"] {
        redis::cmd("SET").arg("k").arg(unknown).exec(&mut script.connection).expect("a reply");
        let reply: Result<Vec<u64>, _> =
            call(&script.sha, "check", &args, None).query(&mut script.connection);
        let error = reply.expect_err("no state");
        let bytes = unknown.len();
        let sentence = format!(
            "tidegate: key 1, 'k', holds {bytes} bytes of unknown content; expected a value written by this script"
        );
        assert_eq!(error.detail(), Some(&*sentence));
        let kept: String = redis::cmd("GET").arg("k").query(&mut script.connection).expect("a reply");
        assert_eq!(kept, unknown);
    }
}
