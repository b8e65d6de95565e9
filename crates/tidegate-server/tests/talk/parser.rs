//! The parser beside a slow one that builds lists of strings, on requests whole, broken and cut anywhere.

use tidegate_server::resp::{Bounds, Malformed, Parsed, Places, parse};

/// What the slow parser makes of some bytes.
#[derive(Debug, PartialEq, Eq)]
enum Slow {
    Whole(usize, Vec<Vec<u8>>),
    Unfinished,
    Wrong,
}

/// Letter by letter, from the description of the protocol.
fn slow(bytes: &[u8], bounds: &Bounds) -> Slow {
    if bytes.first() != Some(&b'*') {
        return slow_line(bytes, bounds);
    }
    let (count, mut at) = match slow_number(&bytes[1..]) {
        Ok((count, used)) => (count, 1 + used),
        Err(other) => return other,
    };
    if count > i128::try_from(bounds.args).expect("a bound") {
        return Slow::Wrong;
    }
    let mut args = Vec::new();
    for _ in 0..count {
        match bytes.get(at) {
            None => return Slow::Unfinished,
            Some(b'$') => at += 1,
            Some(_) => return Slow::Wrong,
        }
        let length = match slow_number(&bytes[at..]) {
            Ok((length, used)) => {
                at += used;
                length
            }
            Err(other) => return other,
        };
        if length < 0 || length > i128::try_from(bounds.arg).expect("a bound") {
            return Slow::Wrong;
        }
        let length = usize::try_from(length).expect("within bounds");
        if at + length + 2 > bounds.request {
            return Slow::Wrong;
        }
        let mut arg = Vec::new();
        for _ in 0..length {
            match bytes.get(at) {
                None => return Slow::Unfinished,
                Some(byte) => arg.push(*byte),
            }
            at += 1;
        }
        if bytes.len() < at + 2 {
            return Slow::Unfinished;
        }
        if &bytes[at..at + 2] != b"\r\n" {
            return Slow::Wrong;
        }
        at += 2;
        args.push(arg);
    }
    Slow::Whole(at, args)
}

/// A number and its `\r\n`, and how many bytes that were. Of lines longer than any number nothing good can come.
fn slow_number(bytes: &[u8]) -> Result<(i128, usize), Slow> {
    let line: Vec<u8> = bytes.iter().copied().take(23).take_while(|byte| *byte != b'\r').collect();
    if line.len() == 23 {
        return Err(Slow::Wrong);
    }
    match bytes.get(line.len()..line.len() + 2) {
        None if bytes.len() < 23 => return Err(Slow::Unfinished),
        Some(b"\r\n") => {}
        _ => return Err(Slow::Wrong),
    }
    let text = String::from_utf8(line).map_err(|_| Slow::Wrong)?;
    let number: i128 = text.parse().map_err(|_| Slow::Wrong)?;
    let is_as_written = number.to_string() == text && i64::try_from(number).is_ok();
    if is_as_written { Ok((number, text.len() + 2)) } else { Err(Slow::Wrong) }
}

fn slow_line(bytes: &[u8], bounds: &Bounds) -> Slow {
    let line: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != b'\n').collect();
    if line.len() >= bounds.line {
        return Slow::Wrong;
    }
    if line.len() == bytes.len() {
        return Slow::Unfinished;
    }
    let length = line.len() + 1;
    let line = line.strip_suffix(b"\r").map_or(line.clone(), <[u8]>::to_vec);
    let (mut args, mut rest) = (Vec::new(), line.iter().copied().peekable());
    loop {
        while rest.next_if(u8::is_ascii_whitespace).is_some() {}
        let Some(first) = rest.next() else { break };
        let mut arg = Vec::new();
        if first == b'"' || first == b'\'' {
            loop {
                match rest.next() {
                    None | Some(b'\\') => return Slow::Wrong,
                    Some(byte) if byte == first => break,
                    Some(byte) => arg.push(byte),
                }
            }
            if rest.peek().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return Slow::Wrong;
            }
        } else {
            arg.push(first);
            while let Some(byte) = rest.next_if(|byte| !byte.is_ascii_whitespace()) {
                arg.push(byte);
            }
            if arg.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
                return Slow::Wrong;
            }
        }
        args.push(arg);
    }
    if args.len() > bounds.args { Slow::Wrong } else { Slow::Whole(length, args) }
}

/// Both must say the same.
fn compare(bytes: &[u8], bounds: &Bounds, places: &mut Places) -> Result<Parsed, Malformed> {
    let fast = parse(bytes, bounds, places);
    let shown = bytes[..bytes.len().min(200)].escape_ascii();
    match (&fast, slow(bytes, bounds)) {
        (Ok(Parsed::Whole(length)), Slow::Whole(other, args)) => {
            let request = places.request(bytes);
            let same = args.iter().map(Vec::as_slice).eq(request.args(0));
            assert!(
                *length == other && same && request.len() == args.len(),
                "{shown}: {length} and {other}, {args:?}"
            );
        }
        (Ok(Parsed::Needs(needs)), Slow::Unfinished) => {
            assert!(*needs > bytes.len(), "{shown}: needs {needs}")
        }
        (Err(_), Slow::Wrong) => {}
        (fast, slow) => panic!("{shown}: {fast:?}, and the slow one: {slow:?}"),
    }
    fast
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (most as u64)).expect("an index")
    }
}

const PIECES: [&[u8]; 34] = [
    b"*",
    b"$",
    b"\r\n",
    b"\r",
    b"\n",
    b"-",
    b"+",
    b"0",
    b"1",
    b"2",
    b"3",
    b"9",
    b"10",
    b"64",
    b"99999999999999999999999",
    b"9223372036854775807",
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"$1\r\na\r\n",
    b"$2\r\nab\r\n",
    b"$0\r\n\r\n",
    b"$4\r\nPING\r\n",
    b"$11\r\nCL.THROTTLE\r\n",
    b"PING",
    b" ",
    b"\t",
    b"\"",
    b"'",
    b"\\",
    b"\0",
    b"\xff",
    b"*-1\r\n",
    b"*0\r\n",
];

fn text(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Half of them begin like an array, so that they get far.
    if random.below(2) == 0 {
        bytes.extend_from_slice(PIECES[16 + random.below(3)]);
    }
    for _ in 0..random.below(8) {
        let number = if random.below(2) == 0 { 19 + random.below(5) } else { random.below(PIECES.len()) };
        bytes.extend_from_slice(PIECES[number]);
    }
    bytes
}

#[test]
fn whatever_is_sent_both_parsers_say_the_same() {
    let (mut random, mut places) = (Random(0x5eed), Places::default());
    let small = {
        let mut bounds = Bounds::default();
        (bounds.args, bounds.arg, bounds.request, bounds.line) = (3, 10, 40, 20);
        bounds
    };
    let (mut whole, mut wrong, mut unfinished) = (0, 0, 0);
    for round in 0..400_000 {
        let bounds = if round % 2 == 0 { Bounds::default() } else { small };
        match compare(&text(&mut random), &bounds, &mut places) {
            Ok(Parsed::Whole(_)) => whole += 1,
            Ok(Parsed::Needs(_)) => unfinished += 1,
            Err(_) => wrong += 1,
        }
    }
    // Otherwise it would have tested little.
    assert!([whole, wrong, unfinished].iter().all(|count| *count > 20_000), "{whole} {wrong} {unfinished}");
}

#[test]
fn a_request_that_is_cut_anywhere_needs_no_more_than_what_is_missing() {
    let (bounds, mut places) = (Bounds::default(), Places::default());
    let request = b"*3\r\n$11\r\nCL.THROTTLE\r\n$0\r\n\r\n$120\r\n".iter().copied();
    let request: Vec<u8> = request.chain([b'x'; 120]).chain(*b"\r\n").collect();
    for length in 0..request.len() {
        let parsed = compare(&request[..length], &bounds, &mut places);
        assert!(
            matches!(parsed, Ok(Parsed::Needs(needs)) if needs > length && needs <= request.len()),
            "{length}"
        );
    }
    assert_eq!(compare(&request, &bounds, &mut places), Ok(Parsed::Whole(request.len())));
}

#[test]
fn lengths_are_judged_when_they_are_announced() {
    let (bounds, mut places) = (Bounds::default(), Places::default());
    let mut wrong = |bytes: &[u8]| compare(bytes, &bounds, &mut places).expect_err("too much");
    assert_eq!(wrong(b"*1025\r\n"), Malformed::Count);
    assert_eq!(wrong(b"*2147483647\r\n"), Malformed::Count);
    assert_eq!(wrong(b"*1\r\n$4097\r\n"), Malformed::Length);
    assert_eq!(wrong(b"*1\r\n$536870912\r\n"), Malformed::Length);
    assert_eq!(wrong(b"*1\r\n$-1\r\n"), Malformed::Length);
    assert_eq!(wrong(b"*1\r\nabc\r\n"), Malformed::NoLength(b'a'));
    assert_eq!(wrong(b"*1\r\n$4\r\nPINGxx"), Malformed::NoEnd);
    assert_eq!(wrong(b"*00000000000000000000000000"), Malformed::Count);
    assert_eq!(wrong(&[b'a'; 4096]), Malformed::Line);
    assert_eq!(wrong(b"\"abc\r\n"), Malformed::Quotes);
    let one = [b"$4096\r\n".as_slice(), &[b'x'; 4096], b"\r\n"].concat();
    let most = [b"*1024\r\n".as_slice(), &one.repeat(256)].concat();
    assert_eq!(wrong(&most), Malformed::Request);
}

#[test]
fn what_is_just_within_the_bounds_is_read() {
    let (request, mut places) = (b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n", Places::default());
    let just = |args, arg, request| {
        let mut bounds = Bounds::default();
        (bounds.args, bounds.arg, bounds.request) = (args, arg, request);
        bounds
    };
    assert_eq!(compare(request, &just(2, 4, 22), &mut places), Ok(Parsed::Whole(22)));
    assert_eq!(compare(request, &just(1, 4, 22), &mut places), Err(Malformed::Count));
    assert_eq!(compare(request, &just(2, 3, 22), &mut places), Err(Malformed::Length));
    assert_eq!(compare(request, &just(2, 4, 21), &mut places), Err(Malformed::Request));
}

#[test]
fn a_protocol_error_is_told_and_is_the_end() {
    let rows: [(&[u8], &str); 4] = [
        (b"*1\r\n$a\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*x\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\nabc\r\n", "-ERR Protocol error: expected '$', got 'a'"),
        (b"PING\r\n\"abc\r\nPING\r\n", "+PONG -ERR Protocol error: unbalanced quotes in request"),
    ];
    for (bytes, expected) in rows {
        let (reply, is_open) = crate::support::Talk::new().exchange(bytes);
        assert_eq!((crate::support::shown(&reply).as_str(), is_open), (expected, false));
    }
}
