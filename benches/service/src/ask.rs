//! Clients that speak HTTP: fifty connections, each of which asks, reads the whole answer, and asks again.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;

use crate::processors::{self, CLIENT};
use crate::server::Server;

/// What is asked, for a key.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) path: &'static str,
    /// The body, before and after the key.
    pub(crate) body: [&'static str; 2],
}

const CONNECTIONS: u64 = 50;

impl Asking {
    /// Asks once for each of these keys, fifty at a time; how many answers were yes.
    pub(crate) fn ask(self, server: &Server, keys: fn(u64) -> u64, requests: u64) -> u64 {
        let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
        let port = server.port;
        processors::on(CLIENT, || {
            let tasks = tokio::task::LocalSet::new();
            let share = requests / CONNECTIONS;
            let each: Vec<_> = (0..CONNECTIONS)
                .map(|number| {
                    let own = (number * share..(number + 1) * share).map(keys).collect();
                    tasks.spawn_local(self.converse(port, own))
                })
                .collect();
            let all = async {
                let mut allowed = 0;
                for one in each {
                    allowed += one.await.expect("no client panics");
                }
                allowed
            };
            runtime.block_on(tasks.run_until(all))
        })
    }

    async fn converse(self, port: u16, keys: Vec<u64>) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
        stream.set_nodelay(true).expect("a setting");
        let (mut request, mut answer, mut allowed) = (Vec::new(), Vec::with_capacity(4_096), 0);
        for key in keys {
            self.write(key, &mut request);
            stream.write_all(&request).await.expect("it is taken");
            answer.clear();
            while !is_whole(&answer) {
                assert!(stream.read_buf(&mut answer).await.expect("an answer") > 0, "it hangs up");
            }
            allowed += u64::from(is_yes(&answer));
        }
        allowed
    }

    fn write(self, key: u64, into: &mut Vec<u8>) {
        use std::io::Write;
        let Asking { path, body: [before, after] } = self;
        let key = format!("key:{key:012}");
        let length = before.len() + key.len() + after.len();
        into.clear();
        let written = write!(
            into,
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{before}{key}{after}"
        );
        written.expect("there is room in memory");
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let text = std::str::from_utf8(answer).expect("an answer is text");
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length == Some(body.len())
}

fn is_yes(answer: &[u8]) -> bool {
    let text = std::str::from_utf8(answer).expect("an answer is text");
    text.starts_with("HTTP/1.1 200") && text.contains("\"allowed\":true")
}
