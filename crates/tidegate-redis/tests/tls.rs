//! TLS connections, to a real server with a certificate that the test has signed itself.
#![cfg(feature = "tls")]

mod gates;
mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gates::{long_deadline, passed};
use support::{Kind, Server, port, until};
use tidegate::Quota;
use tidegate_redis::RedisGate;

fn openssl(folder: &Path, args: &[&str]) {
    let output =
        Command::new("openssl").args(args).current_dir(folder).output().expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a root to `root.pem`, and a server's key and certificate signed by it to `server.key` and
/// `server.pem`.
fn certificates(folder: &Path) {
    let root = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=root"];
    openssl(folder, &[&root[..], &["-keyout", "root.key", "-out", "root.pem"]].concat());
    let request = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"];
    openssl(folder, &[&request[..], &["-keyout", "server.key", "-out", "server.csr"]].concat());
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1")
        .expect("a folder to write to");
    let signed =
        ["x509", "-req", "-in", "server.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial"];
    openssl(folder, &[&signed[..], &["-days", "2", "-extfile", "names", "-out", "server.pem"]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_trusts_only_certificates_of_its_root() {
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let tls_port = port::free().to_string();
    let (key, certificate, root) = (file("server.key"), file("server.pem"), file("root.pem"));
    let settings = ["--tls-port", &tls_port, "--tls-key-file", &key, "--tls-cert-file", &certificate];
    let authority = ["--tls-ca-cert-file", &root, "--tls-auth-clients", "no"];
    let _server = Server::start(Kind::Redis, &[&settings[..], &authority[..]].concat());
    let builder =
        || RedisGate::builder(format!("rediss://localhost:{tls_port}/")).rule("user", Quota::per_hour(2));

    let pem = std::fs::read(&root).expect("the root");
    let gate = long_deadline(builder().root_certificate(pem));
    assert_eq!(passed(&gate, "alice", 5).await, 2);

    let other = builder().canary(Duration::from_millis(50)).build().expect("an address");
    let error = until("the certificate is rejected", || {
        let message = other.health().last_error.map(|error| error.to_string()).unwrap_or_default();
        message.to_lowercase().contains("certificate").then_some(message)
    });
    assert_eq!(other.health().connections.0, 0, "{error}");
}
