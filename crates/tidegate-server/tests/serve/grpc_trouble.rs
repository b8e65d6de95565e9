//! gRPC when something is wrong: with the caller, with what it sends, with Redis, or with us.

use std::io::{Read, Write};
use std::time::Duration;

use tonic::Code;

use crate::binary::Binary;
use crate::grpc_client::{
    Asked, Client, Entry, LIMIT, Name, Number, OK, OVER, Reflected, Wondered, descriptor, edge,
};
use crate::http::connect;
use crate::running::{Running, settings};
use crate::shared::{Redis, until};

fn serving(file: &str) -> (Binary, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("tidegate.yaml");
    std::fs::write(&path, file).expect("written");
    (Binary::start(&["serve", "--config", path.to_str().expect("a name")]), folder)
}

const RULES: &str = "rules: [{name: user, match: {user: '*'}, key: user, quota: 5/h}]\n";

#[test]
fn only_who_knows_the_token_is_answered_except_about_health() {
    let token = format!("listeners: {{grpc: {{address: '127.0.0.1:0', auth: {{token: sesame}}}}}}\n{RULES}");
    let (server, _folder) = serving(&token);
    let mut stranger = Client::new(server.grpc);
    let asked = || edge(vec![descriptor("user=alice")]);
    assert_eq!(stranger.ask(asked()).expect_err("no token").code(), Code::Unauthenticated);
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let refused = stranger.stream::<_, Reflected>(path, vec![Wondered::default()]).expect_err("no token");
    assert_eq!(refused.code(), Code::Unauthenticated);
    let told: Number = stranger.call("/grpc.health.v1.Health/Check", Name::default()).expect("an answer");
    assert_eq!(told.number, 1);
    let mut wrong = Client::new(server.grpc).token("sesam");
    assert_eq!(wrong.ask(asked()).expect_err("another token").code(), Code::Unauthenticated);
    let mut friend = Client::new(server.grpc).token("sesame");
    assert_eq!(friend.ask(asked()).expect("an answer").each(), [(OK, 4)]);
}

#[test]
fn a_socket_in_the_file_system_is_answered_too() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("grpc.sock");
    let running = Running::listening_at(settings(|_| ()), None, Some(path.clone()));
    let mut there = Client::at(format!("unix:{}", path.display()));
    assert_eq!(there.check(&["key=alice"]).each(), [(OK, 9)]);
    drop(there);
    drop(running);
    assert!(!path.exists(), "it is removed in the end");
}

/// A hundred thousand descriptors are more than is read; a thousand are read, and more than are decided on.
#[test]
fn too_much_is_refused_and_others_are_still_answered() {
    let (server, _folder) = serving(RULES);
    let mut client = Client::new(server.grpc);
    let many = |many| edge(vec![descriptor("user=alice"); many]);
    let wrong = [
        (many(100_000), Code::ResourceExhausted, "is too long; send at most 65536"),
        (many(1_025), Code::InvalidArgument, "more than 1024 items"),
        (many(1_024), Code::InvalidArgument, "1024 descriptors"),
        (
            edge(vec![crate::grpc_client::Descriptor::default(); 30_000]),
            Code::InvalidArgument,
            "more than 1024 items",
        ),
    ];
    for (asked, code, sentence) in wrong {
        let status = client.ask(asked).expect_err(sentence);
        assert!(status.code() == code && status.message().contains(sentence), "{status}");
        assert_eq!(Client::new(server.grpc).check(&["user=bob"]).statuses.len(), 1);
    }
    let text = "x".repeat(4_096);
    let told = client.check(&[&format!("user={text}")]);
    assert_eq!(told.each(), [(OK, 4)], "a long key is a key");
}

#[test]
fn what_is_no_message_is_said() {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Wrong {
        #[prost(uint64, tag = "1")]
        domain: u64,
        #[prost(bytes = "vec", tag = "2")]
        descriptors: Vec<u8>,
    }
    let (server, _folder) = serving(RULES);
    let mut client = Client::new(server.grpc);
    let wrong = [
        (Wrong { domain: 1, descriptors: vec![] }, "another kind"),
        (Wrong { domain: 0, descriptors: vec![0x0a, 9, 1] }, "in the middle of a field"),
        (Wrong { domain: 0, descriptors: vec![0x0f] }, "no number or kind"),
        (Wrong { domain: 0, descriptors: vec![0x0a, 3, 0x0a, 1, 0xff] }, "not UTF-8"),
        (Wrong { domain: 0, descriptors: vec![0xff; 11] }, "more than 64 bits"),
    ];
    for (asked, sentence) in wrong {
        let status = client.call::<_, crate::grpc_client::Told>(LIMIT, asked).expect_err(sentence);
        assert!(status.code() == Code::InvalidArgument && status.message().contains(sentence), "{status}");
    }
}

/// Whoever speaks something else is let go, and whoever is answered stays so.
#[test]
fn other_protocols_are_let_go() {
    let (server, _folder) = serving(RULES);
    let mut client = Client::new(server.grpc);
    for said in
        [b"GET / HTTP/1.1\r\nhost: test\r\n\r\n".as_slice(), b"*1\r\n$4\r\nPING\r\n\r\n\r\n\r\n\r\n\r\n"]
    {
        let mut stream = connect(server.grpc);
        stream.write_all(said).expect("sent");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest); // a farewell, or none
        assert_eq!(client.check(&["user=alice"]).overall_code, OK);
    }
}

/// Redis is not there, and is never an error: each rule does what it says.
#[test]
fn without_redis_each_rule_does_as_it_says() {
    let rules = "store: {redis: {url: 'redis://127.0.0.1:1', deadline: 100ms}}\nrules:\n  \
        - {name: closed, match: {closed: '*'}, quota: 5/day, when_lost: closed}\n  \
        - {name: open, match: {open: '*'}, quota: 5/day, when_lost: open}\n  \
        - {name: local, match: {local: '*'}, quota: 1000000/s, when_lost: local}\n  \
        - {name: never, match: {never: '*'}, deny: {never: '*'}, quota: 5/day}\n";
    let (server, _folder) = serving(rules);
    let mut client = Client::new(server.grpc);
    let is_degraded = |told: &crate::grpc_client::Told| {
        let metadata = told.dynamic_metadata.as_ref()?.fields["tidegate"].struct_value.as_ref()?;
        metadata.fields.get("degraded")?.bool_value
    };
    for (descriptor, code) in [("closed=1", OVER), ("open=1", OK), ("local=1", OK)] {
        let told = client.check(&[descriptor]);
        assert_eq!((told.overall_code, is_degraded(&told)), (code, Some(true)), "{descriptor}");
    }
    let told = client.check(&["never=1", "open=1"]);
    assert_eq!((told.overall_code, told.each()[0].0), (OVER, OVER), "beside one that is refused anyway");
}

/// All or nothing in Redis, too; and when it is gone, an answer.
#[test]
fn counts_in_redis_are_charged_together_and_lost_without_an_error() {
    let mut redis = Redis::start();
    let rules = format!(
        "store: {{redis: {{url: '{}', deadline: 10s}}}}\nrules:\n  \
         - {{name: user, match: {{user: '*'}}, key: user, quota: 5/day, when_lost: closed}}\n  \
         - {{name: path, match: {{path: '*'}}, key: path, quota: 2/day, when_lost: open}}\n",
        redis.url()
    );
    let (server, _folder) = serving(&rules);
    let mut client = Client::new(server.grpc);
    until("decided by Redis", || {
        client.check(&["user=x", "path=x"]).dynamic_metadata.is_none().then_some(())
    });
    assert_eq!(client.check(&["user=alice", "path=/"]).each(), [(OK, 4), (OK, 1)]);
    assert_eq!(client.check(&["user=alice", "path=/"]).each(), [(OK, 3), (OK, 0)]);
    let refused = client.check(&["user=alice", "path=/"]);
    assert_eq!((refused.overall_code, refused.each()[1]), (OVER, (OVER, 0)));
    assert_eq!(
        client.check(&["user=alice", "nobody=asks"]).each(),
        [(OK, 2), (OK, 0)],
        "nothing was charged"
    );
    redis.kill();
    until("noticed", || {
        let told = client.check(&["user=alice"]);
        (told.overall_code == OVER && told.dynamic_metadata.is_some()).then_some(())
    });
    assert_eq!(client.check(&["path=/"]).overall_code, OK, "open");
    assert_eq!(client.check(&["path=/", "user=alice"]).overall_code, OVER, "closed");
}

#[test]
fn headers_tell_what_is_left_if_the_file_says_so() {
    let file = format!("listeners: {{grpc: {{address: '127.0.0.1:0', headers: ratelimit}}}}\n{RULES}");
    let (server, _folder) = serving(&file);
    let mut client = Client::new(server.grpc);
    let headers = |headers: &[(&str, &str)]| -> Vec<Entry> {
        headers.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() }).collect()
    };
    let told =
        client.ask(Asked { hits_addend: 5, ..edge(vec![descriptor("user=alice"), descriptor("x=y")]) });
    let expected = [("RateLimit-Limit", "5"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "3600")];
    assert_eq!(told.expect("an answer").response_headers_to_add, headers(&expected));
    let told = client.check(&["user=alice"]).response_headers_to_add;
    let names: Vec<_> = told.iter().map(|header| header.key.as_str()).collect();
    assert_eq!(names, ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"]);
    assert_eq!(client.check(&["x=y"]).response_headers_to_add, []);
}

/// Who is silent for long is told to go, and asks by another connection: no call is lost.
#[test]
fn who_is_silent_is_let_go_and_the_next_call_is_answered() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("grpc.sock");
    let _running =
        Running::listening_at(settings(|it| it.idle = Duration::from_millis(40)), None, Some(path.clone()));
    let mut watching = Client::at(format!("unix:{}", path.display()));
    let stream = watching.stream::<_, Number>("/grpc.health.v1.Health/Watch", vec![Name::default()]);
    let mut stream = stream.expect("a stream");
    let mut next = || watching.runtime.block_on(stream.message()).expect("a message").map(|told| told.number);
    assert_eq!([next(), next()], [Some(1), None], "that says nothing of the service");
    assert_eq!(watching.check(&["key=alice"]).each(), [(OK, 9)]);
}

/// A call that has begun when the end comes is answered; a call that never ends does not hold it up for ever.
#[test]
fn calls_under_way_are_answered_at_the_end() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("grpc.sock");
    let brief = settings(|it| it.drain = Duration::from_millis(200));
    let mut running = Running::listening_at(brief, None, Some(path.clone()));
    let mut client = Client::at(format!("unix:{}", path.display()));
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let (ask, questions) = tokio::sync::mpsc::channel(1);
    let mut answers = client.converse::<Wondered, Reflected>(path, questions).expect("a stream");
    let asked = Wondered { services: Some(String::new()), ..Wondered::default() };
    ask.try_send(asked).expect("there is room");
    let first = client.runtime.block_on(answers.message()).expect("a message");
    assert!(first.is_some_and(|told| told.services.is_some()));
    running.tell_to_end();
    assert_eq!(client.runtime.block_on(answers.message()).expect("an end"), None, "it ended well");
}
