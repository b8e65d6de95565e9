//! `TG.…`: rules by name, several of them at once, and places.

use crate::support::Talk;

#[test]
fn a_check_tells_the_whole_decision() {
    let talk = &mut Talk::new();
    let rows = [
        ("TG.CHECK user alice", ":1 $7 allowed :0 :2 :1 :100000 $4 user $6 strict"),
        ("TG.PEEK user alice", ":1 $7 allowed :0 :2 :0 :200000 $4 user $6 strict"),
        ("TG.CHECK user alice COST 1", ":1 $7 allowed :0 :2 :0 :200000 $4 user $6 strict"),
        ("TG.CHECK user alice", ":0 $7 refused :100000 :2 :0 :200000 $4 user $6 strict"),
        ("TG.CHECK user alice COST 3", ":0 $5 never :0 :2 :0 :200000 $4 user $6 strict"),
        ("tg.check user alice cost 0", ":1 $7 allowed :0 :2 :0 :200000 $4 user $6 strict"),
        ("TG.REFUND user alice", ":1 $7 allowed :0 :2 :1 :100000 $4 user $6 strict"),
        ("TG.RESET user alice", ":1 $7 allowed :0 :2 :2 :0 $4 user $6 strict"),
        ("TG.CHECK even k", ":1 $7 allowed :0 :6 :5 :100000 $4 even $6 strict"),
        ("TG.CHECK even k", ":1 $7 delayed :100000 :6 :4 :200000 $4 even $6 strict"),
    ];
    for (line, expected) in rows {
        assert_eq!(talk.say(line), format!("*8 {expected}"), "{line}");
    }
    talk.advance(100);
    assert_eq!(talk.say("TG.CHECK user alice COST 2"), "*8 :1 $7 allowed :0 :2 :0 :200000 $4 user $6 strict");
}

#[test]
fn several_rules_stand_or_fall_together() {
    let talk = &mut Talk::new();
    let both = "TG.CHECK everybody all COST 10 AND user alice AND daily acme";
    assert!(talk.say(both).starts_with("*8 :1 $7 allowed"));
    assert!(talk.say(both).starts_with("*8 :1 $7 allowed"));
    assert!(talk.say(both).contains(":0 $7 refused :100000 :2 :0 :200000 $4 user"));
    assert!(talk.say("TG.PEEK everybody all COST 0").contains(":100 :80 ")); // the third was not charged
    let five = "TG.CHECK user a AND user b AND user c AND user d AND user e";
    assert!(talk.say(five).starts_with("*8 :1"));
    assert!(talk.say(five).starts_with("*8 :1"));
    assert!(talk.say(five).starts_with("*8 :0"));
}

#[test]
fn keys_and_names_may_be_called_anything() {
    let talk = &mut Talk::new();
    assert!(talk.say("TG.CHECK user AND AND user COST COST 2").starts_with("*8 :1"));
    assert!(talk.send(&[b"TG.CHECK", b"user", b"\xff\0"]).starts_with("*8 :1"));
}

#[test]
fn what_is_no_request_is_an_error() {
    let talk = &mut Talk::new();
    let syntax = "-ERR syntax error: rule key [COST n] [AND rule key [COST n]] ...";
    let rows = [
        ("TG.CHECK user", "-ERR wrong number of arguments for 'tg.check' command".to_owned()),
        ("TG.CHECK nobody k", "-ERR there is no rule 'nobody'; the configuration has the names".to_owned()),
        ("TG.CHECK user k COST", "-ERR COST is ''; use a whole number from 0 to 4294967295".to_owned()),
        ("TG.CHECK user k COST -1", "-ERR COST is '-1'; use a whole number from 0 to 4294967295".to_owned()),
        ("TG.CHECK user k 5", format!("{syntax}; '5' is neither COST nor AND")),
        ("TG.CHECK user k AND", format!("{syntax}; 'AND' is neither COST nor AND")),
        ("TG.CHECK user k AND user", format!("{syntax}; a rule is followed by a key")),
        (
            "TG.CHECK user k AND user k",
            "-ERR the request names rule number 1 twice for one key; name it once, with the sum of the costs"
                .to_owned(),
        ),
        ("TG.RENEW x", "-ERR this is no id of a place; use the 32 letters that came with it".to_owned()),
        ("TG.ACQUIRE user k", "-ERR no rule of the request is about places at work; use TG.CHECK".to_owned()),
    ];
    for (line, expected) in rows {
        assert_eq!(talk.say(line), expected, "{line}");
    }
    let nothing = "-ERR a cost of 0 holds no place; use TG.PEEK, or another COST";
    assert_eq!(talk.send(&[b"TG.ACQUIRE", b"at work", b"k", b"COST", b"0"]), nothing);
    let places =
        "-ERR rule 'at work' is about places at work; use TG.ACQUIRE, and TG.RELEASE when the work is done";
    for verb in ["TG.CHECK", "TG.REFUND", "TG.RESET"] {
        assert_eq!(talk.send(&[verb.as_bytes(), b"at work", b"k"]), places);
    }
}

/// Asks for a place; its id, if there was one.
fn acquire(talk: &mut Talk, rule: &[u8]) -> Option<String> {
    let reply = talk.send(&[b"TG.ACQUIRE", rule, b"k"]);
    let is_allowed = reply.starts_with("*10 :1 $7 allowed");
    assert!(is_allowed || (reply.starts_with("*10 :0 $4 busy :0 ") && reply.ends_with("$0  :0")), "{reply}");
    let id = reply.split(' ').rev().nth(1)?.to_owned();
    is_allowed.then_some(id)
}

#[test]
fn a_place_is_free_again_when_it_is_released() {
    let talk = &mut Talk::new();
    let [first, second] = [0, 1].map(|_| acquire(talk, b"at work").expect("a place"));
    assert_ne!(first, second);
    assert_eq!(acquire(talk, b"at work"), None);
    assert!(talk.send(&[b"TG.PEEK", b"at work", b"k"]).starts_with("*8 :0 $4 busy"));
    assert_eq!(talk.say(&format!("TG.RELEASE {first}")), ":1");
    assert_eq!(talk.say(&format!("TG.RELEASE {first}")), ":0");
    assert!(acquire(talk, b"at work").is_some());
    assert_eq!(acquire(talk, b"at work"), None);
}

#[test]
fn the_place_of_who_has_vanished_is_free_after_its_lease() {
    let talk = &mut Talk::new();
    let gone = acquire(talk, b"at work").expect("a place");
    talk.advance(4_000);
    let there = acquire(talk, b"at work").expect("a place");
    talk.advance(5_999);
    assert_eq!(acquire(talk, b"at work"), None);
    assert_eq!(talk.say(&format!("TG.RENEW {there}")), ":10000000");
    talk.advance(1);
    assert!(talk.send(&[b"TG.PEEK", b"at work", b"k"]).starts_with("*8 :1"));
    assert_eq!(talk.say(&format!("TG.RENEW {gone}")), ":0");
    assert_eq!(talk.say(&format!("TG.RELEASE {gone}")), ":0");
    assert!(acquire(talk, b"at work").is_some());
    talk.advance(9_998);
    assert_eq!(acquire(talk, b"at work"), None, "the other one was renewed");
    talk.advance(1);
    assert!(acquire(talk, b"at work").is_some());
}

#[test]
fn a_request_for_places_and_rates_is_all_or_nothing() {
    let talk = &mut Talk::new();
    let ask = |talk: &mut Talk| {
        talk.send(&[b"TG.ACQUIRE", b"user", b"alice", b"AND", b"short", b"k", b"AND", b"at work", b"k"])
    };
    let first = ask(talk);
    assert!(first.starts_with("*10 :1") && first.ends_with(" :1000000"), "the shortest lease: {first}");
    assert!(ask(talk).starts_with("*10 :0 $4 busy :0 :1 :0 :0 $5 short"));
    assert!(talk.say("TG.PEEK user alice COST 0").contains(":2 :1 "), "nothing was charged");
    assert_eq!(acquire(talk, b"at work").map(|id| id.len()), Some(32), "nor was a place taken");
    talk.advance(1_000);
    assert!(ask(talk).starts_with("*10 :1"));
}
