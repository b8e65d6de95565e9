//! Those who look after the service.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate::Quota;
use tidegate_server::admin;
use tidegate_server::config::Address;
use tidegate_server::engine::{Engine, Rules};
use tidegate_server::serve::{Server, Settings, Speaks};

use crate::binary::Binary;
use crate::http::{answer, connect, exchange, file, post, serving};

pub(crate) fn get(address: SocketAddr, path: &str) -> Value {
    let (status, _, said) = exchange(&mut connect(address), &format!("GET {path}"), "");
    assert_eq!(status, 200, "{said}");
    serde_json::from_str(&said).expect("JSON")
}

fn problem(address: SocketAddr, path: &str, body: &Value) -> (u16, String) {
    let (status, _, said) = exchange(&mut connect(address), &format!("POST {path}"), &body.to_string());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    (status, said["detail"].as_str().expect("a sentence").to_owned())
}

fn check(server: &Binary, user: &str) -> Value {
    post(server.http, "/v1/check", &json!({"descriptors": {"user": user}}))
}

const RULES: &str = r#"
rules:
  - {name: user, match: {user: "*"}, key: user, quota: 2/day}
  - {name: net, match: {ip: "*"}, key: {address: ip, v4: 24}, quota: 9/day}
  - {name: watched, match: {user: "*"}, quota: 1/day, shadow: true}
"#;

#[test]
fn a_key_is_inspected_and_reset() {
    let (server, _file) = serving(RULES);
    assert_eq!(check(&server, "alice")["remaining"], json!(1));
    let alice = json!({"rule": "user", "key": "alice"});
    let told = post(server.admin, "/admin/inspect", &alice);
    assert_eq!((&told["rule"], &told["key"]), (&json!("user"), &json!(["alice"])));
    let limit = &told["limits"][0];
    assert_eq!(
        (&limit["limit"], &limit["remaining"], &told["blocked"]),
        (&json!(2), &json!(1), &Value::Null)
    );
    assert_eq!(post(server.admin, "/admin/reset", &alice)["remaining"], json!(2));
    assert_eq!(post(server.admin, "/admin/inspect", &alice)["limits"][0]["remaining"], json!(2));
    let rules = get(server.admin, "/admin/rules");
    let names: Vec<_> = rules["rules"].as_array().expect("rules").iter().map(|rule| &rule["name"]).collect();
    assert_eq!(names, [&json!("user"), &json!("net"), &json!("watched")]);
}

#[test]
fn a_key_is_blocked_and_unblocked_at_every_door() {
    let (server, _file) = serving(RULES);
    let alice = json!({"rule": "user", "key": "alice", "for": 600});
    assert_eq!(post(server.admin, "/admin/block", &alice), json!({"blocked": 600}));
    let refused = check(&server, "alice");
    assert_eq!((&refused["outcome"], &refused["rule"]), (&json!("denied"), &json!("user")));
    assert_eq!(refused["reason"], json!("an administrator has blocked the key"));
    let mut redis = server.connect();
    let said = crate::running::ask(&mut redis, b"TG.CHECK user alice\r\n", 17);
    assert_eq!(said, "*8\r\n:0\r\n$6\r\ndenie");
    let explained = post(server.http, "/v1/explain", &json!({"descriptors": {"user": "alice"}}));
    assert!(explained["rules"][0]["why"].as_str().is_some_and(|why| why.contains("blocked")), "{explained}");
    assert_eq!(check(&server, "bob")["allowed"], json!(true));

    let net = json!({"rule": "net", "key": "10.1.2.3", "for": 60});
    assert_eq!(post(server.admin, "/admin/block", &net), json!({"blocked": 60}));
    let neighbour = post(server.http, "/v1/check", &json!({"descriptors": {"ip": "10.1.2.9"}}));
    assert_eq!(neighbour["allowed"], json!(false), "a network is one key");
    let blocks = get(server.admin, "/admin/blocks");
    let keys: Vec<_> =
        blocks["blocks"].as_array().expect("blocks").iter().map(|block| &block["key"]).collect();
    assert_eq!(keys, [&json!(["10.1.2.0/24"]), &json!(["alice"])]);

    let alice = json!({"rule": "user", "key": "alice"});
    let told = post(server.admin, "/admin/inspect", &alice);
    assert!(told["blocked"].as_f64().is_some_and(|left| left > 0.0 && left <= 600.0), "{told}");
    assert_eq!(told["limits"][0]["remaining"], json!(2), "nothing was charged");
    assert_eq!(post(server.admin, "/admin/unblock", &alice), json!({"unblocked": true}));
    assert_eq!(post(server.admin, "/admin/unblock", &alice), json!({"unblocked": false}));
    assert_eq!(check(&server, "alice")["allowed"], json!(true));
}

#[test]
fn what_makes_no_sense_is_a_sentence() {
    let (server, _file) = serving(RULES);
    let rows = [
        ("/admin/inspect", json!({"rule": "usr", "key": "a"}), 400, "there is no rule \"usr\""),
        ("/admin/inspect", json!({"rule": "user"}), 400, "`key` has 0 parts"),
        ("/admin/reset", json!({"rule": "user", "key": "a", "for": 1}), 400, "leave it out"),
        ("/admin/reset", json!({"rule": "user", "kye": "a"}), 400, "unknown field `kye`"),
        ("/admin/block", json!({"rule": "user", "key": "a"}), 400, "`for` is missing"),
        ("/admin/block", json!({"rule": "user", "key": "a", "for": 0}), 400, "`for` is 0; say for how many"),
        (
            "/admin/block",
            json!({"rule": "user", "key": "a", "for": 1_000_000_000_000_u64}),
            400,
            "from 1 to 31622400",
        ),
        (
            "/admin/block",
            json!({"rule": "user", "key": "a", "for": -1}),
            400,
            "`-1`, expected a whole number from 0 to 18446744073709551615",
        ),
        ("/admin/block", json!({"rule": "watched", "for": 9}), 409, "only watches"),
        ("/admin/nothing", json!({}), 404, "use one of /admin/rules, "),
    ];
    for (path, body, status, sentence) in rows {
        let told = problem(server.admin, path, &body);
        assert!(told.0 == status && told.1.contains(sentence), "{path} {body}: {told:?}");
    }
    let (status, _, _) = exchange(&mut connect(server.admin), "POST /admin/reload", "");
    assert_eq!(status, 200);
}

#[test]
fn an_administrator_is_let_in_when_nobody_else_is() {
    let server = Binary::start(&["serve", "--connections", "2"]);
    let mut crowd = [server.connect(), server.connect()];
    crowd.iter_mut().for_each(crate::running::ping);
    assert!(crate::running::rest(&mut connect(server.http)).starts_with("HTTP/1.1 503"));
    assert_eq!(exchange(&mut connect(server.admin), "GET /admin/blocks", "").0, 200);
}

#[test]
fn the_most_refused_keys_are_told() {
    let (server, _file) = serving(RULES);
    for _ in 0..5 {
        let _ = check(&server, "mallory");
    }
    for _ in 0..3 {
        let _ = check(&server, "bob");
    }
    let told = get(server.admin, "/admin/refused");
    let one =
        |key: &str, refused: u32| json!({"rule": "user", "key": [key], "refused": refused, "too_many": 0});
    assert_eq!(told, json!({"keys": [one("mallory", 3), one("bob", 1)]}));
}

#[test]
fn a_reload_is_asked_for_and_a_bad_file_is_told() {
    let (server, file) = serving(RULES);
    std::fs::write(file.path(), RULES.replace("2/day", "5/day")).expect("written");
    let told = post(server.admin, "/admin/reload", &json!({}));
    assert_eq!(told["in_force"], json!(true));
    assert_eq!(check(&server, "alice")["limit"], json!(5));
    std::fs::write(file.path(), "rules: [{name: user, qouta: 5/day}]").expect("written");
    let (status, detail) = problem(server.admin, "/admin/reload", &json!({}));
    assert!(
        status == 422 && detail.contains("qouta") && detail.contains("the rules before it are"),
        "{detail}"
    );
    assert_eq!(check(&server, "alice")["limit"], json!(5));

    let alone = Binary::start(&["serve"]);
    let (status, detail) = problem(alone.admin, "/admin/reload", &json!({}));
    assert!(status == 409 && detail.contains("start with --config FILE"), "{detail}");
}

#[test]
fn every_route_asks_for_the_token() {
    let rules = file(
        "listeners: {admin: {address: 127.0.0.1:0, auth: {token: sesame}}}\nrules: [{name: a, quota: 5/s}]",
    );
    let server = Binary::start(&["serve", "--config", rules.path().to_str().expect("a name")]);
    let mut client = connect(server.admin);
    assert!(admin::routes().count() >= 9);
    for (method, path) in admin::routes() {
        for (header, is_known) in [
            ("", false),
            ("authorization: Bearer nonsense\r\n", false),
            ("authorization: Bearer sesame\r\n", true),
        ] {
            let request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\n{header}content-length: 0\r\n\r\n");
            client.write_all(request.as_bytes()).expect("sent");
            let (status, head, _) = answer(&mut client);
            assert_eq!(status != 401, is_known, "{method} {path} {header}");
            assert_eq!(head.contains("www-authenticate: bearer"), !is_known);
        }
    }
}

#[test]
fn nobody_else_is_let_in_without_a_token() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http", "off", "--resp", "off", "--grpc", "off", "--admin", "0.0.0.0:0"])
        .output()
        .expect("the binary");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("admin at 0.0.0.0:0 would let anybody change the limits"), "{said}");
}

#[tokio::test]
async fn nor_where_no_file_was_asked() {
    let engine = Arc::new(Engine::new(Rules::new().rate("user", Quota::per_hour(10))).expect("rules"));
    let everywhere = Address::Tcp("0.0.0.0:0".parse().expect("an address"));
    let open = Speaks::Admin(Arc::new(admin::Service::new(engine.clone())));
    let refused = Server::with(Settings::default()).listen(open, &everywhere).await.expect_err("refused");
    assert_eq!(
        refused.to_string(),
        "0.0.0.0:0 would let anybody administer; add a token, or listen at 127.0.0.1"
    );
    let closed = Speaks::Admin(Arc::new(admin::Service::new(engine).token("sesame")));
    assert!(Server::with(Settings::default()).listen(closed, &everywhere).await.is_ok());
}
