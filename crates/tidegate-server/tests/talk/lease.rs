//! `TG.LEASE` and `TG.RETURN`: what is said, and what is answered.

use crate::support::Talk;

/// The reply without the id, and the id.
fn lease(talk: &mut Talk, line: &str) -> (String, String) {
    let reply = talk.say(line);
    let words: Vec<&str> = reply.split(' ').collect();
    let id = words[words.len() - 4].to_owned();
    (reply.replace(&format!(" {id} "), " ID "), id)
}

#[test]
fn a_grant_is_charged_and_what_is_not_spent_comes_back_once() {
    let talk = &mut Talk::new();
    // 50, and 12 beside it: what would come in while they are out, and two more.
    let (told, id) = lease(talk, "TG.LEASE everybody all 50 TTL 100");
    let decision = ":1 $7 allowed :0 :100 :38 :620000 $9 everybody $6 strict";
    assert_eq!(told, format!("*12 {decision} $32 ID :50 :50 :98438"));
    for _ in 0..2 {
        let back = talk.say(&format!("TG.RETURN everybody all {id} 20"));
        assert_eq!(back, "*8 :1 $7 allowed :0 :100 :58 :420000 $9 everybody $6 strict");
    }
    let other = talk.say(&format!("TG.RETURN everybody other {id} 20"));
    assert!(other.contains(":100 :100 :0 "), "of another key: {other}");
    let (told, id) = lease(talk, "tg.lease everybody all 999 ttl 100");
    assert!(told.contains("$32 ID :") && !told.contains(":999"), "as many as there are: {told}");
    talk.advance(100);
    let before = talk.say("TG.PEEK everybody all COST 0");
    assert_eq!(talk.say(&format!("TG.RETURN everybody all {id} 999")), before, "its time is over");
}

#[test]
fn where_nothing_is_granted_there_is_a_wait_and_no_id() {
    let talk = &mut Talk::new();
    assert!(talk.say("TG.CHECK everybody all COST 100").starts_with("*8 :1"));
    let told = talk.say("TG.LEASE everybody all 5");
    let decision = ":0 $7 refused :10000 :100 :0 :1000000 $9 everybody $6 strict";
    assert_eq!(told, format!("*12 {decision} $0  :0 :0 :0"), "until the first token comes in");
}

#[test]
fn of_a_window_it_ends_with_it() {
    let talk = &mut Talk::new();
    let (told, id) = lease(talk, "TG.LEASE daily acme 9 TTL 1000");
    assert!(
        told.starts_with("*12 :1 $7 allowed :0 :5 :0 ") && told.ends_with("$32 ID :5 :5 :984375"),
        "{told}"
    );
    assert!(talk.say("TG.LEASE daily acme 1").starts_with("*12 :0 $7 refused"));
    let back = talk.say(&format!("TG.RETURN daily acme {id} 4"));
    assert!(back.starts_with("*8 :1 $7 allowed :0 :5 :4 "), "{back}");
    // A day is 86,400 s, and the clock stands at 1,000,000: half a second before the next one.
    talk.advance(36_800_000 - 500);
    let (told, id) = lease(talk, "TG.LEASE daily acme 2 TTL 60000");
    assert!(told.ends_with("$32 ID :2 :2 :492188"), "no longer than the day: {told}");
    let back = talk.say(&format!("TG.RETURN daily acme {id} 2"));
    assert!(back.contains(":5 :2 "), "too late to be sure that it is still that day: {back}");
}

#[test]
fn what_is_no_lease_is_an_error() {
    let talk = &mut Talk::new();
    let syntax = "-ERR syntax error: rule key amount [TTL milliseconds]";
    let id = "0123456789abcdef0123456789abcdef";
    let rows = [
        ("TG.LEASE user k", "-ERR wrong number of arguments for 'tg.lease' command".to_owned()),
        ("TG.LEASE nobody k 5", "-ERR there is no rule 'nobody'; the configuration has the names".to_owned()),
        ("TG.LEASE user k 0", "-ERR an amount of 0 leases nothing; use TG.PEEK to see what is left".to_owned()),
        ("TG.LEASE user k x", "-ERR the amount is 'x'; use a whole number up to 4294967295".to_owned()),
        ("TG.LEASE user k 5 6", format!("{syntax}; '6' is not TTL and a number")),
        ("TG.LEASE user k 5 TTL", format!("{syntax}; 'TTL' is not TTL and a number")),
        ("TG.LEASE user k 5 TTL 9", "-ERR TTL is '9'; use milliseconds from 20 to 3600000".to_owned()),
        ("TG.LEASE user k 5 TTL 99 6", format!("{syntax}; '6' is too much")),
        ("TG.RETURN user k x 5", "-ERR id 'x': this is no id of a grant; use the 32 letters that came with it".to_owned()),
        ("TG.RETURN user k", "-ERR wrong number of arguments for 'tg.return' command".to_owned()),
        (
            "TG.LEASE user k 1",
            "-ERR the bucket of rule \"user\" is too small, or full again too soon, to be lent of in memory; raise its \
             burst, keep the counts in Redis, or check it instead"
                .to_owned(),
        ),
        (
            "TG.LEASE even k 1",
            "-ERR rule \"even\" cannot be lent of, only token buckets and fixed windows can; check it instead".to_owned(),
        ),
        (
            "TG.LEASE short k 1",
            "-ERR rule \"short\" cannot be lent of, only token buckets and fixed windows can; check it instead".to_owned(),
        ),
    ];
    for (line, expected) in rows {
        assert_eq!(talk.say(line), expected, "{line}");
    }
    let more = talk.say(&format!("TG.RETURN user k {id} 5 6"));
    assert_eq!(more, "-ERR syntax error: rule key id unspent; '6' is too much");
    let unknown = talk.say(&format!("TG.RETURN everybody k {id} 5"));
    assert!(unknown.starts_with("*8 :1 $7 allowed :0 :100 :100 "), "nothing comes back: {unknown}");
}
