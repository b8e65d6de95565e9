//! Those who mean no good, by gRPC: frames written by hand, as no library would send them. What they can take is bounded,
//! and everybody else is answered.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tidegate_server::serve::Settings;

use crate::abuse::memory;
use crate::binary::Binary;
use crate::grpc_client::{Client, LIMIT};
use crate::running::{PATIENCE, Running, settings};

/// The kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Why a stream is reset: there are too many of them.
const REFUSED: [u8; 4] = [0, 0, 0, 7];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What every client says first, with these settings.
fn hello(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let settings: Vec<u8> = settings.iter().flat_map(one).collect();
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(SETTINGS, 0, 0, &settings)].concat()
}

/// A header that nobody is to remember.
fn header(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).ok().filter(|it| *it < 127).expect("it is short");
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

/// The head of a call. Streams of clients have odd numbers.
fn head(stream: u32, flags: u8) -> Vec<u8> {
    let headers = [(":method", "POST"), (":scheme", "http"), (":path", LIMIT), (":authority", "a")];
    let more = [("content-type", "application/grpc"), ("te", "trailers")];
    let block: Vec<u8> = headers.iter().chain(&more).flat_map(|(name, value)| header(name, value)).collect();
    frame(HEADERS, flags, stream, &block)
}

/// A whole call about a user, for its answer is longer than nothing.
fn call(stream: u32) -> Vec<u8> {
    let message = b"\x0a\x04edge\x12\x0f\x0a\x0d\x0a\x04user\x12\x05alice";
    let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
    let data = [&[0], &length[..], message].concat();
    [head(stream, END_HEADERS), frame(DATA, END_STREAM, stream, &data)].concat()
}

fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a time-out");
    stream.write_all(&hello(settings)).expect("sent");
    stream
}

/// The next frame: its kind, its stream and what is in it; `None` at the end.
fn next(stream: &mut impl Read) -> Option<(u8, u32, Vec<u8>)> {
    let mut start = [0; 9];
    stream.read_exact(&mut start).ok()?;
    let [a, b, c, kind, _, number @ ..] = start;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((kind, u32::from_be_bytes(number), payload))
}

/// Sends these again and again; whether the other side has put an end to it, by a close or by taking no more.
fn flood(stream: &mut TcpStream, mut frames: impl FnMut(u32) -> Vec<u8>) -> bool {
    (0..200_000).any(|number| stream.write_all(&frames(number)).is_err())
}

fn honest(server: &Binary) {
    assert_eq!(
        Client::new(server.grpc).check(&["nobody=asks"]).statuses.len(),
        1,
        "an honest client is answered"
    );
}

fn odd(number: usize) -> u32 {
    u32::try_from(2 * number + 1).expect("it is small")
}

#[test]
fn more_calls_at_once_than_there_may_be_are_refused_and_the_others_stay() {
    let server = Binary::start(&["serve"]);
    let mut client = connect(server.grpc, &[]);
    for number in 0..300 {
        client.write_all(&head(odd(number), END_HEADERS)).expect("sent");
    }
    let refused = std::iter::repeat_with(|| next(&mut client).expect("a frame"))
        .filter(|(kind, _, payload)| *kind == RESET && **payload == REFUSED)
        .take(300 - 256);
    let mut refused: Vec<_> = refused.map(|(_, stream, _)| stream).collect();
    refused.sort_unstable();
    assert_eq!(refused, (256..300).map(odd).collect::<Vec<_>>());
    honest(&server);
    client.write_all(&frame(RESET, 0, 1, &[0, 0, 0, 8])).expect("sent"); // one gives up, and there is room for another
    client.write_all(&call(odd(300))).expect("sent");
    let answered = std::iter::repeat_with(|| next(&mut client).expect("a frame"))
        .find(|(kind, stream, _)| *kind == HEADERS && *stream == odd(300));
    assert!(answered.is_some());
}

/// The first bytes of a greeting, of a frame, of a head or of a message, and then nothing more: those are let go after
/// seconds. Who has said no more than hello may rest for minutes.
#[test]
fn who_does_not_go_on_is_let_go_and_nobody_waits_for_it() {
    let begun = [&[][..], &[0], &[0, 0, 0, 0, 9, 1]].map(|message| match message {
        [] => head(1, END_HEADERS),
        message => [head(1, END_HEADERS), frame(DATA, 0, 1, message)].concat(),
    });
    let brief = Duration::from_millis(100);
    let_go(settings(|it| it.stalled = brief), &begun);
    let goes_on = [head(1, 0), frame(CONTINUATION, 0, 1, &header("a", "b"))].concat();
    let halves = [head(1, 0), goes_on, head(1, END_HEADERS)[..12].to_vec(), call(1)[..8].to_vec()];
    let_go(settings(|it| it.stalled = brief), &halves);
    // A whole call, and the beginning of another, in one piece.
    let_go(settings(|it| it.stalled = brief), &[[call(1), head(3, 0)].concat()]);
    let_go(settings(|it| it.idle = brief), &[Vec::new()]);
}

#[test]
fn who_does_not_end_its_greeting_is_let_go() {
    let brief = Duration::from_millis(100);
    let_go_saying(settings(|it| it.stalled = brief), &[hello(&[])[..20].to_vec(), hello(&[])[..1].to_vec()]);
}

fn let_go(settings: Settings, starts: &[Vec<u8>]) {
    let starts: Vec<_> = starts.iter().map(|start| [&hello(&[]), start.as_slice()].concat()).collect();
    let_go_saying(settings, &starts);
}

fn let_go_saying(settings: Settings, starts: &[Vec<u8>]) {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("grpc.sock");
    let _running = Running::listening_at(settings, None, Some(path.clone()));
    let honest = || Client::at(format!("unix:{}", path.display())).check(&["key=alice"]).statuses.len();
    let slow: Vec<_> = starts
        .iter()
        .map(|start| {
            let mut client = UnixStream::connect(&path).expect("a connection");
            client.set_read_timeout(Some(PATIENCE)).expect("a time-out");
            client.write_all(start).expect("sent");
            client
        })
        .collect();
    assert_eq!(honest(), 1);
    for mut client in slow {
        let mut said = Vec::new();
        // It ends, by a close or by a reset; a read that waits for ever would be told by its time-out.
        if let Err(error) = client.read_to_end(&mut said) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }
    assert_eq!(honest(), 1);
}

/// They allow no byte of an answer, or take none of what is sent.
#[test]
fn who_takes_no_answers_takes_no_memory() {
    let server = Binary::start(&["serve"]);
    honest(&server);
    let before = memory(&server);
    const INITIAL_WINDOW: u16 = 4;
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let mut client = connect(server.grpc, &[(INITIAL_WINDOW, 0)]);
            // More than may be at once: those beyond are refused, which nobody reads either.
            for number in 0..5_000 {
                if client.write_all(&call(odd(number))).is_err() {
                    break;
                }
            }
            client
        })
        .collect();
    honest(&server);
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} kB more for {} clients", clients.len());
}

/// Unfinished messages of all calls share one budget with the other protocols: calls beyond it fail, the others go on.
#[test]
fn unfinished_messages_are_bounded_for_all_calls_together() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("grpc.sock");
    let _running = Running::listening_at(settings(|it| it.unfinished = 1 << 20), None, Some(path.clone()));
    let mut client = UnixStream::connect(&path).expect("a connection");
    client.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    client.write_all(&hello(&[])).expect("sent");
    let unfinished = [&[0, 0, 0, 0xff, 0xff][..], &[b'x'; 15_000]].concat();
    let mut window = 65_535;
    let mut failed = Vec::new();
    for number in 0..40 {
        client.write_all(&head(odd(number), END_HEADERS)).expect("sent");
        for bytes in [&unfinished, &unfinished[5..], &unfinished[5..], &unfinished[5..]] {
            while window < bytes.len() {
                match next(&mut client).expect("the connection stays open") {
                    (WINDOW_UPDATE, 0, more) => {
                        let more = u32::from_be_bytes(more.try_into().expect("four bytes"));
                        window += usize::try_from(more).expect("it is small");
                    }
                    (HEADERS, stream, _) => failed.push(stream),
                    _ => {}
                }
            }
            if failed.contains(&odd(number)) {
                break;
            }
            window -= bytes.len();
            client.write_all(&frame(DATA, 0, odd(number), bytes)).expect("sent");
        }
    }
    let honest = Client::at(format!("unix:{}", path.display())).check(&["key=alice"]);
    assert_eq!(honest.statuses.len(), 1, "a whole message needs none of the budget");
    assert!(failed.len() >= 10, "only {} of 40 calls failed", failed.len());
    assert!(!failed.contains(&1), "calls within the budget stay: {failed:?}");
}

/// What costs the sender next to nothing and us something, without an end.
#[test]
fn floods_of_frames_are_cut_off() {
    let server = Binary::start(&["serve"]);
    honest(&server);
    let before = memory(&server);
    let long = vec![b'x'; 16_000];

    let mut resets = connect(server.grpc, &[]); // calls that are given up at once
    let flooding =
        |number: u32| [head(2 * number + 1, END_HEADERS), frame(RESET, 0, 2 * number + 1, &[0; 4])].concat();
    assert!(flood(&mut resets, flooding), "calls that are given up at once");

    let mut more = connect(server.grpc, &[]); // a head without an end
    more.write_all(&frame(HEADERS, 0, 1, &header("a", "b"))).expect("sent");
    assert!(
        flood(&mut more, |_| frame(CONTINUATION, 0, 1, &header("a", "b").repeat(1_000))),
        "a head without an end"
    );

    let mut body = connect(server.grpc, &[]); // a message without an end, whatever we allow
    body.write_all(&[head(1, END_HEADERS), frame(DATA, 0, 1, &[0, 0xff, 0xff, 0xff, 0xff])].concat())
        .expect("sent");
    assert!(flood(&mut body, |_| frame(DATA, 0, 1, &long)), "a message without an end");

    let mut pings = connect(server.grpc, &[]); // questions whose answers nobody reads
    assert!(flood(&mut pings, |_| frame(PING, 0, 0, &[7; 8]).repeat(100)), "answers that nobody reads");
    let mut settings = connect(server.grpc, &[]);
    assert!(flood(&mut settings, |_| frame(SETTINGS, 0, 0, &[]).repeat(100)), "answers that nobody reads");

    honest(&server);
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} kB more");
}

/// What is not HTTP/2 at all, or not in this order, ends the connection it comes by and no other.
#[test]
fn frames_that_make_no_sense_end_the_connection_they_come_by() {
    let server = Binary::start(&["serve"]);
    let wrong = [
        frame(DATA, 0, 1, b"before any head"),
        frame(HEADERS, END_HEADERS, 2, &header("a", "b")), // an even number is none of a client's
        frame(CONTINUATION, END_HEADERS, 1, &header("a", "b")),
        frame(HEADERS, END_HEADERS, 1, &[0xff; 20]), // no such header is remembered
        frame(SETTINGS, 0, 0, &[1, 2, 3]),
        frame(PING, 0, 1, &[0; 8]),
        frame(PING, 0, 0, &[0; 7]),
        [[0xff; 3].as_slice(), &[DATA, 0], &[0; 4]].concat(), // sixteen megabytes are announced
    ];
    for frame in wrong {
        let mut client = connect(server.grpc, &[]);
        let _ = client.write_all(&frame); // it may be closed already
        let said_goodbye = std::iter::from_fn(|| next(&mut client)).any(|(kind, ..)| kind == GO_AWAY);
        assert!(said_goodbye, "{frame:?}");
        honest(&server);
    }
}
