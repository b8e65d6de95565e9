//! Tests of the test support: the servers, the cluster, the failing network, the movable clock.
//!
//! Timeouts here only keep a test from hanging; none measures how long something takes.

mod support;

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::panic::catch_unwind;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::request::Requests;
use support::server::Setup;
use support::{Cluster, Kind, Mode, Proxy, Server, port, process, until};

const BOTH: [Kind; 2] = [Kind::Redis, Kind::Valkey];
const PING: &[u8] = b"PING\r\n";
const PONG: &[u8] = b"+PONG\r\n";
/// The timeout for a reply that arrives.
const LONG: Duration = Duration::from_secs(20);
/// The timeout for a reply that does not arrive.
const SHORT: Duration = Duration::from_millis(200);
const HOUR: i64 = 3_600;

// --- what a client sees

fn connect(port: u16) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a server listens")
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Bytes(Vec<u8>),
    Silence,
    Closed,
    Reset,
}

/// Reads as many bytes as are expected, or until something else happens.
fn read(client: &mut TcpStream, length: usize, timeout: Duration) -> Seen {
    client.set_read_timeout(Some(timeout)).expect("it is not zero");
    let mut bytes = vec![0; length];
    match client.read_exact(&mut bytes) {
        Ok(()) => Seen::Bytes(bytes),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Seen::Silence,
            ErrorKind::UnexpectedEof => Seen::Closed,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Seen::Reset,
            other => panic!("unexpected: {other}"),
        },
    }
}

fn ping(client: &mut TcpStream, timeout: Duration) -> Seen {
    client.write_all(PING).expect("a few bytes can always be sent");
    read(client, PONG.len(), timeout)
}

fn pong() -> Seen {
    Seen::Bytes(PONG.to_vec())
}

fn behind_proxy() -> (Server, Proxy) {
    let server = Server::start(Kind::Redis, &[]);
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

// --- servers

#[test]
fn a_server_is_of_the_requested_kind() {
    let redis = Server::start(Kind::Redis, &[]).cli(&["INFO", "server"]);
    assert!(redis.contains("redis_version:") && !redis.contains("valkey"), "{redis}");
    let valkey = Server::start(Kind::Valkey, &[]).cli(&["INFO", "server"]);
    assert!(valkey.contains("server_name:valkey"), "{valkey}");
}

#[test]
fn a_server_replies_as_text_and_accepts_extra_arguments() {
    for kind in BOTH {
        let server = Server::start(kind, &["--maxmemory", "7mb"]);
        assert_eq!(server.cli(&["SET", "k", "v"]), "OK");
        assert_eq!(server.cli(&["GET", "k"]), "v");
        assert_eq!(server.cli(&["GET", "other"]), "nil");
        assert_eq!(server.cli(&["DBSIZE"]), "1");
        assert_eq!(server.cli(&["CONFIG", "GET", "maxmemory"]), format!("maxmemory\n{}", 7 << 20));
        assert_eq!(server.cli(&["CONFIG", "GET", "save"]), "save\n");
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    }
}

#[test]
fn a_killed_server_is_gone_and_restarts_empty_on_its_port() {
    for kind in BOTH {
        let mut server = Server::start(kind, &["--maxmemory", "7mb"]);
        let (pid, port) = (server.pid(), server.port());
        server.cli(&["SET", "k", "v"]);

        server.kill();
        assert!(!server.is_alive());
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());

        server.restart();
        assert_ne!(server.pid(), pid);
        assert_eq!(server.port(), port);
        assert_eq!(server.cli(&["GET", "k"]), "nil");
        assert!(server.cli(&["CONFIG", "GET", "maxmemory"]).ends_with(&(7 << 20).to_string()));
    }
}

#[test]
fn a_running_server_can_be_restarted() {
    let mut server = Server::start(Kind::Redis, &[]);
    server.cli(&["SET", "k", "v"]);
    server.restart();
    assert_eq!(server.cli(&["GET", "k"]), "nil");
}

#[test]
fn a_paused_server_is_silent_and_answers_pending_requests_when_resumed() {
    for kind in BOTH {
        let server = Server::start(kind, &[]);
        let mut client = connect(server.port());
        assert_eq!(ping(&mut client, LONG), pong());

        server.pause();
        assert_eq!(ping(&mut client, SHORT), Seen::Silence);
        assert_eq!(ping(&mut connect(server.port()), SHORT), Seen::Silence, "connected, but not answered");

        server.resume();
        assert_eq!(read(&mut client, PONG.len(), LONG), pong());
    }
}

#[test]
fn a_dropped_server_leaves_nothing_behind_even_when_paused() {
    let server = Server::start(Kind::Redis, &[]);
    let (pid, port, folder) = (server.pid(), server.port(), server.folder().to_path_buf());
    assert!(process::state(pid).is_some() && folder.exists());
    server.pause();
    drop(server);
    assert_eq!(process::state(pid), None);
    assert!(!folder.exists());
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}

#[test]
fn a_port_that_is_taken_is_skipped() {
    let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, port::free())).unwrap();
    let other = Server::start(Kind::Redis, &[]);
    let free = port::free();
    let ports = [mute.local_addr().unwrap().port(), other.port(), free];
    let server = Server::start_on(ports, Setup::new(Kind::Redis, &[]));
    assert_eq!(server.port(), free);
    assert_eq!(other.cli(&["PING"]), "PONG", "the other server is untouched");
}

#[test]
fn a_server_that_cannot_start_panics_with_its_log() {
    let started = catch_unwind(|| Server::start(Kind::Redis, &["--no-such-setting", "1"]));
    let message = *started.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("no-such-setting"), "{message}");
}

/// Starts itself again as a child that starts a server and aborts, which drops nothing.
#[test]
fn a_server_does_not_outlive_an_aborted_test() {
    const ROLE: &str = "TIDEGATE_TEST_IS_TO_ABORT";
    if env::var_os(ROLE).is_some() {
        let server = Server::start(Kind::Redis, &[]);
        println!("\npid {}", server.pid());
        std::process::abort();
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "a_server_does_not_outlive_an_aborted_test", "--nocapture"]);
    child.env(ROLE, "").env("TMPDIR", folder.path());
    let output = child.stderr(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let pid = text.lines().find_map(|line| line.strip_prefix("pid ")).expect("the server was started");
    let pid = pid.parse().unwrap();
    until("the server is gone", || matches!(process::state(pid), None | Some('Z')).then_some(()));
}

// --- clocks

#[test]
fn a_clock_is_correct_until_stepped_and_steps_both_ways() {
    for kind in BOTH {
        let mut server = Server::start_with_clock(kind, &[]);
        let right = Server::start_with_clock(kind, &[]);
        assert_near(server.now(), right.now());
        server.step(HOUR);
        assert_near(server.now(), right.now() + HOUR * 1_000_000);
        server.step(-2 * HOUR);
        assert_near(server.now(), right.now() - HOUR * 1_000_000);
        server.restart();
        assert_near(server.now(), right.now() - HOUR * 1_000_000);
        server.step(HOUR);
        assert_near(server.now(), right.now());
    }
}

/// Within a quarter of an hour: a machine may be slow between two reads, but not that slow.
fn assert_near(one: i64, other: i64) {
    assert!((one - other).abs() < HOUR * 1_000_000 / 4, "{one} is far from {other}");
}

#[test]
fn a_held_clock_stands_still_in_commands_scripts_and_expiry() {
    const AT: i64 = 1_700_000_000_123_456;
    for kind in BOTH {
        let mut server = Server::start_with_clock(kind, &[]);
        server.hold_at(AT);
        assert_eq!(server.now(), AT);
        server.step_micros(7);
        assert_eq!(server.now(), AT + 7);
        let script = "local t = redis.call('TIME'); return t[1] .. ' ' .. t[2]";
        assert_eq!(server.cli(&["EVAL", script, "0"]), "1700000000 123463");

        server.cli(&["SET", "k", "v", "PX", "1000"]);
        assert_eq!(server.cli(&["PTTL", "k"]), "1000");
        server.step_micros(999_000);
        assert_eq!(server.cli(&["PTTL", "k"]), "1");
        server.run();
        assert!(server.now() > AT + 1_000_000);
    }
}

#[test]
fn keys_expire_by_the_stepped_clock() {
    for kind in BOTH {
        let mut server = Server::start_with_clock(kind, &[]);
        server.cli(&["SET", "k", "v", "PX", "3600000"]);
        server.step(HOUR / 2);
        assert_eq!(server.cli(&["GET", "k"]), "v");
        server.step(-HOUR);
        let left: i64 = server.cli(&["PTTL", "k"]).parse().unwrap();
        assert!(left > HOUR * 1_000, "{left} ms are left, more than there were");
        server.step(2 * HOUR);
        assert_eq!(server.cli(&["GET", "k"]), "nil");
        until("the key is removed, too", || (server.cli(&["DBSIZE"]) == "0").then_some(()));
    }
}

// --- the proxy

#[test]
fn a_proxy_passes_requests_and_counts_them() {
    let (_server, proxy) = behind_proxy();
    let (mut one, mut other) = (connect(proxy.port()), connect(proxy.port()));
    for _ in 0..3 {
        assert_eq!(ping(&mut one, LONG), pong());
    }
    assert_eq!(ping(&mut other, LONG), pong());
    assert_eq!(proxy.connections(), 2);
    assert_eq!(proxy.requests(), 4);
    assert_eq!(proxy.bytes_to_server(), 4 * PING.len() as u64);
    assert_eq!(proxy.bytes_to_client(), 4 * PONG.len() as u64);
}

#[test]
fn a_proxy_passes_large_values() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    let value = vec![b'v'; 5_000_000];
    let request = [format!("*2\r\n$4\r\nECHO\r\n${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    client.write_all(&request).unwrap();
    let reply = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    assert!(read(&mut client, reply.len(), LONG) == Seen::Bytes(reply));
    assert_eq!(proxy.requests(), 1);
}

#[test]
fn refuse_closes_the_listener_and_resets_connections() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    assert_eq!(ping(&mut client, LONG), pong());

    proxy.set(Mode::Refuse);
    assert_eq!(read(&mut client, 1, LONG), Seen::Reset);
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

    proxy.set(Mode::Pass);
    assert_eq!(ping(&mut connect(proxy.port()), LONG), pong());
    assert_eq!(proxy.connections(), 2);
}

#[test]
fn a_black_hole_swallows_requests_and_resets_their_connections_when_it_ends() {
    let (server, proxy) = behind_proxy();
    let (mut before, mut idle) = (connect(proxy.port()), connect(proxy.port()));
    assert_eq!(ping(&mut before, LONG), pong());
    assert_eq!(ping(&mut idle, LONG), pong());
    let passed = proxy.bytes_to_server();

    proxy.set(Mode::Blackhole);
    let mut after = connect(proxy.port());
    assert_eq!(ping(&mut before, SHORT), Seen::Silence);
    assert_eq!(ping(&mut after, SHORT), Seen::Silence);
    assert_eq!(proxy.bytes_to_server(), passed);
    assert_eq!(proxy.requests(), 4);

    proxy.set(Mode::Pass);
    assert_eq!(read(&mut before, 1, LONG), Seen::Reset);
    assert_eq!(read(&mut after, 1, LONG), Seen::Reset);
    assert_eq!(ping(&mut idle, LONG), pong(), "this connection lost nothing");
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[test]
fn a_black_hole_hides_that_the_server_closes_its_connections() {
    let (mut server, proxy) = behind_proxy();
    let (mut idle, mut pinging) = (connect(proxy.port()), connect(proxy.port()));
    assert_eq!(ping(&mut idle, LONG), pong());
    server.pause();
    pinging.write_all(PING).unwrap();
    until("the request is passed on", || (proxy.bytes_to_server() == 2 * PING.len() as u64).then_some(()));

    // Of these two connections, the server's machine closes one and resets the one with unread data.
    proxy.set(Mode::Blackhole);
    server.kill();
    for client in [&mut idle, &mut pinging] {
        assert_eq!(read(client, 1, SHORT), Seen::Silence);
    }
    proxy.set(Mode::Pass);
    for client in [&mut idle, &mut pinging] {
        assert_eq!(read(client, 1, LONG), Seen::Reset);
    }
}

#[test]
fn slow_replies_are_late_complete_and_in_order() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    // So late that it does not arrive while the test runs.
    proxy.set(Mode::Slow(100 * LONG));
    assert_eq!(ping(&mut client, SHORT), Seen::Silence);
    until("the request is passed on", || (proxy.bytes_to_server() == PING.len() as u64).then_some(()));
    proxy.set(Mode::Refuse);

    proxy.set(Mode::Slow(Duration::from_millis(20)));
    let mut client = connect(proxy.port());
    client.write_all(b"ECHO 1\r\nECHO 2\r\n").unwrap();
    client.write_all(b"ECHO 3\r\n").unwrap();
    let replies = b"$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n";
    assert_eq!(read(&mut client, replies.len(), LONG), Seen::Bytes(replies.to_vec()));
}

#[test]
fn late_replies_still_arrive_after_the_server_has_closed() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    proxy.set(Mode::Slow(Duration::from_millis(50)));
    client.write_all(b"PING\r\nQUIT\r\n").unwrap();
    let replies = b"+PONG\r\n+OK\r\n";
    assert_eq!(read(&mut client, replies.len(), LONG), Seen::Bytes(replies.to_vec()));
    assert_eq!(read(&mut client, 1, LONG), Seen::Closed);
}

#[test]
fn answer_mode_answers_every_request_once_and_passes_none_on() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    assert_eq!(ping(&mut client, LONG), pong());
    let passed = proxy.bytes_to_server();

    for answer in
        ["-LOADING not yet\r\n", "-OOM too much\r\n", "-READONLY no\r\n", "-NOAUTH who?\r\n", "\0%&!garbage"]
    {
        proxy.set(Mode::Answer(answer.into()));
        client.write_all(b"PING\r\n*1\r\n$4\r\nPI").unwrap();
        client.write_all(b"NG\r\nPING\r\n").unwrap();
        let thrice = answer.repeat(3).into_bytes();
        assert_eq!(read(&mut client, thrice.len(), LONG), Seen::Bytes(thrice));
        assert_eq!(read(&mut client, 1, SHORT), Seen::Silence, "once each");
    }
    assert_eq!(proxy.bytes_to_server(), passed);
}

#[test]
fn a_connection_survives_answer_mode() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    proxy.set(Mode::Answer(b"-LOADING\r\n".to_vec()));
    client.write_all(PING).unwrap();
    assert_eq!(read(&mut client, 10, LONG), Seen::Bytes(b"-LOADING\r\n".to_vec()));
    proxy.set(Mode::Pass);
    assert_eq!(ping(&mut client, LONG), pong());
}

#[test]
fn half_close_ends_the_clients_input_and_swallows_its_requests() {
    let (_server, proxy) = behind_proxy();
    let mut before = connect(proxy.port());
    assert_eq!(ping(&mut before, LONG), pong());

    proxy.set(Mode::HalfClose);
    let mut after = connect(proxy.port());
    for client in [&mut before, &mut after] {
        assert_eq!(read(client, 1, LONG), Seen::Closed);
        client.write_all(PING).unwrap();
    }
    until("the requests are received", || (proxy.requests() == 3).then_some(()));
    assert_eq!(proxy.bytes_to_server(), PING.len() as u64);
}

#[test]
fn lose_replies_executes_requests_and_drops_their_replies() {
    let (server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    proxy.set(Mode::LoseReplies);
    client.write_all(b"INCR k\r\n").unwrap();
    until("the request is executed", || (server.cli(&["GET", "k"]) == "1").then_some(()));
    assert_eq!(read(&mut client, 1, SHORT), Seen::Silence);
    assert_eq!(proxy.bytes_to_client(), 0);

    proxy.set(Mode::Pass);
    assert_eq!(read(&mut client, 1, LONG), Seen::Reset);
}

#[test]
fn a_proxy_closes_connections_while_its_server_is_dead() {
    let (mut server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    assert_eq!(ping(&mut client, LONG), pong());
    server.kill();
    assert_eq!(read(&mut client, 1, LONG), Seen::Closed);
    assert_eq!(ping(&mut connect(proxy.port()), LONG), Seen::Closed);
    server.restart();
    assert_eq!(ping(&mut connect(proxy.port()), LONG), pong());
}

#[test]
fn a_client_that_disconnects_closes_its_connection_to_the_server() {
    let (server, proxy) = behind_proxy();
    let mut client = connect(proxy.port());
    assert_eq!(ping(&mut client, LONG), pong());
    client.shutdown(Shutdown::Both).unwrap();
    until("only the observer is connected", || {
        server.cli(&["INFO", "clients"]).contains("connected_clients:1\r").then_some(())
    });
}

#[tokio::test(start_paused = true)]
async fn a_dropped_proxy_is_gone_and_can_be_dropped_in_tokio() {
    let (_server, proxy) = behind_proxy();
    let (port, mut client) = (proxy.port(), connect(proxy.port()));
    assert_eq!(ping(&mut client, LONG), pong());
    drop(proxy);
    assert_eq!(read(&mut client, 1, LONG), Seen::Reset);
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}

// --- requests

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

#[test]
fn requests_are_counted_however_they_are_split() {
    let sent = [GET, PING, GET, b"*1\r\n$6\r\n\r\n*1\r\n\r\n"].concat();
    for cut in 0..=sent.len() {
        let mut requests = Requests::default();
        let before = requests.completed_by(&sent[..cut]);
        assert_eq!(before + requests.completed_by(&sent[cut..]), 4, "cut at {cut}");
        assert!(!requests.has_part_of_one());
    }
}

#[test]
fn half_a_request_is_not_counted() {
    let mut requests = Requests::default();
    assert_eq!(requests.completed_by(&GET[..GET.len() - 1]), 0);
    assert!(requests.has_part_of_one());
}

// --- the cluster

#[test]
fn a_cluster_serves_every_slot_and_a_replica_takes_over() {
    let mut cluster = Cluster::start();
    for index in 0..6 {
        let info = cluster.node(index).cli(&["CLUSTER", "INFO"]);
        assert!(info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384"), "{info}");
    }

    let client = redis::cluster::ClusterClient::new(cluster.urls()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let keys: Vec<_> = (0..60).map(|number| format!("key {number}")).collect();
    for key in &keys {
        redis::cmd("SET").arg(key).arg("v").exec(&mut connection).unwrap();
    }
    let primaries: std::collections::BTreeSet<_> = keys.iter().map(|key| cluster.primary_of(key)).collect();
    assert_eq!(Vec::from_iter(primaries), [0, 1, 2]);

    let key = &keys[0];
    let primary = cluster.primary_of(key);
    let replica = primary + 3;
    until("the replica is in sync", || {
        (cluster.node(replica).cli(&["DBSIZE"]) == cluster.node(primary).cli(&["DBSIZE"])).then_some(())
    });
    cluster.kill(primary);
    until("the replica takes over", || (cluster.primary_of(key) == replica).then_some(()));
    until("the replica serves the key", || {
        (cluster.node(replica).try_cli(&["GET", key]).as_deref() == Ok("v")).then_some(())
    });

    cluster.node_mut(primary).restart();
    until("the restarted node is a replica", || {
        cluster.node(primary).cli(&["INFO", "replication"]).contains("role:slave").then_some(())
    });
}
