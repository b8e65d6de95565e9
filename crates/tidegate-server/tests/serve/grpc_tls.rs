//! gRPC over encrypted connections, and certificates that an administrator has read again.

use std::fs;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::binary::Binary;
use crate::grpc_client::{Client, OK};
use crate::http::{connect, exchange};
use crate::tls::{encrypted, root, signed};

/// gRPC is encrypted and the administration is not.
fn serving(folder: &Path, quota: &str) -> Binary {
    write(folder, quota);
    let file = folder.join("tidegate.yaml");
    Binary::start(&["serve", "--config", file.to_str().expect("a name")])
}

fn write(folder: &Path, quota: &str) {
    let path = |name: &str| folder.join(name).display().to_string();
    let (cert, key) = (path("server.pem"), path("server.key"));
    let grpc = format!("{{address: '127.0.0.1:0', tls: {{cert: {cert}, key: {key}}}}}");
    let rules = format!("rules: [{{name: user, key: user, quota: {quota}}}]");
    fs::write(folder.join("tidegate.yaml"), format!("listeners: {{grpc: {grpc}}}\n{rules}\n"))
        .expect("written");
}

fn reload(server: &Binary) -> (u16, String) {
    let (status, _, said) = exchange(&mut connect(server.admin), "POST /admin/reload", "");
    (status, said)
}

/// What the server shows to those who connect now.
fn shown(server: &Binary, folder: &Path) -> CertificateDer<'static> {
    let mut stream = encrypted(server.grpc, folder, None, &[b"h2"]);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).expect("a greeting");
    }
    assert_eq!(stream.conn.alpn_protocol(), Some(b"h2".as_slice()));
    stream.conn.peer_certificates().expect("a certificate")[0].clone().into_owned()
}

fn there(folder: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(folder.join("server.pem")).expect("a certificate")
}

#[test]
fn a_client_that_somebody_else_wrote_is_answered_and_one_with_another_root_is_not() {
    let folder = tempfile::tempdir().expect("there is room");
    root(folder.path());
    signed(folder.path(), "server");
    let trusted = fs::read(folder.path().join("root.pem")).expect("a root");
    let server = serving(folder.path(), "5/h");
    let mut client = Client::encrypted(server.grpc, &trusted).expect("a connection");
    assert_eq!(client.check(&["user=alice"]).each(), [(OK, 4)]);
    assert_eq!(client.check(&["user=alice", "user=bob"]).each(), [(OK, 3), (OK, 4)]);

    let elsewhere = tempfile::tempdir().expect("there is room");
    root(elsewhere.path());
    let other = fs::read(elsewhere.path().join("root.pem")).expect("a root");
    assert!(Client::encrypted(server.grpc, &other).is_err(), "it does not know who that is");
    assert_eq!(client.check(&["user=alice"]).each(), [(OK, 2)]);
}

#[test]
fn who_asks_for_another_protocol_than_grpc_is_not_let_in() {
    let folder = tempfile::tempdir().expect("there is room");
    root(folder.path());
    signed(folder.path(), "server");
    let server = serving(folder.path(), "5/h");
    let mut stream = encrypted(server.grpc, folder.path(), None, &[b"http/1.1"]);
    let mut shaking = std::iter::repeat_with(|| stream.conn.complete_io(&mut stream.sock));
    assert!(shaking.find_map(Result::err).is_some(), "there is no common protocol, and so no greeting");
    assert!(stream.conn.is_handshaking());
    let _ = shown(&server, folder.path());
}

#[test]
fn an_administrator_has_rules_and_certificates_read_again_all_or_nothing() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path();
    root(path);
    signed(path, "server");
    let trusted = fs::read(path.join("root.pem")).expect("a root");
    let server = serving(path, "5/h");
    let mut first = Client::encrypted(server.grpc, &trusted).expect("a connection");
    assert_eq!(first.check(&["user=alice"]).each(), [(OK, 4)]);
    let before = there(path);
    assert_eq!(shown(&server, path), before);

    signed(path, "server");
    write(path, "7/h");
    let (status, said) = reload(&server);
    assert!(status == 200 && said.contains("1 changed"), "{said}");
    let second = there(path);
    assert_ne!(before, second);
    assert_eq!(shown(&server, path), second, "who connects sees the new one");
    assert_eq!(first.check(&["user=alice"]).each(), [(OK, 5)], "who is there stays, under the new rules");

    fs::write(path.join("server.pem"), "nonsense").expect("written");
    write(path, "9/h");
    let (status, said) = reload(&server);
    assert_eq!(status, 422, "{said}");
    assert!(said.contains("listeners.grpc.tls") && said.contains("server.pem cannot be used"), "{said}");
    assert_eq!(shown(&server, path), second, "the one before stays");
    let mut newcomer = Client::encrypted(server.grpc, &trusted).expect("a connection");
    let limit = |client: &mut Client| client.check(&["user=bob"]).statuses[0].limit().0;
    // The file has changed, too; sooner or later that is seen by itself, and its rules need no certificate.
    assert!([7, 9].contains(&limit(&mut newcomer)));
    assert_eq!(first.check(&["user=alice"]).overall_code, OK);
}
