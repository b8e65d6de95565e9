//! # Every key expires
//!
//! On the server's own clock, with the script as it ships.

use redis::Connection;
use tidegate_core::Rule;

use crate::random_walk::RULES;
use crate::server::Server;
use crate::wire::{Reply, RuleArgs, call, script};

/// Expiry in milliseconds since 1970, or −1 for a key without an expiry and −2 for one that does not exist.
fn expires(connection: &mut Connection, key: &str) -> i64 {
    redis::cmd("PEXPIRETIME").arg(key).query(connection).expect("a reply")
}

#[test]
fn every_key_expires_but_not_while_it_makes_a_difference() {
    let server = Server::start();
    let (mut connection, sha) = server.load(&script());
    for text in RULES {
        let rule: Rule = text.parse().expect("a rule");
        for (operation, cost) in [("force", 3), ("check", 1), ("take", 2)] {
            let args = [RuleArgs::rate(text, cost, &rule)];
            let numbers: Vec<u64> =
                call(&sha, operation, &args, None).query(&mut connection).expect("the script replies");
            let reply = Reply::decode(&numbers);
            let until = expires(&mut connection, text);
            if until == -2 {
                continue; // the keys of the fastest rules have expired already
            }
            let idle_at = i64::try_from(reply.now + reply.rules[0].reset).expect("before 2255");
            assert!(
                until * 1_000 >= idle_at,
                "{text} expires too early after {operation}: {until}, {idle_at}"
            );
        }
        let args = [RuleArgs::rate(text, 0, &rule)];
        let _: Vec<u64> =
            call(&sha, "reset", &args, None).query(&mut connection).expect("the script replies");
        assert_eq!(expires(&mut connection, text), -2, "{text} is still there after a reset");
    }
}

#[test]
fn a_full_refund_leaves_no_key_behind() {
    let server = Server::start();
    let (mut connection, sha) = server.load(&script());
    for text in RULES {
        let rule: Rule = text.parse().expect("a rule");
        let args = [RuleArgs::rate(text, 2, &rule)];
        let mut send = |operation| -> Vec<u64> {
            call(&sha, operation, &args, None).query(&mut connection).expect("the script replies")
        };
        let (_, refunded) = (send("force"), Reply::decode(&send("refund")));
        let until = expires(&mut connection, text);
        // The fastest rules owe nothing any more when the refund arrives, and are left to expire.
        let expiring = i64::try_from(refunded.now / 1_000 + 1).expect("before 2255");
        assert!(until <= expiring, "{text} is still there until {until}, at {}", refunded.now);
    }
}
