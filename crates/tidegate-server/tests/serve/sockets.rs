//! What sockets do.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tidegate_server::engine::{Engine, Rules};
use tidegate_server::resp::Service;
use tidegate_server::serve::{Server, Settings};

use crate::binary::Binary;
use crate::running::{Running, ask, ping, rest, settings};

const THROTTLE: &[u8] = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$3\r\n999\r\n$1\r\n1\r\n$4\r\n3600\r\n";

#[test]
fn a_thousand_requests_in_one_piece() {
    let server = Running::new(settings(|_| {}));
    let mut client = server.connect();
    client.write_all(&THROTTLE.repeat(1_000)).expect("sent");
    for left in (0..1_000).rev() {
        let used = (1_000 - left) * 3_600;
        let expected = format!("*5\r\n:0\r\n:1000\r\n:{left}\r\n:-1\r\n:{used}\r\n");
        assert_eq!(ask(&mut client, b"", expected.len()), expected);
    }
    ping(&mut client);
}

#[test]
fn a_request_in_a_thousand_pieces() {
    let server = Running::new(settings(|_| {}));
    let mut client = server.connect();
    for byte in THROTTLE.repeat(10) {
        client.write_all(&[byte]).expect("sent");
    }
    let expected = "*5\r\n:0\r\n:1000\r\n:999\r\n:-1\r\n:3600\r\n";
    assert_eq!(ask(&mut client, b"", expected.len()), expected);
}

#[test]
fn a_request_larger_than_what_is_read_at_once() {
    let server = Running::new(settings(|_| {}));
    let mut client = server.connect();
    let word = [b"$4096\r\n".as_slice(), &[b'x'; 4096], b"\r\n"].concat();
    let request = [b"*201\r\n$6\r\nEXISTS\r\n".as_slice(), &word.repeat(200)].concat();
    assert_eq!(ask(&mut client, &request, 4), ":0\r\n");
    ping(&mut client);
}

#[test]
fn who_does_not_read_is_not_read_from_and_let_go() {
    let server = Running::new(settings(|settings| settings.stalled = Duration::from_millis(100)));
    let (mut greedy, mut other) = (server.connect(), server.connect());
    greedy.set_nonblocking(true).expect("a setting");
    let request = b"INFO\r\n".repeat(1_000);
    let mut written = 0;
    let ended = loop {
        match greedy.write(&request) {
            Ok(length) => written += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => ping(&mut other), // everybody else goes on
            Err(error) => break error.kind(),
        }
        // Some megabytes lie in the buffers of the system. Were they answered, there would be no end.
        assert!(written < 64 << 20, "everything is read though nothing of it is taken");
    };
    assert!(matches!(ended, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{ended:?}");
    ping(&mut other);
}

#[test]
fn who_reads_late_gets_everything() {
    let server = Running::new(settings(|_| {}));
    let mut client = server.connect();
    let text = vec![b'x'; 4096];
    let one = [b"*2\r\n$4\r\nECHO\r\n$4096\r\n".as_slice(), &text, b"\r\n"].concat();
    let mut writer = client.try_clone().expect("another handle");
    let writing = std::thread::spawn(move || (0..2_000).try_for_each(|_| writer.write_all(&one)));
    let expected = [b"$4096\r\n".as_slice(), &text, b"\r\n"].concat();
    let mut reply = vec![0; expected.len()];
    for _ in 0..2_000 {
        client.read_exact(&mut reply).expect("a reply");
        assert!(reply == expected);
    }
    writing.join().expect("no panic").expect("all was sent");
}

#[test]
fn who_says_nothing_is_let_go_and_who_asks_is_not() {
    let server = Running::new(settings(|settings| settings.idle = Duration::from_millis(200)));
    let (mut silent, mut talking) = (server.connect(), server.connect());
    ping(&mut silent);
    silent.set_nonblocking(true).expect("a setting");
    loop {
        ping(&mut talking);
        match silent.read(&mut [0]) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => panic!("{other:?}"),
        }
    }
    ping(&mut talking);
}

#[test]
fn one_too_many_is_told_so() {
    let server = Running::new(settings(|settings| settings.connections = 2));
    let (mut first, mut second) = (server.connect(), server.connect());
    ping(&mut first);
    ping(&mut second);
    assert_eq!(rest(&mut server.connect()), "-ERR max number of clients reached\r\n");
    drop(first);
    // The server notices when it notices; until then it is still full.
    let let_in = std::iter::repeat_with(|| server.connect()).take(10_000).find_map(|mut client| {
        let mut reply = [0; 7];
        client.write_all(b"PING\r\n").ok()?;
        client.read_exact(&mut reply).ok()?;
        (&reply == b"+PONG\r\n").then_some(client)
    });
    assert!(let_in.is_some());
    ping(&mut second);
}

/// Who finds no file left in the system would wait for ever, and with it whoever wants to end that.
#[test]
fn where_few_files_may_be_open_one_too_many_is_told_so_too() {
    let server = Binary::start_with_files(64, &["serve", "--threads", "1"]);
    let mut there: Vec<_> = (0..28).map(|_| server.connect()).collect();
    there.iter_mut().for_each(ping);
    for _ in 0..100 {
        assert_eq!(rest(&mut server.connect()), "-ERR max number of clients reached\r\n");
    }
    there.truncate(27);
    crate::shared::until("room", || {
        let mut client = server.connect();
        let mut reply = [0; 4];
        let _ = client.write_all(b"PING\r\n"); // it may have been turned away
        (client.read_exact(&mut reply).is_ok() && reply == *b"+PON").then_some(())
    });
}

#[test]
fn what_has_arrived_is_answered_before_the_end() {
    let mut server = Running::new(settings(|_| {}));
    let (mut client, mut idle) = (server.connect(), server.connect());
    ping(&mut idle);
    ping(&mut client);
    client.write_all(&b"PING\r\n".repeat(10_000)).expect("sent");
    assert_eq!(ask(&mut client, b"", 7), "+PONG\r\n"); // they have arrived, the first of them at least
    server.tell_to_end();
    assert_eq!(rest(&mut idle), "");
    let replies = rest(&mut client);
    assert!(replies.len() % 7 == 0 && replies == "+PONG\r\n".repeat(replies.len() / 7), "no reply is cut");
    let address = server.address;
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "nobody is let in any more");
}

#[test]
fn a_protocol_error_is_told_before_the_connection_is_closed() {
    let server = Running::new(settings(|_| {}));
    let mut client = server.connect();
    client.write_all(b"PING\r\n*1\r\n$536870912\r\n").expect("sent");
    assert_eq!(rest(&mut client), "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n");
}

#[test]
fn sockets_in_the_file_system() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tidegate.sock");
    let server = Running::listening_at(settings(|_| {}), Some(path.clone()), None);
    let mut client = UnixStream::connect(&path).expect("a connection");
    ping(&mut client);
    let taken = bind(&path).expect_err("it is listened on");
    assert!(taken.contains("is in use by another program"), "{taken}");
    drop((client, server));
    assert!(!path.exists(), "it is removed at the end");

    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket")); // as a server that was killed leaves it
    assert!(path.exists());
    let server = Running::listening_at(settings(|_| {}), Some(path.clone()), None);
    ping(&mut UnixStream::connect(&path).expect("a connection"));
    drop(server);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("letters.txt");
    std::fs::write(&path, "dear").expect("a file");
    let taken = bind(&path).expect_err("it is no socket");
    assert!(taken.contains("letters.txt is there, and is no socket; choose another path"), "{taken}");
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "dear");
}

#[test]
fn a_path_that_cannot_be_a_socket_is_a_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = [
        ("no/folder/a.sock", "there is no such folder; make it, or choose another"),
        (&"long".repeat(50), "it has at most 107 bytes"),
        ("", "is there, and is no socket"),
    ];
    for (name, sentence) in rows {
        let path = folder.path().join(name);
        let told = bind(&path).expect_err("it is none");
        assert!(told.starts_with(&format!("unix:{} ", path.display())) && told.contains(sentence), "{told}");
    }
}

fn bind(path: &std::path::Path) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = Server::new(Service::new(Engine::new(Rules::new()).expect("no rules")), Settings::default());
    runtime.block_on(server.unix(path)).map(drop).map_err(|error| error.to_string())
}

/// A socket that is closed with something unread is reset, and takes the replies with it.
#[test]
fn who_is_told_what_is_wrong_hears_it_though_more_was_coming() {
    let server = Running::new(settings(|_| {}));
    for _ in 0..20 {
        let mut client = server.connect();
        client.write_all(b"*1\r\n!\r\n").expect("sent");
        let _ = client.write_all(&[b'x'; 200_000]); // whether or not there is still somebody
        let said = rest(&mut client);
        assert!(said.starts_with("-ERR Protocol error"), "{said:?}");
    }
}

#[test]
fn who_is_asking_when_it_ends_hears_all_that_was_answered() {
    for _ in 0..10 {
        let mut server = Running::new(settings(|_| {}));
        let mut client = server.connect();
        client.write_all(&THROTTLE.repeat(100)).expect("sent");
        server.tell_to_end();
        let _ = client.write_all(&THROTTLE.repeat(100)); // it may be on its way out already
        let said = rest(&mut client); // and not an error
        assert!(said.ends_with("\r\n") || said.is_empty(), "whole replies: {said:?}");
    }
}

/// Every byte a read of its own: what is not enough yet is not copied and copied again.
#[test]
fn a_large_request_byte_by_byte_is_answered() {
    let server = Running::new(settings(|_| {}));
    let mut client = server.connect();
    let word = [b"$64\r\n".as_slice(), &[b'x'; 64], b"\r\n"].concat();
    let request = [b"*101\r\n$6\r\nEXISTS\r\n".as_slice(), &word.repeat(100)].concat();
    for byte in request {
        client.write_all(&[byte]).expect("sent");
    }
    assert_eq!(ask(&mut client, b"", 4), ":0\r\n");
}
