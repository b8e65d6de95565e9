//! A server that is put to the test: `tidegate serve --conformance`, and `tidegate conformance --engine resp://…`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use crate::binary::Binary;
use crate::shared::Redis;
use crate::shell::shell;

/// What becomes of files at a server.
fn test(address: impl std::fmt::Display, files: &[&str]) -> (Option<i32>, String, String) {
    let engine = format!("resp://{address}");
    shell(&[&["conformance", "--engine", &engine], files].concat())
}

/// The same, of a file with this text.
fn test_text(address: impl std::fmt::Display, text: &str) -> (Option<i32>, String, String) {
    let file = tempfile::NamedTempFile::new().expect("there is room");
    fs::write(file.path(), text).expect("written");
    test(address, &[file.path().to_str().expect("a name")])
}

/// A connection on which each command is answered with a line.
struct Client(BufReader<TcpStream>);

impl Client {
    fn say(&mut self, words: &[&str]) -> String {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_mut().write_all(bytes.as_bytes()).expect("sent");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// The eight values of a decision, in one line.
    fn decided(&mut self, words: &[&str]) -> String {
        assert_eq!(self.say(words), "*8");
        let mut values = Vec::new();
        while values.len() < 8 {
            let line = self.line();
            values.push(if line.starts_with('$') { self.line() } else { line[1..].to_owned() });
        }
        values.join(" ")
    }
}

fn client(server: &Binary) -> Client {
    Client(BufReader::new(server.connect()))
}

#[test]
fn every_vector_holds_at_a_server_that_runs() {
    let server = Binary::start(&["serve", "--conformance"]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let files = fs::read_dir(folder).expect("part of the repository").flatten();
    let files: Vec<String> = files
        .map(|file| file.path().to_str().expect("a name").to_owned())
        .filter(|file| file.ends_with(".vectors"))
        .collect();
    assert!(files.len() >= 10, "{files:?}");
    let (code, said, wrong) = test(server.address, &files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((code, &*wrong), (Some(0), ""), "{said}");
    let mut lines = said.lines();
    let numbers =
        |line: &str| -> Vec<usize> { line.split(' ').filter_map(|word| word.parse().ok()).collect() };
    let played = numbers(lines.next().expect("what was played"));
    assert!(played[0] >= 204 && played[1] >= 810 && played[2] == 0, "{said}");
    let skipped: Vec<(usize, &str)> =
        lines.map(|line| (numbers(line)[0], line.split_once(": ").expect("a reason").1)).collect();
    let of = |word: &str| -> usize {
        skipped.iter().filter(|(_, reason)| reason.contains(word)).map(|(count, _)| count).sum()
    };
    assert!(of("a pacer") >= 32 && of("for force") >= 26 && of("for take") >= 7, "{said}");
    let all: usize = skipped.iter().map(|(count, _)| count).sum();
    assert_eq!(of("a pacer") + of("for force") + of("for take"), all, "nothing else is skipped: {said}");
}

#[test]
fn every_figure_that_is_wrong_is_told() {
    let server = Binary::start(&["serve", "--conformance"]);
    let wrong = "case one rule
quota 10/s burst 3
    0ms  1  allow         1  100ms           # two are left
    0ms  1  retry 100ms   1  200ms           # it passes
    0ms  1  allow         0  299ms           # 300 ms
    0ms  1  retry 99ms    0  300ms           # 100 ms
    0ms  4  refuse        0  300ms           # never
    0ms  1  retry 100ms   0  300ms  limit 4  # three
case a policy
rule a = fixed_window 2/s
rule b = fixed_window 5/min
    0s   2        allow      [0 4]  -           rule a   # three
    0s   1        retry 1s   [0 3]  [1s 59s]    rule a   # sixty
    0s   1        retry 1s   [0 3]  [1s 60s]    rule b   # rule a
    1s   peek 1   allow      [1 3]  [1s 59s]    rule a   # two
    1s   refund 1 -          [2 5]                       # four
    1s   reset    -          [1 5]                       # two
case a change
quota 10/s burst 10
    0s      10   allow   0    1s
    500ms   change quota 20/s burst 20
    500ms   0    allow   14   250ms                      # fifteen
case a queue
rule leaky_queue 10/s queue 2
    0s   1   allow
    0s   1   after 99ms                                  # 100 ms
";
    let (code, said, _) = test_text(server.address, wrong);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\n4 cases, 17 rows, 14 differences\n"), "{said}");
    let rows: Vec<Vec<&str>> = said
        .lines()
        .filter(|line| line.contains(".tmp") || line.contains("server"))
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    let columns: Vec<&str> = rows.iter().map(|row| row[row.len() - 3]).collect();
    let wanted = [
        "remaining",
        "outcome",
        "reset",
        "outcome",
        "outcome",
        "limit",
        "remaining of rule b",
        "reset of rule b",
        "rule",
        "remaining of rule b",
        "remaining of rule b",
        "remaining of rule a",
        "remaining",
        "outcome",
    ];
    assert_eq!(columns, wanted, "{said}");
    assert!(rows.iter().all(|row| row.contains(&"server")), "{said}");
    assert_eq!(&rows[3][rows[3].len() - 2..], ["retry 100ms", "retry 99ms"]);

    let (code, _, _) = test_text(server.address, "quota 10/s brust 3\n");
    assert_eq!(code, Some(2));
}

#[test]
fn a_case_is_played_up_to_what_cannot_be_said() {
    let server = Binary::start(&["serve", "--conformance"]);
    let text = "quota 10/s burst 3
    0s   1        allow  2
    0s   force 5  allow
    0s   1        refuse
case at once
    0s   take 5   took 3
case other numbers
    0s   3   allow  0
    0s   change quota 10/s burst 4
    0s   0   allow  1
case another algorithm
    0s   3   allow  0
    0s   change rule fixed_window 4/s
    0s   0   allow  1
";
    let (code, said, wrong) = test_text(server.address, text);
    assert_eq!((code, &*wrong), (Some(0), ""), "{said}");
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.remove(0), "3 cases, 5 rows, 0 differences");
    let starts = [
        "2 rows skipped: the protocol has no word for force",
        "1 case skipped: the protocol has no word for take",
    ];
    assert!(starts.iter().all(|start| lines.iter().any(|line| line.starts_with(start))), "{said}");
    assert!(lines.contains(
        &"2 rows skipped: to a server a rule with another algorithm is another rule, of which nothing has been used"
    ), "{said}");
}

#[test]
fn a_server_that_is_not_for_testing_says_how_to_start_one() {
    let server = Binary::start(&["serve"]);
    let (code, said, wrong) = test_text(server.address, "quota 1/s\n 0s 1 allow\n");
    assert_eq!((code, &*said), (Some(1), ""));
    assert!(
        wrong.contains("its own clock and its own rules") && wrong.contains("tidegate serve --conformance"),
        "{wrong}"
    );
    assert!(client(&server).say(&["TG.CASE", "AT", "5"]).starts_with("-ERR this server has its own clock"));
}

#[test]
fn nobody_and_somebody_else_and_no_address_are_sentences() {
    let vectors = "quota 1/s\n 0s 1 allow\n";
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number");
    let (code, _, wrong) = test_text(nobody, vectors);
    assert!(code == Some(1) && wrong.contains("cannot be reached"), "{wrong}");
    assert!(wrong.contains("start a server there, by `tidegate serve --conformance`"), "{wrong}");

    let server = Binary::start(&["serve", "--conformance"]);
    let (code, _, wrong) = test_text(server.http, vectors);
    assert!(code == Some(1) && wrong.contains("is there another program?"), "{wrong}");
    let redis = Redis::start();
    let (code, _, wrong) = test_text(redis.url().trim_start_matches("redis://"), vectors);
    assert!(code == Some(1) && wrong.contains("this is no Tidegate, or an older one"), "{wrong}");

    for (address, why) in [
        ("", "names no host"),
        ("localhost:65536", "`65536` is no port"),
        ("localhost:6380/1", "a server has no databases"),
    ] {
        let (code, _, wrong) = test_text(address, vectors);
        assert!(code == Some(2) && wrong.contains(why), "{address}: {wrong}");
    }
}

#[test]
fn a_password_is_said() {
    let server = Binary::start(&["serve", "--conformance", "--password", "sesame", "--user", "tester"]);
    let vectors = "quota 1/s\n 0s 1 allow\n";
    let (code, _, wrong) = test_text(server.address, vectors);
    assert!(code == Some(1) && wrong.contains("NOAUTH"), "{wrong}");
    let (code, _, wrong) = test_text(format!("tester:simsim@{}", server.address), vectors);
    assert!(code == Some(1) && wrong.contains("WRONGPASS") && !wrong.contains("simsim"), "{wrong}");
    let (code, said, _) = test_text(format!("tester:sesame@{}", server.address), vectors);
    assert_eq!((code, &*said), (Some(0), "1 case, 1 row, 0 differences\n"));
}

#[test]
fn time_and_rules_are_set_by_clients() {
    let server = Binary::start(&["serve", "--conformance"]);
    let mut client = client(&server);
    let rules = |quota: &str| format!("rules: [{{name: a, key: user, quota: {quota}}}]");
    let check = ["TG.CHECK", "a", "alice", "COST", "2"];
    assert_eq!(client.say(&["TG.CASE", "RULES", &rules("2/s")]), "+OK");
    assert_eq!(client.decided(&check), "1 allowed 0 2 0 1000000 a strict");
    assert_eq!(client.say(&["tg.case", "at", "400000"]), "+OK");
    assert_eq!(client.decided(&check), "0 refused 600000 2 0 600000 a strict");
    assert_eq!(client.say(&["TG.CASE", "CHANGE", &rules("4/s")]), "+OK");
    assert_eq!(client.decided(&check), "1 allowed 0 4 0 800000 a strict");
    assert_eq!(client.say(&["TG.CASE", "RULES", &rules("4/s")]), "+OK");
    assert_eq!(client.decided(&check), "1 allowed 0 4 2 500000 a strict");

    let mut wrong = |words: &[&str]| client.say(&[&["TG.CASE"], words].concat());
    assert!(wrong(&["RULES", "rules: [{name: a, qouta: 1/s}]"]).contains("unknown field `qouta`"));
    assert!(wrong(&["CHANGE", "rules: [{name: a, quota: 0/s}]"]).starts_with("-ERR these rules cannot"));
    for instant in ["-1", "soon", "9007199254740992", ""] {
        assert!(
            wrong(&["AT", instant]).ends_with("use a whole number from 0 to 9007199254740991"),
            "{instant}"
        );
    }
    assert!(wrong(&["WHEN", "5"]).starts_with("-ERR syntax error"));
    assert!(wrong(&["AT"]).starts_with("-ERR wrong number of arguments"));
    assert_eq!(client.decided(&["TG.PEEK", "a", "alice", "COST", "0"]), "1 allowed 0 4 2 500000 a strict");

    let many: Vec<String> =
        (0..1_000).map(|number| format!("{{name: a{number}, key: user, quota: 1/s}}")).collect();
    assert_eq!(client.say(&["TG.CASE", "RULES", &format!("rules: [{}]", many.join(","))]), "+OK");
}

#[test]
fn it_warns_when_it_starts_and_does_not_start_where_others_could_set_the_time() {
    let mut server = Binary::start(&["serve", "--conformance"]);
    let mut line = String::new();
    let stderr = server.child.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    assert!(line.contains("clients of the Redis protocol set the time and the rules"), "{line}");

    let refused = |arguments: &[&str], why: &str| {
        // Nor could it listen at the socket: if it is not refused before that, it ends all the same.
        let serve = ["serve", "--conformance", "--http", "off", "--resp-socket", "/nonexistent/socket"];
        let (code, _, wrong) = shell(&[&serve[..], arguments].concat());
        assert!(code == Some(1) && wrong.contains("error[conformance]") && wrong.contains(why), "{wrong}");
    };
    refused(&["--resp", "0.0.0.0:0"], "0.0.0.0:0 is open to others");
    refused(&["--resp", "[::]:0"], "listen on this machine only");
    refused(&["--redis", "redis://127.0.0.1:1"], "counts are in memory");
    let file = tempfile::NamedTempFile::new().expect("there is room");
    fs::write(file.path(), "listeners: {resp: ['127.0.0.1:0', '0.0.0.0:0']}\nrules: [{name: a, quota: 1/s}]")
        .expect("written");
    refused(&["--config", file.path().to_str().expect("a name")], "0.0.0.0:0 is open to others");
}
