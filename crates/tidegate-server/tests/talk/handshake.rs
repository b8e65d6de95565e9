//! How clients begin: word for word what a Redis would say, where clients look.

use tidegate_server::resp::{Account, Service};

use crate::support::{Talk, shown};

const OPEN: &str = "$6 server $5 redis $7 version $5 7.2.4 $5 proto";

#[test]
fn hello_changes_the_dialect() {
    let talk = &mut Talk::new();
    let rest = "$2 id :1 $4 mode $10 standalone $4 role $6 master $7 modules *0";
    assert_eq!(talk.say("HELLO"), format!("*14 {OPEN} :2 {rest}"));
    assert_eq!(talk.say("HELLO 3"), format!("%7 {OPEN} :3 {rest}"));
    assert_eq!(talk.say("CLIENT GETNAME"), "_");
    assert_eq!(talk.say("HELLO 2 SETNAME me"), format!("*14 {OPEN} :2 {rest}"));
    assert_eq!(talk.say("CLIENT GETNAME"), "$2 me");
}

#[test]
fn hello_that_is_wrong_changes_nothing() {
    let talk = &mut Talk::new();
    let wrong = [
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO 1", "-NOPROTO unsupported protocol version"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 3 SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'"),
        ("HELLO 3 AUTH default", "-ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 3 AUTH foo x", "-WRONGPASS invalid username-password pair or user is disabled."),
    ];
    for (line, expected) in wrong {
        assert_eq!(talk.say(line), expected);
        assert_eq!(talk.say("CLIENT GETNAME"), "$-1", "still the first dialect after {line}");
    }
    assert!(talk.say("HELLO 3 AUTH default anything").starts_with("%7"));
}

fn with_passwords(service: Service<tidegate::ManualClock>) -> Service<tidegate::ManualClock> {
    service.accounts([Account::password("sesame"), Account::new("alice", "wonder")])
}

#[test]
fn strangers_may_only_say_who_they_are() {
    let stranger = "-NOAUTH Authentication required.";
    let talk = &mut Talk::with(with_passwords);
    for line in [
        "PING",
        "CL.THROTTLE k 1 1 1",
        "cl.throttle k 1 1 1",
        "TG.CHECK user a",
        "CLIENT ID",
        "MULTI",
        "INFO",
    ] {
        assert_eq!(talk.say(line), stranger, "{line}");
    }
    assert!(talk.say("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    for line in
        ["AUTH wonder", "AUTH alice sesame", "AUTH bob wonder", "AUTH default sesam", "HELLO 3 AUTH alice x"]
    {
        assert_eq!(talk.say(line), wrong, "{line}");
        assert_eq!(talk.say("PING"), stranger);
    }
    assert_eq!(talk.say("AUTH a b c"), "-ERR syntax error");
    assert_eq!(talk.say("AUTH sesame"), "+OK");
    assert_eq!(talk.say("PING"), "+PONG");
    assert_eq!(talk.say("RESET"), "+RESET");
    assert_eq!(talk.say("PING"), stranger);
    assert!(talk.say("HELLO 3 AUTH alice wonder SETNAME me").starts_with("%7"));
    assert!(talk.say("CLIENT INFO").contains(" user=alice "));
    assert_eq!(talk.say("AUTH default sesame"), "+OK");
}

#[test]
fn strangers_may_not_say_much() {
    let said = |talk: &mut Talk, bytes: &[u8]| talk.exchange(bytes).1;
    let much = [b"*16\r\n".as_slice(), &[b"$4096\r\n".as_slice(), &[b'x'; 4096], b"\r\n"].concat().repeat(3)]
        .concat();
    assert!(!said(&mut Talk::with(with_passwords), b"*17\r\n"));
    assert!(said(&mut Talk::with(with_passwords), &much));
    assert!(!said(&mut Talk::with(with_passwords), &[much.as_slice(), b"$4096\r\n"].concat()));
    let known = &mut Talk::with(with_passwords);
    assert!(said(known, b"AUTH sesame\r\n*17\r\n"));
}

#[test]
fn without_passwords_everybody_is_the_default_user() {
    let talk = &mut Talk::new();
    assert!(talk.say("AUTH x").starts_with("-ERR AUTH <password> called without any password configured"));
    assert_eq!(talk.say("AUTH default whatever"), "+OK");
    assert_eq!(talk.say("AUTH alice x"), "-WRONGPASS invalid username-password pair or user is disabled.");
}

#[test]
fn small_talk() {
    let talk = &mut Talk::new();
    let rows = [
        ("PING", "+PONG"),
        ("ping hi", "$2 hi"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
        ("ECHO hi", "$2 hi"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command"),
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("SELECT x", "-ERR value is not an integer or out of range"),
        ("CLIENT SETNAME me", "+OK"),
        ("CLIENT GETNAME", "$2 me"),
        ("CLIENT SETINFO LIB-NAME x", "+OK"),
        ("CLIENT ID", ":1"),
        ("CLIENT NO-EVICT on", "+OK"),
        ("CLIENT NO-TOUCH off", "+OK"),
        ("CLIENT NO-EVICT foo", "-ERR syntax error"),
        ("CLIENT TRACKING off", "+OK"),
        ("CLIENT KILL ID 999", ":0"),
        ("CLIENT KILL 1.1.1.1:1", "-ERR No such client"),
        ("CLIENT REPLY on", "+OK"),
        ("CLIENT", "-ERR wrong number of arguments for 'client' command"),
        ("CLIENT ID x", "-ERR wrong number of arguments for 'client|id' command"),
        ("CLIENT FOO", "-ERR unknown subcommand 'FOO'. Try CLIENT HELP."),
        (
            "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none",
            "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.",
        ),
        ("COMMAND", "*0"),
        ("COMMAND COUNT", ":0"),
        ("COMMAND DOCS", "*0"),
        ("COMMAND INFO get", "*0"),
        ("CONFIG GET nothing", "*0"),
        ("CONFIG GET save", "*2 $4 save $0 "),
        ("CONFIG FOO", "-ERR unknown subcommand 'FOO'. Try CONFIG HELP."),
        ("CLUSTER INFO", "-ERR This instance has cluster support disabled"),
        ("CLUSTER SLOTS", "-ERR This instance has cluster support disabled"),
        ("READONLY", "-ERR This instance has cluster support disabled"),
        ("MODULE LIST", "*0"),
        ("INFO nothing", "$0 "),
        ("foo", "-ERR unknown command 'foo', with args beginning with:"),
        ("foo a b", "-ERR unknown command 'foo', with args beginning with: 'a' 'b'"),
        ("RESET", "+RESET"),
        ("CLIENT GETNAME", "$-1"),
    ];
    for (line, expected) in rows {
        assert_eq!(talk.say(line).trim_end(), expected.trim_end(), "{line}");
    }
    assert!(talk.say("INFO server").contains("redis_version:7.2.4 redis_mode:standalone"));
    assert_eq!(talk.send(&[b"CLIENT", b"SETNAME", b"a b"]).split(' ').next(), Some("-ERR"));
    assert_eq!(talk.send(&[b"foo\r\n+OK"]), "-ERR unknown command 'foo  +OK', with args beginning with:");
}

#[test]
fn the_third_dialect_has_maps_and_texts() {
    let talk = &mut Talk::new();
    assert!(talk.say("HELLO 3").starts_with("%7"));
    assert_eq!(talk.say("CONFIG GET nothing"), "%0");
    assert_eq!(talk.say("COMMAND DOCS"), "%0");
    assert_eq!(talk.say("INFO nothing"), "=4 txt:");
    assert!(talk.say("CLIENT INFO").contains("txt:id=1 addr=test "));
    assert_eq!(talk.say("CL.THROTTLE k 15 30 60"), "*5 :0 :16 :15 :-1 :2");
}

#[test]
fn quit_is_the_end() {
    let (reply, is_open) = Talk::new().exchange(b"QUIT\r\nPING\r\n");
    assert_eq!((shown(&reply).as_str(), is_open), ("+OK", false));
}

#[test]
fn everything_in_one_flight() {
    let flight = b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n$8\r\nLIB-NAME\r\n$1\r\nx\r\nPING\r\n*0\r\n\r\nPING\r\n";
    let (reply, _) = Talk::new().exchange(flight);
    assert!(shown(&reply).ends_with("*0 +OK +PONG +PONG"));
}

#[test]
fn transactions_answer_together() {
    let talk = &mut Talk::new();
    let rows = [
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "+OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("CL.THROTTLE k 15 30 60", "+QUEUED"),
        ("SELECT 99", "+QUEUED"),
        ("TG.CHECK user alice", "+QUEUED"),
        (
            "EXEC",
            "*3 *5 :0 :16 :15 :-1 :2 -ERR DB index is out of range *8 :1 $7 allowed :0 :2 :1 :100000 $4 user $6 strict",
        ),
        ("MULTI", "+OK"),
        ("EXEC", "*0"),
        ("MULTI", "+OK"),
        ("CL.THROTTLE k 15 30 60", "+QUEUED"),
        ("DISCARD", "+OK"),
        ("CL.THROTTLE k 15 30 60 0", "*5 :0 :16 :15 :-1 :2"),
        ("WATCH k", "+OK"),
        ("MULTI", "+OK"),
        ("WATCH k", "-ERR WATCH inside MULTI is not allowed"),
        ("foo", "-ERR unknown command 'foo', with args beginning with:"),
        ("PING", "+QUEUED"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("RESET", "+RESET"),
        ("PING", "+PONG"),
    ];
    for (line, expected) in rows {
        assert_eq!(talk.say(line).trim_end(), expected, "{line}");
    }
}

#[test]
fn a_transaction_is_bounded() {
    let talk = &mut Talk::new();
    assert_eq!(talk.say("MULTI"), "+OK");
    let long = vec![b'x'; 4096];
    let replies: Vec<String> = (0..300).map(|_| talk.send(&[b"ECHO", &long])).collect();
    assert_eq!(replies[0], "+QUEUED");
    assert!(replies[299].starts_with("-ERR the transaction takes more than 1048576 bytes"));
    assert!(talk.say("EXEC").starts_with("-EXECABORT"));
}
