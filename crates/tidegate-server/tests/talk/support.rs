//! What the tests of this crate stand on: a conversation without sockets, on a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{ManualClock, Quota};
use tidegate_server::engine::{Engine, Rules};
use tidegate_server::resp::{Places, Service, Session, Then};

/// One client and its server.
pub(crate) struct Talk {
    pub(crate) clock: ManualClock,
    session: Session<ManualClock>,
    places: Places,
}

/// Some rules of every kind.
pub(crate) fn rules() -> Rules {
    Rules::new()
        .rate("everybody", Quota::per_second(100))
        .rate("user", Quota::per_second(10).burst(2))
        .rate("daily", "fixed_window 5/day".parse::<tidegate::Rule>().expect("a rule"))
        .rate("even", "leaky_queue 10/s queue 5".parse::<tidegate::Rule>().expect("a rule"))
        .places("at work", 2, Duration::from_secs(10))
        .places("short", 1, Duration::from_secs(1))
}

impl Talk {
    /// On a clock that does not stand at zero: clocks do not.
    pub(crate) fn new() -> Self {
        Talk::with(|service| service)
    }

    pub(crate) fn with(change: impl FnOnce(Service<ManualClock>) -> Service<ManualClock>) -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000_000));
        let engine = Engine::with_clock(rules(), clock.clone()).expect("rules");
        Talk::to(Arc::new(change(Service::new(engine))), clock)
    }

    pub(crate) fn to(service: Arc<Service<ManualClock>>, clock: ManualClock) -> Self {
        Talk { clock, session: Session::new(service, "test"), places: Places::default() }
    }

    /// Sends a line of words; the reply as bytes, with `\r\n` written as spaces.
    pub(crate) fn say(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.send(&words)
    }

    /// Sends these words, which may be any bytes.
    pub(crate) fn send(&mut self, words: &[&[u8]]) -> String {
        let (reply, is_open) = self.exchange(&request(words));
        assert!(is_open, "closed after {reply:?}");
        shown(&reply)
    }

    /// Sends these bytes; the reply, and whether the conversation goes on.
    pub(crate) fn exchange(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let (mut rest, mut all) = (bytes, Vec::new());
        loop {
            let mut out = Vec::new();
            let ran = self.session.run(rest, &mut self.places, &mut out);
            rest = &rest[ran.consumed..];
            all.extend(out);
            match ran.then {
                Then::Flush => {}
                Then::Close => return (all, false),
                Then::Needs(needs) => {
                    assert!(needs > rest.len(), "what needs {needs} bytes has them");
                    return (all, true);
                }
                // In memory everything is ready, but the reply to a wrong password.
                Then::Later(replies) => {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                    all.extend(runtime.expect("a runtime").block_on(replies.wait()));
                    assert!(shown(&all).starts_with("-WRONGPASS"), "{}", shown(&all));
                }
            }
        }
    }

    pub(crate) fn advance(&mut self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

/// As clients write it.
pub(crate) fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

pub(crate) fn shown(reply: &[u8]) -> String {
    String::from_utf8_lossy(reply).trim_end().replace("\r\n", " ")
}
