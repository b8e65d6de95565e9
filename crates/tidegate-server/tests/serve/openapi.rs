//! The document and the service say the same.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidegate_server::{admin, http};

use crate::admin::get;
use crate::http::{connect, exchange, post, serving};

fn document() -> Value {
    serde_json::from_str(http::OPENAPI).expect("JSON")
}

#[test]
fn every_route_is_in_the_document_and_no_other() {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let written = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").keys().filter(|name| *name != "servers");
        methods.map(move |method| (method.to_uppercase(), path.clone()))
    });
    let there = http::routes().chain(admin::routes());
    let there: BTreeSet<_> = there.map(|(method, path)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(written.collect::<BTreeSet<_>>(), there);
}

#[test]
fn what_is_referred_to_is_there_and_the_version_is_ours() {
    let document = document();
    assert_eq!(document["info"]["version"], json!(env!("CARGO_PKG_VERSION")));
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let text = document.to_string();
    let named: BTreeSet<_> =
        text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(named, schemas.keys().map(String::as_str).collect());
}

/// Every field that is told is in the schema, and every one that must be there is.
fn is_as_written(schema: &str, told: &Value) {
    let document = document();
    let schema = &document["components"]["schemas"][schema];
    assert!(schema.is_object());
    let fields = told.as_object().expect("an object");
    for name in fields.keys() {
        assert!(schema["properties"].get(name).is_some(), "{name} of {told} is not in the document");
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(fields.contains_key(name.as_str().expect("a name")), "{name} is missing in {told}");
    }
}

#[test]
fn what_is_told_is_as_written() {
    let (server, _file) = serving(
        "rules: [{name: user, match: {user: '*'}, key: user, quota: 1/day, deny: {user: mallory}}, \
         {name: jobs, match: {job: '*'}, key: job, quota: 1 at once lease 30s}, \
         {name: lent, match: {nobody: '*'}, quota: 100/day}, \
         {name: watched, match: {user: '*'}, quota: 1/day, shadow: true}]",
    );
    assert_eq!(get(server.http, "/openapi.json"), document());
    for user in ["alice", "alice", "bob", "mallory"] {
        is_as_written("Decision", &post(server.http, "/v1/check", &json!({"descriptors": {"user": user}})));
    }
    let held = post(server.http, "/v1/acquire", &json!({"rule": "jobs", "key": "x"}));
    is_as_written("Acquired", &held);
    let place = json!({"place": held["place"]});
    is_as_written("Renewed", &post(server.http, "/v1/renew", &place));
    is_as_written("Released", &post(server.http, "/v1/release", &place));
    let lent = post(server.http, "/v1/lease", &json!({"rule": "lent", "amount": 5, "ttl": 0.5}));
    is_as_written("Lent", &lent);
    let back = json!({"rule": "lent", "grant": lent["grant"], "unspent": 2});
    is_as_written("Decision", &post(server.http, "/v1/return", &back));
    is_as_written("Lent", &post(server.http, "/v1/lease", &json!({"rule": "lent", "amount": 5000})));
    is_as_written(
        "Explanation",
        &post(server.http, "/v1/explain", &json!({"descriptors": {"user": "alice"}})),
    );
    is_as_written("Health", &get(server.http, "/readyz"));
    let named = json!({"rule": "user", "key": "alice"});
    let blocking = json!({"rule": "user", "key": "alice", "for": 9});
    is_as_written("Blocked", &post(server.admin, "/admin/block", &blocking));
    is_as_written("Inspected", &post(server.admin, "/admin/inspect", &named));
    is_as_written("Blocks", &get(server.admin, "/admin/blocks"));
    is_as_written("Unblocked", &post(server.admin, "/admin/unblock", &named));
    is_as_written("RefusedKeys", &get(server.admin, "/admin/refused"));
    is_as_written("Rules", &get(server.admin, "/admin/rules"));
    is_as_written("Reloaded", &post(server.admin, "/admin/reload", &json!({})));
    let (_, _, problem) = exchange(&mut connect(server.http), "GET /nothing", "");
    is_as_written("Problem", &serde_json::from_str(&problem).expect("JSON"));
}

/// A field that the document has and the service does not know would be refused by its name.
#[test]
fn what_may_be_asked_is_known() {
    let (server, _file) = serving("rules: [{name: user, match: {user: '*'}, key: user, quota: 1/day}]");
    let document = document();
    for (schema, at, path) in [
        ("Request", server.http, "/v1/check"),
        ("Place", server.http, "/v1/release"),
        ("Leasing", server.http, "/v1/lease"),
        ("Returned", server.http, "/v1/return"),
        ("Named", server.admin, "/admin/inspect"),
        ("Blocking", server.admin, "/admin/block"),
    ] {
        let schema = &document["components"]["schemas"][schema];
        assert_eq!(schema["additionalProperties"], json!(false));
        let names: Vec<_> = schema["properties"].as_object().expect("fields").keys().collect();
        for name in names.iter().copied().map(String::as_str).chain(["nonsense"]) {
            let (_, _, said) =
                exchange(&mut connect(at), &format!("POST {path}"), &json!({name: null}).to_string());
            assert_eq!(said.contains("unknown field"), name == "nonsense", "{path} {name}: {said}");
        }
    }
}
