//! # Attack: floods and slow clients, and the latency of well-behaved clients
//!
//! ```text
//!   soak --program target/debug/tidegate --attack [--minutes 2]
//! ```
//!
//! Runs one attack after the other against one service, each for the same time. Meanwhile innocent clients send a few
//! requests per second over every protocol, on a kept connection and on new ones. The report has a line for each attack:
//! the 99th percentile and the maximum of the latency of all innocent clients, the protocol of the maximum, the peak of
//! memory, and the number of file descriptors that stay open afterwards.

use std::error::Error;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::latency::Latency;
use crate::support::{port, until};

/// The service and the addresses of its listeners.
struct Target {
    child: Child,
    http: SocketAddr,
    resp: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

/// The action of an attacker on one connection, repeated until `stop` is set.
struct Attack {
    name: &'static str,
    connections: usize,
    act: fn(&Target, usize, &AtomicBool) -> io::Result<()>,
}

/// One request of an innocent client, on its kept connection or on a new one.
type Asks = fn(&Target, &mut Option<TcpStream>) -> io::Result<()>;

const ATTACKS: [Attack; 9] = [
    Attack { name: "none", connections: 0, act: |_, _, _| Ok(()) },
    Attack {
        name: "deep pipelines, read",
        connections: 20,
        act: |target, _, stop| pipeline(target, stop, true),
    },
    Attack {
        name: "deep pipelines, not read",
        connections: 200,
        act: |target, _, stop| pipeline(target, stop, false),
    },
    Attack { name: "permits taken without end", connections: 4, act: permits },
    Attack { name: "new keys without end", connections: 8, act: keys },
    Attack { name: "commands of 1 MiB, unfinished", connections: 2_000, act: unfinished },
    Attack { name: "heads of HTTP, byte by byte", connections: 2_000, act: slow_head },
    Attack { name: "connections, opened and closed", connections: 8, act: connect_and_close },
    Attack { name: "batches of explanations", connections: 8, act: explanations },
];
const INNOCENTS: [(&str, Asks, bool); 8] = [
    ("http, kept", http, true),
    ("http, new", http, false),
    ("resp, kept", resp, true),
    ("resp, new", resp, false),
    ("grpc, kept", grpc, true),
    ("grpc, new", grpc, false),
    ("admin, kept", admin, true),
    ("admin, new", admin, false),
];
const RULES: &str = "rules:\n  - {name: user, key: user, missing: shared, quota: 1000000/s}\n  \
                     - {name: jobs, match: {job: '*'}, key: job, quota: 1000000 at once}\n";
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause of an innocent client between two requests.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs all attacks and prints a table.
pub(crate) fn run(program: &Path, minutes: f64) -> Result<(), Box<dyn Error>> {
    let each = Duration::from_secs_f64(minutes * 60.0 / ATTACKS.len() as f64);
    println!("attack: {} attacks, {:.1} s each\n", ATTACKS.len(), each.as_secs_f64());
    println!("| attack | innocent requests | failed | p99 | worst | of | peak memory | files left |");
    println!("|---|---|---|---|---|---|---|---|");
    for attack in &ATTACKS {
        let target = Target::start(program)?;
        let (before, seen) = (target.files()?, Mutex::new(Seen::default()));
        let stop = AtomicBool::new(false);
        let began = Instant::now();
        let mut peak = 0;
        thread::scope(|scope| -> io::Result<()> {
            for number in 0..attack.connections {
                let small = thread::Builder::new().stack_size(128 << 10);
                let (target, stop) = (&target, &stop);
                small.spawn_scoped(scope, move || {
                    while !stop.load(Ordering::Relaxed) {
                        if (attack.act)(target, number, stop).is_err() {
                            thread::sleep(Duration::from_millis(20)); // it was let go, and comes again
                        }
                    }
                })?;
            }
            for (name, ask, keeps) in INNOCENTS {
                let (target, seen, stop) = (&target, &seen, &stop);
                scope.spawn(move || innocent(target, name, ask, keeps, seen, stop));
            }
            while began.elapsed() < each {
                thread::sleep(Duration::from_millis(50));
                peak = peak.max(target.memory()?);
            }
            stop.store(true, Ordering::Relaxed);
            Ok(())
        })?;
        thread::sleep(Duration::from_secs(1));
        let seen = seen.into_inner()?;
        let left = target.files()?.saturating_sub(before);
        println!(
            "| {} | {} | {} | {:.1} ms | {:.1} ms | {} | {} MB | {left} |",
            attack.name,
            seen.latency.count(),
            seen.failed,
            seen.latency.percentile(99).as_secs_f64() * 1e3,
            seen.latency.worst().as_secs_f64() * 1e3,
            seen.worst.1,
            peak >> 10,
        );
    }
    Ok(())
}

/// The latencies and failures of the innocent clients.
#[derive(Default)]
struct Seen {
    latency: Latency,
    worst: (Duration, &'static str),
    failed: u64,
}

fn innocent(
    target: &Target,
    name: &'static str,
    ask: Asks,
    keeps: bool,
    seen: &Mutex<Seen>,
    stop: &AtomicBool,
) {
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let asked = ask(target, &mut connection);
        let took = began.elapsed();
        let mut seen = seen.lock().expect("no client panics");
        if asked.is_ok() {
            seen.latency.add(i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
            seen.worst = seen.worst.max((took, name));
        } else {
            seen.failed += 1;
        }
        drop(seen);
        if !keeps || asked.is_err() {
            connection = None;
        }
        thread::sleep(PAUSE);
    }
}

// === the service ===

impl Target {
    fn start(program: &Path) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("tidegate.yaml");
        fs::write(&file, RULES)?;
        let [http, resp, grpc, admin] = [port::free(), port::free(), port::free(), port::free()]
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let child = Command::new(program)
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .args(["--http", &http.to_string(), "--resp", &resp.to_string()])
            .args(["--grpc", &grpc.to_string(), "--admin", &admin.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        until("the service listens", || TcpStream::connect(admin).is_ok().then_some(()));
        Ok(Target { child, http, resp, grpc, admin, _folder: folder })
    }

    /// Returns the resident memory in kilobytes.
    fn memory(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        Ok(line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0))
    }

    fn files(&self) -> io::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

// === innocent clients ===

/// Sends a request on the kept connection or on a new one, and reads until the response ends with `end`.
fn exchange(address: SocketAddr, kept: &mut Option<TcpStream>, bytes: &[u8], end: &[u8]) -> io::Result<()> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => connect(address)?,
    };
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    let mut piece = [0; 4_096];
    while !answer.ends_with(end) {
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => answer.extend_from_slice(&piece[..length]),
        }
    }
    *kept = Some(stream);
    Ok(())
}

fn http(target: &Target, kept: &mut Option<TcpStream>) -> io::Result<()> {
    let body = r#"{"descriptors":{"user":"innocent"}}"#;
    exchange(target.http, kept, &post("/v1/check", body), b"}")
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn resp(target: &Target, kept: &mut Option<TcpStream>) -> io::Result<()> {
    exchange(target.resp, kept, b"TG.CHECK user innocent\r\n", b"\r\nstrict\r\n")
}

fn admin(target: &Target, kept: &mut Option<TcpStream>) -> io::Result<()> {
    exchange(target.admin, kept, b"GET /admin/blocks HTTP/1.1\r\nhost: localhost\r\n\r\n", b"}")
}

/// `grpc.health.v1.Health/Check`, by hand: the preface and settings on a new connection, then a call on the next stream.
fn grpc(target: &Target, kept: &mut Option<TcpStream>) -> io::Result<()> {
    let is_new = kept.is_none();
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => connect(target.grpc)?,
    };
    if is_new {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    }
    // A connection is kept for one call only: each call is on stream 1, and kept connections ping instead.
    if is_new {
        let mut head = vec![0x83, 0x86]; // POST, http
        for (name, value) in [
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            head.push(0);
            for text in [name, value] {
                head.push(u8::try_from(text.len()).expect("short texts"));
                head.extend_from_slice(text.as_bytes());
            }
        }
        let length = u8::try_from(head.len()).expect("a short head");
        stream.write_all(
            &[&[0, 0, length, 1, 4, 0, 0, 0, 1][..], &head, &[0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]]
                .concat(),
        )?;
        read_frames(&mut stream, |kind, flags| kind == 1 && flags & 1 != 0)?;
    } else {
        stream.write_all(b"\0\0\x08\x06\0\0\0\0\0innocent")?;
        read_frames(&mut stream, |kind, flags| kind == 6 && flags & 1 != 0)?;
    }
    *kept = Some(stream);
    Ok(())
}

/// Reads frames of HTTP/2 up to one of this kind.
fn read_frames(stream: &mut TcpStream, is_last: impl Fn(u8, u8) -> bool) -> io::Result<()> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        io::copy(&mut stream.take(length.into()), &mut io::sink())?;
        if is_last(head[3], head[4]) {
            return Ok(());
        }
    }
}

// === attackers ===

fn pipeline(target: &Target, stop: &AtomicBool, reads: bool) -> io::Result<()> {
    let mut stream = connect(target.resp)?;
    let commands = b"TG.CHECK user greedy\r\n".repeat(2_000);
    if !reads {
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    }
    let mut reader = stream.try_clone()?;
    reader.set_read_timeout(Some(Duration::from_millis(100)))?;
    thread::scope(|scope| {
        if reads {
            scope.spawn(move || {
                let mut piece = vec![0; 64 << 10];
                while !stop.load(Ordering::Relaxed) {
                    if matches!(reader.read(&mut piece), Ok(0)) {
                        return;
                    }
                }
            });
        }
        while !stop.load(Ordering::Relaxed) {
            match stream.write_all(&commands) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
        Ok(())
    })
}

fn flood(target: &Target, stop: &AtomicBool, commands: impl Fn(u64) -> String) -> io::Result<()> {
    let mut stream = connect(target.resp)?;
    let mut piece = vec![0; 64 << 10];
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let batch: String = (number..number + 500).map(&commands).collect();
        number += 500;
        stream.write_all(format!("{batch}ECHO end-of-batch\r\n").as_bytes())?;
        let mut tail = Vec::new();
        while !tail.ends_with(b"end-of-batch\r\n") {
            let length = stream.read(&mut piece)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            tail.extend_from_slice(&piece[..length]);
            let surplus = tail.len().saturating_sub(32);
            tail.drain(..surplus);
        }
    }
    Ok(())
}

fn permits(target: &Target, attacker: usize, stop: &AtomicBool) -> io::Result<()> {
    flood(target, stop, |number| format!("TG.ACQUIRE jobs {attacker}-{number}\r\n"))
}

fn keys(target: &Target, attacker: usize, stop: &AtomicBool) -> io::Result<()> {
    flood(target, stop, |number| format!("TG.CHECK user {attacker}-{number}\r\n"))
}

fn unfinished(target: &Target, _: usize, stop: &AtomicBool) -> io::Result<()> {
    let mut stream = connect(target.resp)?;
    stream.write_all(b"*1000\r\n$4\r\nECHO\r\n")?;
    let argument = format!("$4000\r\n{}\r\n", "x".repeat(4_000));
    for _ in 0..250 {
        stream.write_all(argument.as_bytes())?;
    }
    hold(stop);
    Ok(())
}

fn slow_head(target: &Target, _: usize, stop: &AtomicBool) -> io::Result<()> {
    let mut stream = connect(target.http)?;
    for byte in b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\nx: ".iter().chain(std::iter::repeat(&b'y')) {
        stream.write_all(&[*byte])?;
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Closes with a reset. An orderly close keeps the port for a minute, and the innocent clients would run out of ports.
fn connect_and_close(target: &Target, _: usize, _: &AtomicBool) -> io::Result<()> {
    for _ in 0..50 {
        SockRef::from(&connect(target.resp)?).set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

fn explanations(target: &Target, _: usize, stop: &AtomicBool) -> io::Result<()> {
    let one = r#"{"descriptors":{"user":"greedy","job":"x"}}"#;
    let request = post("/v1/explain", &format!("[{}]", vec![one; 256].join(",")));
    let mut kept = None;
    while !stop.load(Ordering::Relaxed) {
        exchange(target.http, &mut kept, &request, b"}]")?;
    }
    Ok(())
}

fn hold(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
}
