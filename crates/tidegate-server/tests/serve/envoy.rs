//! A real Envoy with its rate limit filter, in front of a small upstream, limited by the service.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

use crate::binary::Binary;
use crate::http::{answer, connect, exchange};
use crate::shared::until;

/// Killed when it is dropped.
struct Envoy {
    child: Child,
    admin: SocketAddr,
}

/// One way in: the service is asked, or nobody is there to be asked.
const WAYS: [(&str, &str, bool); 3] =
    [("limited", "tidegate", true), ("passing", "nobody", false), ("denying", "nobody", true)];

impl Envoy {
    fn start(folder: &Path, service: SocketAddr, upstream: SocketAddr) -> Self {
        let (file, admin) = (folder.join("envoy.yaml"), folder.join("admin"));
        fs::write(&file, configuration(service, upstream)).expect("written");
        let mut command = Command::new(program());
        command.arg("-c").arg(&file).arg("--admin-address-path").arg(&admin);
        command.args(["--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart", "-l", "error"]);
        let mut child = command.stdout(Stdio::null()).spawn().expect("Envoy");
        let admin = until("an Envoy", || {
            assert!(child.try_wait().expect("a child").is_none(), "Envoy has ended");
            fs::read_to_string(&admin).ok()?.trim().parse().ok()
        });
        Envoy { child, admin }
    }

    /// Where it lets clients in, as soon as it does.
    fn way(&self, name: &str) -> SocketAddr {
        until("a listener", || {
            let mut stream = connect(self.admin);
            write!(stream, "GET /listeners HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").ok()?;
            let mut told = String::new();
            stream.read_to_string(&mut told).ok()?;
            told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("::")?.parse().ok())
        })
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

/// The one that is named, else an installed one, else the one that `scripts/test` fetched.
fn program() -> PathBuf {
    let on_path =
        || env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join("envoy")).find(|it| it.is_file());
    let fetched = || Some(Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("envoy/envoy/_bin/envoy"));
    let found = env::var_os("TIDEGATE_ENVOY").map(PathBuf::from).or_else(on_path).or_else(fetched);
    found
        .filter(|it| it.is_file())
        .expect("Envoy is needed: scripts/test fetches it; or name yours in TIDEGATE_ENVOY")
}

fn configuration(service: SocketAddr, upstream: SocketAddr) -> String {
    let mut text = String::from("admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n");
    text.push_str("static_resources:\n  listeners:\n");
    for (name, cluster, deny) in WAYS {
        let listener = LISTENER.replace("NAME", name).replace("CLUSTER", cluster);
        text.push_str(&listener.replace("DENY", &deny.to_string()));
    }
    text.push_str("  clusters:\n");
    let nobody = "127.0.0.1:1".parse().expect("an address");
    for (name, address) in [("tidegate", service), ("nobody", nobody), ("upstream", upstream)] {
        let at = format!("{{address: {}, port_value: {}}}", address.ip(), address.port());
        let at = format!("{{endpoint: {{address: {{socket_address: {at}}}}}}}");
        let _ = writeln!(text, "  - name: {name}\n    connect_timeout: 5s");
        let _ = writeln!(
            text,
            "    load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{at}]}}]}}"
        );
        if name != "upstream" {
            text.push_str(HTTP2);
        }
    }
    text
}

const HTTP2: &str = r#"    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
"#;

/// More patience than its usual 20 ms: the machine of a test is slow.
const LISTENER: &str = r#"  - name: NAME
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: NAME
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              timeout: 30s
              failure_mode_deny: DENY
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {envoy_grpc: {cluster_name: CLUSTER}}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /watched}
                route:
                  cluster: upstream
                  rate_limits: [{actions: [{generic_key: {descriptor_key: watched, descriptor_value: "yes"}}]}]
              - match: {prefix: /both}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
                  - actions: [{generic_key: {descriptor_key: once, descriptor_value: "yes"}}]
              - match: {prefix: /heavy}
                route: {cluster: upstream}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
                      hits_addend: {number: 3}
              - match: {prefix: /}
                route:
                  cluster: upstream
                  rate_limits: [{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]}]
"#;

const RULES: &str = r#"
listeners: {grpc: {address: "127.0.0.1:0", headers: ratelimit}}
rules:
  - {name: user, domain: edge, match: {user: "*"}, key: user, quota: 4/h}
  - {name: once, domain: edge, match: {once: "yes"}, quota: fixed_window 1 per 7d}
  - {name: watched, domain: edge, match: {watched: "yes"}, quota: 1/day, shadow: true}
"#;

/// Says ok to everything, for as long as the test runs.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its number");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || say_ok(stream));
        }
    });
    address
}

fn say_ok(mut stream: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"); // Envoy may be gone
        }
    }
}

/// The status and the head of the answer.
fn get(way: SocketAddr, path: &str, user: &str) -> (u16, String) {
    let mut stream = connect(way);
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nx-user: {user}\r\n\r\n").expect("sent");
    let (status, head, _) = answer(&mut stream);
    (status, head)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn envoy_limits_by_what_it_is_told() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("tidegate.yaml");
    fs::write(&file, RULES).expect("written");
    let server = Binary::start(&["serve", "--config", file.to_str().expect("a name")]);
    let envoy = Envoy::start(folder.path(), server.grpc, upstream());
    let limited = envoy.way("limited");

    for left in ["3", "2", "1", "0"] {
        let (status, head) = get(limited, "/", "alice");
        assert_eq!((status, header(&head, "x-ratelimit-remaining")), (200, Some(left)), "{head}");
        assert_eq!(header(&head, "x-ratelimit-limit"), Some("4, 4;w=3600;name=\"user\""), "{head}");
        assert_eq!(
            (header(&head, "ratelimit-limit"), header(&head, "retry-after")),
            (Some("4"), None),
            "{head}"
        );
    }
    let (status, head) = get(limited, "/", "alice");
    assert_eq!((status, header(&head, "x-envoy-ratelimited")), (429, Some("true")), "{head}");
    assert_eq!(header(&head, "x-ratelimit-remaining"), Some("0"));
    let reset: u64 =
        header(&head, "x-ratelimit-reset").and_then(|reset| reset.parse().ok()).expect("a reset");
    assert!((1..=900).contains(&reset), "until one is there again: {reset}");
    assert_eq!(header(&head, "retry-after"), Some(reset.to_string().as_str()), "{head}");

    assert_eq!(get(limited, "/heavy", "bob").0, 200, "3 of 4");
    assert_eq!(get(limited, "/heavy", "bob").0, 429);
    assert_eq!(get(limited, "/", "bob").0, 200, "what was refused has cost nothing");

    let (status, head) = get(limited, "/both", "carol");
    let policies = "1, 4;w=3600;name=\"user\", 1;w=604800;name=\"once\"";
    assert_eq!((status, header(&head, "x-ratelimit-limit")), (200, Some(policies)), "{head}");
    assert_eq!(get(limited, "/both", "carol").0, 429);
    let (_, head) = get(limited, "/", "carol");
    assert_eq!(header(&head, "x-ratelimit-remaining"), Some("2"), "the refused one was not counted: {head}");

    for _ in 0..3 {
        assert_eq!(get(limited, "/watched", "dave").0, 200, "a rule that only watches refuses nobody");
    }
    let (status, head, _) = exchange(&mut connect(limited), "GET /", "");
    assert_eq!(
        (status, header(&head, "x-ratelimit-limit")),
        (200, None),
        "without a descriptor nobody is asked"
    );

    assert_eq!(get(envoy.way("passing"), "/", "alice").0, 200, "the service is not there");
    assert_eq!(get(envoy.way("denying"), "/", "alice").0, 500, "the service is not there");
}
