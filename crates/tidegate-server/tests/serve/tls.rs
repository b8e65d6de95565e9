//! Encrypted connections, with certificates that change.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::binary::Binary;
use crate::http::connect;
use crate::running::{PATIENCE, ping};

fn openssl(folder: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    let output =
        command.args(arguments.split(' ')).current_dir(folder).output().expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const EC: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// A root in `root.pem`, which signs.
pub(crate) fn root(folder: &Path) {
    openssl(folder, &format!("req -x509 {EC} -days 2 -subj /CN=root -keyout root.key -out root.pem"));
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost").expect("written");
}

/// A key and a certificate, put in the place of those before at once.
pub(crate) fn signed(folder: &Path, name: &str) {
    openssl(folder, &format!("req {EC} -subj /CN=localhost -keyout new.key -out new.csr"));
    let by_root = "x509 -req -in new.csr -CA root.pem -CAkey root.key -CAcreateserial";
    openssl(folder, &format!("{by_root} -days 2 -extfile names -out new.pem"));
    for kind in ["key", "pem"] {
        fs::rename(folder.join(format!("new.{kind}")), folder.join(format!("{name}.{kind}")))
            .expect("renamed");
    }
}

pub(crate) type Encrypted = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn encrypted(
    address: SocketAddr,
    folder: &Path,
    with_certificate: Option<&str>,
    protocols: &[&[u8]],
) -> Encrypted {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("root.pem")).expect("a root")).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.expect("versions").with_root_certificates(roots);
    let mut config = match with_certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let own =
                CertificateDer::from_pem_file(folder.join(format!("{name}.pem"))).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).expect("a key");
            builder.with_client_auth_cert(vec![own], key).expect("a client")
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("a client"), stream)
}

fn livez(stream: &mut Encrypted) -> std::io::Result<String> {
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

fn serving(folder: &Path, more: &str) -> Binary {
    let tls = |more: &str| {
        let path = |name: &str| folder.join(name).display().to_string();
        format!(
            "{{address: 127.0.0.1:0, tls: {{cert: {}, key: {}{more}}}}}",
            path("server.pem"),
            path("server.key")
        )
    };
    let (http, other) = (tls(more), tls(""));
    let file = folder.join("tidegate.yaml");
    let listeners = format!("{{http: {http}, resp: {other}, admin: {other}}}");
    fs::write(&file, format!("listeners: {listeners}\nrules: [{{name: all, quota: 9/day}}]\n"))
        .expect("written");
    Binary::start(&["serve", "--config", file.to_str().expect("a name")])
}

#[test]
fn every_door_is_encrypted_and_who_speaks_in_the_clear_is_not_answered() {
    let folder = tempfile::tempdir().expect("there is room");
    root(folder.path());
    signed(folder.path(), "server");
    let server = serving(folder.path(), "");
    let mut redis = encrypted(server.address, folder.path(), None, &[]);
    ping(&mut redis);
    // More than fits into what is kept back of an encrypted connection, and pieces of every size.
    let many = b"PING\r\n".repeat(20_000);
    let mut other = encrypted(server.address, folder.path(), None, &[]);
    let mut got = 0;
    for some in many.chunks(30_011) {
        other.write_all(some).expect("sent");
        let mut replies = vec![0; some.len() / 12 * 7];
        other.read_exact(&mut replies).expect("replies");
        got += replies.len();
    }
    let mut replies = vec![0; 20_000 * 7 - got];
    other.read_exact(&mut replies).expect("all replies");
    for address in [server.http, server.admin] {
        let said = livez(&mut encrypted(address, folder.path(), None, &[])).expect("an answer");
        assert!(said.starts_with("HTTP/1.1 "), "{said}");
        let mut clear = connect(address);
        clear.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        let mut said = Vec::new();
        let _ = clear.read_to_end(&mut said); // closed, or reset
        assert!(!said.starts_with(b"HTTP"), "{said:?}");
    }
    ping(&mut redis);
}

#[test]
fn a_certificate_that_changes_is_shown_and_a_bad_one_is_not() {
    let folder = tempfile::tempdir().expect("there is room");
    root(folder.path());
    signed(folder.path(), "server");
    let mut server = serving(folder.path(), "");
    let shown = || {
        let mut stream = encrypted(server.http, folder.path(), None, &[]);
        let _ = livez(&mut stream).expect("an answer");
        stream.conn.peer_certificates().expect("a certificate")[0].clone().into_owned()
    };
    let there = || CertificateDer::from_pem_file(folder.path().join("server.pem")).expect("a certificate");
    let first = there();
    assert_eq!(shown(), first);
    let mut redis = encrypted(server.address, folder.path(), None, &[]);
    ping(&mut redis);
    signed(folder.path(), "server");
    let second = there();
    assert_ne!(first, second);
    for _ in 0..3 {
        let line = server.line();
        assert!(line.contains("server.pem is in force"), "{line}");
    }
    let mut stream = encrypted(server.http, folder.path(), None, &[]);
    let _ = livez(&mut stream).expect("an answer");
    assert_eq!(stream.conn.peer_certificates().expect("a certificate")[0], second);
    ping(&mut redis); // who was there stays

    fs::write(folder.path().join("server.pem"), "nonsense").expect("written");
    let mut said = std::io::BufReader::new(server.child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    assert!(
        line.contains("server.pem cannot be used") && line.contains("the certificate before it"),
        "{line}"
    );
    assert!(livez(&mut encrypted(server.http, folder.path(), None, &[])).is_ok());
}

#[test]
fn who_has_to_show_a_certificate_and_does_not_is_not_let_in() {
    let folder = tempfile::tempdir().expect("there is room");
    root(folder.path());
    signed(folder.path(), "server");
    signed(folder.path(), "client");
    let root = folder.path().join("root.pem");
    let server = serving(folder.path(), &format!(", client_ca: {}", root.display()));
    let said = livez(&mut encrypted(server.http, folder.path(), Some("client"), &[])).expect("an answer");
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    assert!(livez(&mut encrypted(server.http, folder.path(), None, &[])).is_err());
}

#[test]
fn a_shell_asks_by_https_whoever_is_signed_by_the_root_it_names() {
    let folder = tempfile::tempdir().expect("there is room");
    root(folder.path());
    signed(folder.path(), "server");
    let server = serving(folder.path(), "");
    let elsewhere = tempfile::tempdir().expect("there is room");
    root(elsewhere.path());
    let asking = |command: &[&str], host: &str, ca: &Path| {
        let url = format!("https://{host}:{}", server.http.port());
        let mut asking = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = asking.args(command).args(["--url", &url, "--ca"]).arg(ca).output().expect("the binary");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("text"))
    };
    let ours = folder.path().join("root.pem");
    assert_eq!(asking(&["health"], "localhost", &ours), (Some(0), "ok\n".to_owned()));
    assert_eq!(asking(&["check", "all", "--cost", "9"], "localhost", &ours).0, Some(0));
    assert_eq!(asking(&["check", "all"], "localhost", &ours).0, Some(3));
    let wrong = [
        ("localhost", elsewhere.path().join("root.pem"), "invalid peer certificate"),
        ("127.0.0.1", ours.clone(), "not valid for name"),
        ("localhost", folder.path().join("server.key"), "there is no certificate in it"),
        ("localhost", folder.path().join("gone.pem"), "cannot be used"),
    ];
    for (host, ca, sentence) in wrong {
        let (code, said) = asking(&["health"], host, &ca);
        assert!(code == Some(1) && said.contains(sentence), "{said}");
    }
}

#[test]
fn certificates_that_cannot_be_used_are_a_sentence() {
    let folder = tempfile::tempdir().expect("there is room");
    let at = |name: &str| folder.path().join(name);
    root(folder.path());
    signed(folder.path(), "one");
    signed(folder.path(), "other");
    fs::write(at("empty.pem"), "").expect("written");
    fs::write(at("empty.key"), "").expect("written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(at("empty.key"), private).expect("a mode");
    let rows = [
        ("gone.pem", "one.key", "gone.pem cannot be used: No such file"),
        ("empty.pem", "one.key", "there is no certificate in it"),
        ("one.pem", "gone.key", "gone.key cannot be used: No such file"),
        ("one.pem", "empty.key", "there is not a private key in it"),
        ("one.pem", "other.key", "one.pem; name files in PEM that can be read and belong together"),
        ("one.pem", "other.key", "other.key cannot be used: it is not the key of "),
    ];
    for (cert, key, sentence) in rows {
        let (cert, key) = (at(cert), at(key));
        let tls = format!("{{cert: {}, key: {}}}", cert.display(), key.display());
        let file = at("tls.yaml");
        let listeners =
            format!("{{http: {{address: 127.0.0.1:0, tls: {tls}}}, resp: off, grpc: off, admin: off}}");
        fs::write(&file, format!("listeners: {listeners}\nrules: [{{name: a, quota: 5/s}}]\n"))
            .expect("written");
        let output =
            Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--config"]).arg(&file).output();
        let output = output.expect("the binary");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("tidegate: listeners.http.tls: ") && said.contains(sentence), "{said}");
        assert!(!said.contains("PRIVATE"), "{said}");
    }
}

/// Certificates of clients are credentials, too: `config check` says so, and the service.
#[test]
fn administration_for_others_may_ask_for_certificates_instead_of_a_token() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path();
    root(path);
    signed(path, "server");
    signed(path, "client");
    let at = |name: &str| path.join(name).display().to_string();
    let tls =
        format!("{{cert: {}, key: {}, client_ca: {}}}", at("server.pem"), at("server.key"), at("root.pem"));
    let text = format!(
        "listeners: {{admin: {{address: '0.0.0.0:0', tls: {tls}}}}}\nrules: [{{name: a, quota: 1/s}}]\n"
    );
    let file = crate::http::file(&text);
    let config = file.path().to_str().expect("a name").to_owned();
    let tidegate = || Command::new(env!("CARGO_BIN_EXE_tidegate"));
    assert!(tidegate().args(["config", "check", &config]).output().expect("the binary").status.success());
    // The address of the file counts, so none is given beside it.
    let command = tidegate()
        .args(["serve", "--config", &config, "--http", "off", "--grpc", "off", "--resp", "off"])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut child = command.expect("the binary");
    let mut said = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let port = loop {
        let mut line = String::new();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).expect("a line") > 0, "it does not serve");
        if let Some(place) = line.trim_end().strip_prefix("tidegate: admin on 0.0.0.0:") {
            break place.parse::<u16>().expect("a port");
        }
    };
    let mut client = encrypted(([127, 0, 0, 1], port).into(), path, Some("client"), &[]);
    client.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("sent");
    let mut told = String::new();
    let _ = client.read_to_string(&mut told); // the end may come without a word
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    let mut stranger = encrypted(([127, 0, 0, 1], port).into(), path, None, &[]);
    let _ = stranger.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(stranger.read(&mut [0; 10]).is_err(), "nobody without a certificate");
    child.kill().expect("killed");
    child.wait().expect("an end");
}
