//! Requests over connections of the loopback, many at a time.

use std::net::SocketAddr;
use std::sync::Mutex;

use axum::ServiceExt;
use axum::extract::Request;
use axum::serve::ListenerExt;
use bench_harness::case::Case;
use bench_harness::goal::Goal;
use bench_harness::report::Section;
use bench_harness::rounds::measure;
use bench_harness::turns::Turns;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::apps::{App, GOVERNOR, Place, TIDEGATE, Told, Visit, added, each};

/// The loads, the names of what is added to them, and what clients are told.
const LOADS: [(&str, &str, Told); 3] = [
    ("one connection", "added, one connection", Told::Nothing),
    ("two fields", "added, two fields", Told::Two),
    ("X-RateLimit", "added, X-RateLimit", Told::Three),
];
/// Requests that are sent together.
const TOGETHER: u64 = 64;
/// So many connections take turns, each with a server of its own: where its buffers happen to lie in memory makes more of a
/// difference than a layer does.
const CONNECTIONS: usize = 5;

pub(crate) fn section(turns: &Turns) -> Section {
    let title = "Over the loopback";
    let mut cases = Cases { what: "", all: Vec::new() };
    for (what, _, told) in LOADS {
        cases.what = what;
        each(Place::Around, told, &mut cases);
    }
    let mut measured = measure(title, &cases.all, turns);
    measured.extend(added(&measured, LOADS.iter().map(|(what, name, _)| (*what, *name))));
    Section {
        title,
        unit: "ns",
        text: "Nanoseconds for each request, client and server together; the layers are around the router. What is \
               added is a hundredth of it, so that its ratio moves a lot.",
        measured,
        goals: LOADS.map(|(_, name, _)| Goal::same(name, TIDEGATE, GOVERNOR, 0.6, 0.5)).into(),
    }
}

struct Cases {
    what: &'static str,
    all: Vec<Case>,
}

struct Connected {
    runtime: Runtime,
    stream: BufReader<TcpStream>,
}

impl Visit for Cases {
    fn app(&mut self, who: &'static str, app: impl App) {
        let connections: Vec<Connected> = (0..CONNECTIONS).map(|_| Connected::new(app.clone())).collect();
        let connections = Mutex::new((0, connections));
        self.all.push(Case::new(self.what, who, move |n| {
            let (turn, connections) = &mut *connections.lock().expect("nobody panics with it");
            *turn = (*turn + 1) % CONNECTIONS;
            let connected = &mut connections[*turn];
            (0..n.div_ceil(TOGETHER)).map(|_| connected.ask(TOGETHER)).sum::<u64>().min(n)
        }));
    }
}

impl Connected {
    fn new(app: impl App) -> Self {
        let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
        let stream = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it has one");
            let app = ServiceExt::<Request>::into_make_service_with_connect_info::<SocketAddr>(app);
            // Otherwise answers wait for acknowledgements, and those for more answers.
            let listener =
                listener.tap_io(|stream| stream.set_nodelay(true).expect("an option of every socket"));
            tokio::spawn(async move { axum::serve(listener, app).await });
            TcpStream::connect(address).await.expect("somebody who listens")
        });
        stream.set_nodelay(true).expect("an option of every socket");
        Connected { runtime, stream: BufReader::new(stream) }
    }

    /// How many of so many requests pass.
    fn ask(&mut self, requests: u64) -> u64 {
        self.runtime.block_on(async {
            let together =
                "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(usize::try_from(requests).expect("few"));
            self.stream.write_all(together.as_bytes()).await.expect("an open connection");
            let (mut passed, mut answer) = (0, Vec::new());
            for _ in 0..requests {
                answer.clear();
                while !answer.ends_with(b"\r\n\r\nok") {
                    let read = self.stream.read_until(b'k', &mut answer).await.expect("an answer");
                    assert!(read > 0, "the answer has an end");
                }
                passed += u64::from(answer.starts_with(b"HTTP/1.1 200"));
            }
            passed
        })
    }
}
