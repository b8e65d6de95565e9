//! Runs the listener behind a real HAProxy, with both versions of the PROXY protocol.

use std::env;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener as Ports};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::serve::ListenerExt;
use example_proxied::{Proxied, app};
use tidegate::Quota;
use tidegate::http::TrustedProxies;
use tidegate::http::proxy_protocol::ProxyProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The address that HAProxy connects from. No client has it.
const PROXY: &str = "127.0.0.9";

/// The options of HAProxy for both versions.
const VERSIONS: [&str; 2] = ["send-proxy", "send-proxy-v2"];

/// A process of HAProxy, killed on drop.
struct HAProxy {
    child: Child,
    /// The address for clients.
    v4: SocketAddr,
    /// The same for IPv6, if the machine supports it.
    v6: Option<SocketAddr>,
    /// The address of its statistics.
    stats: SocketAddr,
}

impl HAProxy {
    /// Starts HAProxy in front of `app`, with these options of the `server` line.
    async fn start(app: SocketAddr, options: &str) -> Self {
        // The ports were free a moment ago. If another process takes one first, HAProxy exits, and others are tried.
        for _ in 0..20 {
            let (v4, v6, stats) = (free("127.0.0.1"), free("::1"), free("127.0.0.1"));
            let (v4, stats) = (v4.expect("a port"), stats.expect("a port"));
            let config = config(stats, [Some(v4), v6], app, options);
            let mut command = Command::new(program());
            command.args(["-q", "-db", "-f", "/dev/stdin"]).stdin(Stdio::piped());
            let mut child = command.spawn().expect("haproxy; scripts/test installs it");
            let mut stdin = child.stdin.take().expect("a pipe");
            stdin.write_all(config.as_bytes()).expect("it reads its configuration");
            drop(stdin);
            let mut proxy = HAProxy { child, v4, v6, stats };
            if proxy.is_running().await {
                return proxy;
            }
        }
        panic!("no ports are free, or HAProxy rejects its configuration")
    }

    async fn is_running(&mut self) -> bool {
        until("HAProxy", async || match self.child.try_wait().expect("a child") {
            Some(_) => Some(false),
            None => TcpStream::connect(self.stats).await.is_ok().then_some(true),
        })
        .await
    }

    /// Returns the result of the health check, such as `L7OK`, and the HTTP status of its response.
    async fn check(&self) -> (String, String) {
        let mut stream = TcpStream::connect(self.stats).await.expect("a connection");
        stream.write_all(b"show stat\n").await.expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("text");
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = lines.next().expect("names of columns");
        let app = lines.find(|fields| fields.get(1) == Some(&"app")).expect("a line for the app");
        let field = |name| names.iter().position(|other| *other == name).map_or("", |column| app[column]);
        (field("check_status").to_owned(), field("check_code").to_owned())
    }
}

impl Drop for HAProxy {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have exited already
        let _ = self.child.wait();
    }
}

/// Returns the path of HAProxy: from the environment, from PATH, or where Debian installs it.
fn program() -> PathBuf {
    let named = env::var_os("TIDEGATE_HAPROXY").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join("haproxy")).find(|file| file.is_file());
    named.or(on_path).unwrap_or_else(|| "/usr/sbin/haproxy".into())
}

fn config(stats: SocketAddr, binds: [Option<SocketAddr>; 2], app: SocketAddr, options: &str) -> String {
    let binds: String = binds.iter().flatten().map(|address| format!("  bind {address}\n")).collect();
    format!(
        "global\n  stats socket ipv4@{stats} level admin\n\
         defaults\n  mode tcp\n  timeout connect 30s\n  timeout client 60s\n  timeout server 60s\n  timeout check 30s\n\
         listen proxied\n{binds}  option httpchk GET /\n  http-check expect string {PROXY}:\n  \
         server app {app} source {PROXY} {options}\n"
    )
}

/// Returns a free port at this address. `None` if the machine has no such address.
fn free(address: &str) -> Option<SocketAddr> {
    let address: IpAddr = address.parse().expect("an address");
    Ports::bind((address, 0)).ok()?.local_addr().ok()
}

/// Polls until there is a result, for up to 30 seconds.
async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..6_000 {
        if let Some(result) = poll().await {
            return result;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("timeout: {what}")
}

/// Starts the service. It accepts connections only from HAProxy.
async fn serve(quota: Quota) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its number");
    let protocol = ProxyProtocol::from(TrustedProxies::new([PROXY]).expect("an address"));
    let listener = Proxied::new(listener, protocol).tap_io(|_| ());
    let app = app(quota).expect("limits").into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends a request from this address. Returns the address and port of the client, the status, and the last line.
async fn send(from: &str, to: SocketAddr, request: &str) -> (SocketAddr, String, String) {
    let from: IpAddr = from.parse().expect("an address");
    let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.expect("a socket");
    socket.bind((from, 0).into()).expect("an address of this machine");
    let mut stream = socket.connect(to).await.expect("a connection");
    let own = stream.local_addr().expect("its address");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    let status = response.split(' ').nth(1).unwrap_or_default().to_owned();
    (own, status, response.lines().last().unwrap_or_default().to_owned())
}

fn get(field: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: a\r\n{field}connection: close\r\n\r\n")
}

#[tokio::test]
async fn the_key_is_the_address_of_the_client_in_both_versions() {
    for version in VERSIONS {
        let proxy = HAProxy::start(serve(Quota::per_hour(1)).await, version).await;
        if proxy.v6.is_none() {
            // To stderr directly, which the test harness does not capture.
            let _ = writeln!(std::io::stderr(), "SKIPPED: IPv6 addresses, because this machine has no ::1");
        }
        let clients = [("127.0.0.2", Some(proxy.v4)), ("127.0.0.3", Some(proxy.v4)), ("::1", proxy.v6)];
        for (from, to) in clients.into_iter().filter_map(|(from, to)| Some((from, to?))) {
            let (own, status, body) = send(from, to, &get("")).await;
            assert_eq!((status, body), ("200".to_owned(), own.to_string()), "{version}, for {from}");
            let (_, status, _) = send(from, to, &get("")).await;
            assert_eq!(status, "429", "{version}, for {from} again");
        }
    }
}

#[tokio::test]
async fn a_client_cannot_spoof_its_address() {
    for version in VERSIONS {
        let proxy = HAProxy::start(serve(Quota::per_hour(1)).await, version).await;
        let (own, status, body) = send("127.0.0.2", proxy.v4, &get("x-forwarded-for: 127.0.0.3\r\n")).await;
        assert_eq!((status, body), ("200".to_owned(), own.to_string()), "{version}");
        for spoofed in [
            "x-forwarded-for: 203.0.113.7\r\n",
            "forwarded: for=203.0.113.7\r\n",
            "x-real-ip: 203.0.113.7\r\n",
        ] {
            let (_, status, _) = send("127.0.0.2", proxy.v4, &get(spoofed)).await;
            assert_eq!(status, "429", "{version}, {spoofed}");
        }
        // A PROXY header of the client comes after that of the proxy, where it is not a valid request.
        let line = format!("PROXY TCP4 203.0.113.7 10.0.0.1 56324 80\r\n{}", get(""));
        let (_, status, _) = send("127.0.0.2", proxy.v4, &line).await;
        assert_eq!(status, "400", "{version}");
        assert_eq!(
            send("127.0.0.3", proxy.v4, &get("")).await.1,
            "200",
            "{version}: other clients have their own quota"
        );
    }
}

/// A health check has no client: `PROXY UNKNOWN`, or `LOCAL` in version 2. The client address is that of HAProxy.
#[tokio::test]
async fn health_checks_of_the_proxy_are_served() {
    for version in VERSIONS {
        let options = format!("{version} check check-send-proxy inter 50ms");
        let proxy = HAProxy::start(serve(Quota::per_hour(100_000)).await, &options).await;
        let (result, status) = until("a health check", async || {
            let (result, status) = proxy.check().await;
            (!["", "INI"].contains(&&*result) && !result.starts_with('*')).then_some((result, status))
        })
        .await;
        assert_eq!((&*result, &*status), ("L7OK", "200"), "{version}");
        let (own, status, body) = send("127.0.0.2", proxy.v4, &get("")).await;
        assert_eq!((status, body), ("200".to_owned(), own.to_string()), "{version}, meanwhile");
    }
}
