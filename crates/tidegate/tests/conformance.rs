//! # The vectors hold, and the runner would say so if they did not
//!
//! Every file in `conformance/` is run against every subject. The rest tests the instrument itself: that it
//! reads what its documentation promises, finds what differs, reports every mistake, and survives any input.

#[expect(dead_code, reason = "only other users of this module need the text of a rule")]
#[path = "../examples/conformance/format.rs"]
mod format;
#[path = "../examples/conformance/line.rs"]
mod line;
#[path = "../examples/conformance/mistake.rs"]
mod mistake;
#[path = "../examples/conformance/pace.rs"]
mod pace;
#[path = "../examples/conformance/pacers.rs"]
mod pacers;
#[path = "../examples/conformance/report.rs"]
mod report;
#[path = "../examples/conformance/row.rs"]
mod row;
#[path = "../examples/conformance/run.rs"]
mod run;
#[path = "../examples/conformance/subject.rs"]
mod subject;
#[path = "../examples/conformance/table.rs"]
mod table;
#[path = "../examples/conformance/time.rs"]
mod time;

use std::path::{Path, PathBuf};
use std::{fs, io};

use report::{Report, Status};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance")
}

fn vector_files() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).expect("the folder of vectors is part of the repository");
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "vectors"));
    files.sort();
    files
}

/// The output and exit status of the program for a file of this content.
fn report(content: &[u8]) -> (String, Status) {
    let mut report = Report::default();
    report.content("f", Ok(content.to_vec()), subject::SUBJECTS);
    let status = report.status();
    (report.text, status)
}

#[track_caller]
fn assert_equal(content: &str) {
    let (text, status) = report(content.as_bytes());
    assert_eq!((text.as_str(), status), ("", Status::Equal), "for:\n{content}");
}

#[track_caller]
fn assert_mistakes(content: &str, expected: &[&str]) {
    let (text, status) = report(content.as_bytes());
    let heads: Vec<&str> = text.lines().map(|line| line.split("; ").next().unwrap_or(line)).collect();
    assert_eq!(heads, expected, "for:\n{content}\n{text}");
    assert_eq!(status, Status::Malformed);
}

#[test]
fn every_vector_holds_for_every_subject() {
    let files = vector_files();
    assert!(files.len() >= 9, "{files:?}");
    let mut report = Report::default();
    for file in files {
        report.file(&file.to_string_lossy(), subject::SUBJECTS);
    }
    assert_eq!(report.status(), Status::Equal, "\n{}", report.text);
}

/// Readers copy the examples in the documentation; each block marked `vectors` must run.
#[test]
fn documented_examples_hold() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    let blocks: Vec<_> =
        readme.split("```vectors\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 6, "found {} examples", blocks.len());
    for block in blocks {
        assert_equal(block);
    }
}

#[test]
fn white_space_never_matters() {
    assert_equal("\u{feff}quota 10/s burst 3\r\n\t0ms\t1 allow 2 100ms\r\n");
    assert_equal("quota   10 / s   burst 3\n0 ms   x 3  1   allow   0   300 ms\n0ms 1 retry 100 ms");
    assert_equal("rule a=sliding_log 1/s#x\nrule b = sliding_log 5/min\n0s 1 allow [ 0,4 ] [1s,60s] rule a");
}

#[test]
fn times_are_read_in_every_spelling() {
    for spelling in [
        "90s",
        "1min 30s",
        "1.5min",
        "1m 30sec",
        "90_000ms",
        "0.025h",
        "00:01:30",
        "0:01:30.000",
        "+90s",
        "90000000µs",
    ] {
        assert_equal(&format!("rule fixed_window 1/min\n{spelling} 1 allow 0 30s"));
    }
    assert_equal("rule fixed_window 1/min\n18:59 1 allow 0 1min\n+30s 1 refuse 0 30s\n-10s 1 refuse 0 40s");
}

#[test]
fn difference_is_shown_in_a_table() {
    let (text, status) =
        report(b"quota 10/s burst 3\ncase a story\n 0ms  1  allow  1  90ms # wrong\n 0ms 9 allow\n");
    let expected = "\
where  case     subject  row                 column     got    want
f:3    a story  all      0ms 1 allow 1 90ms  remaining  2      1
f:3    a story  all      0ms 1 allow 1 90ms  reset      100ms  90ms
f:4    a story  all      0ms 9 allow         outcome    never  allow
";
    assert_eq!((text.as_str(), status), (expected, Status::Different));
}

#[test]
fn every_column_can_differ() {
    let rules = "rule a = fixed_window 2/s\nrule b = fixed_window 3/min\n";
    for (row, column) in [
        ("0s 1 retry 1s", "outcome"),
        ("0s 1 never", "outcome"),
        ("0s 1 refuse", "outcome"),
        ("0s 1 after 1s", "outcome"),
        ("0s peek 1 after 2us", "outcome"),
        ("0s take 3 took 3", "outcome"),
        ("0s x4 1 allow", "outcome of request 3 of 4"),
        ("0s x4 1 pass 3", "passed"),
        ("0s x4 1 pass 3..4", "passed"),
        ("0s 1 - 2", "remaining"),
        ("0s 1 - [1 3]", "remaining of rule b"),
        ("0s 1 - - 2s", "reset"),
        ("0s 1 - - [- 61s]", "reset of rule b"),
        ("0s 1 - - rule b", "rule"),
        ("0s 1 limit 3", "limit"),
        ("0s 1 limit [2 2]", "limit of rule b"),
        ("0s refund 1 - 1", "remaining"),
        ("0s reset - 1", "remaining"),
    ] {
        let (text, status) = report(format!("{rules}{row}\n").as_bytes());
        let line = text.lines().nth(1).unwrap_or_default();
        assert!(line.contains(&format!("  {column}  ")), "for {row}:\n{text}");
        assert_eq!(status, Status::Different, "for {row}");
    }
}

#[test]
fn wait_may_differ_by_a_microsecond_only_where_the_file_allows_it() {
    let drained = "quota 3/s burst 1\n0s 1 allow\n";
    assert_equal(&format!("{drained}0s 1 retry ~333.333ms 0 ~333.335ms"));
    assert_eq!(report(format!("{drained}0s 1 retry 333.333ms").as_bytes()).1, Status::Different);
    assert_eq!(report(format!("{drained}0s 1 retry ~333.332ms").as_bytes()).1, Status::Different);
}

#[test]
fn case_starts_fresh_and_keeps_the_rules_until_it_sets_its_own() {
    assert_equal(
        "quota 1/s\ncase one\n0s 1 allow\nchange quota 5/s\n0s 4 allow\ncase two\n0s 1 allow 0\n\
         case three\nrule fixed_window 2/s\n0s 2 allow\ncase four\n0s 2 allow 0 1s",
    );
}

#[test]
fn clock_that_steps_back_is_reported() {
    let steps_back =
        |rows: &str| format::parse(format!("quota 1/s\n{rows}").as_bytes()).unwrap()[0].steps_back();
    assert!(!steps_back("0s 1\n0s 1\n+5s 1"));
    assert!(steps_back("5s 1\n4s 1"));
    assert!(steps_back("0s every 1s x10 1\n5s 1"), "a row of several requests ends with the last of them");
}

#[test]
fn every_mistake_is_reported_with_its_position() {
    assert_mistakes(
        "quota 10/s\n  0 1 allow\n  0ms allow 2 100ms\n  0ms 1 rerty 1s 2 soon\n  0ms chek 1 allow\nbogus\n",
        &[
            "f:2:3: found \"0\"",
            "f:3:7: found \"allow\"",
            "f:4:9: found \"rerty\"",
            "f:4:20: found \"soon\"",
            "f:5:7: found \"chek\"",
            "f:6:1: found \"bogus\"",
        ],
    );
    let (text, _) = report(b"quota 1/s\n0 1 allow");
    assert!(text.contains("give a unit"), "{text}");
}

#[test]
fn mistakes_in_rules_are_reported_with_their_position() {
    assert_mistakes("  quota 10/s burst x\n0s 1", &["f:1:20: found \"x\""]);
    assert_mistakes("rule nam = fixed_windw 5/min # x\n0s 1", &["f:1:12: found \"fixed_windw\""]);
    assert_mistakes("rule sliding_log 99999/s\n0s 1", &["f:1:6: found \"sliding_log 99999/s\""]);
    assert_mistakes("quota fixed_window 5/s\n0s 1", &["f:1:7: found \"fixed_window\""]);
    assert_mistakes("rule a = 5/s\nrule a = 6/s\n0s 1", &["f:2:6: found \"a\""]);
    assert_mistakes("0s 1 allow\nquota 1/s", &["f:1:1: found \"0s\"", "f:2:1: found \"quota 1/s\""]);
    assert_mistakes("rule 1 = 5/s\n0s 1", &["f:1:6: found \"1\""]);
    assert_mistakes(
        "rule 5/s\nrule 6/s\n0s 1\nchange rule 7/s\nchange rule 3 = 7/s",
        &["f:4:13: found \"7/s\"", "f:5:13: found \"3\""],
    );
}

#[test]
fn meaningless_input_is_rejected() {
    for (row, place) in [
        ("0s 1 allow 2 3", "14: found \"3\""),
        ("0s 1 allow 100ms", "12: found \"100ms\""),
        ("0s 1 retry 100ms 300ms", "18: found \"300ms\""),
        ("0s 1 retry", "11: the line ends"),
        ("0s 1 allow [1 2]", "12: found \"[1\""),
        ("0s 1 allow [1", "14: the line ends"),
        ("0s 1 allow rule 2", "17: found \"2\""),
        ("0s 1 took 1", "6: found \"took\""),
        ("0s take 1 allow", "11: found \"allow\""),
        ("0s refund 1 allow", "13: found \"allow\""),
        ("0s refund 1 5", "13: found \"5\""),
        ("0s 1 pass 1", "6: found \"pass\""),
        ("0s x2 1 pass 2..1", "14: found \"2..1\""),
        ("0s x0 1 allow", "4: found \"x0\""),
        ("0s x9999999 1 allow", "4: found \"x9999999\""),
        ("0s every 1s 1 allow", "13: found \"1\""),
        ("0s -1 allow", "4: found \"-1\""),
        ("0s 1.5 allow", "4: found \"1.5\""),
        ("0s 4294967296 allow", "4: found \"4294967296\""),
        ("0.5us 1 allow", "1: found \"0.5us\""),
        ("1s 2min 1 allow", "4: found \"2min\""),
        ("-1us 1 allow", "1: found \"-1us\""),
        ("12:60 1 allow", "1: found \"12:60\""),
        ("99999999999999999999999h 1 allow", "1: found \"99999999999999999999999h\""),
        ("1e9s 1 allow", "1: found \"1e9s\""),
        ("case", "5: the line ends"),
    ] {
        assert_mistakes(&format!("quota 5/s\n{row}"), &[&format!("f:2:{place}")]);
    }
}

#[test]
fn pacer_waits_and_the_next_row_begins_then() {
    assert_equal("pace 5/s\n0s x3 acquire 5 -\n+0s acquire 1 after 1s\n0s peek after 200ms\n1h peek allow");
    assert_equal("pace 5/s\n1s every 100ms x11 acquire 1 pass 11\n0s peek after 200ms");
    assert_equal("pace 5/s\n0s x3 reserve 1\n+0s acquire 1 within 500ms retry 100ms\n+0s peek after 600ms");
    assert_equal("pace 1/s\n0s reserve 1\nchange pace 2/s\n0s reserve 1 after 1s\n+0s peek after ~1500ms");
    assert_equal("quota 1/s\n0s 1 allow\ncase paced\npace 5/s\n0s acquire 9\ncase the same\n0s peek allow");
}

#[test]
fn difference_of_a_pacer_is_reported() {
    for (row, column, got) in [
        ("0s acquire 1 after 200ms", "outcome", "allow"),
        ("0s x3 acquire 1 allow", "outcome of request 2 of 3", "after 200ms"),
        ("0s x3 acquire 1 within 0s pass 2", "passed", "1"),
        ("0s acquire 1 refuse", "outcome", "allow"),
        ("0s peek never", "outcome", "allow"),
    ] {
        let (text, status) = report(format!("pace 5/s\n{row}\n").as_bytes());
        let line = text.lines().nth(1).unwrap_or_default();
        assert!(line.contains(&format!("  all      {row}  {column}  ")), "for {row}:\n{text}");
        assert!(line.contains(got) && status == Status::Different, "for {row}:\n{text}");
    }
}

#[test]
fn mistakes_in_pacing_are_reported_with_their_position() {
    for (row, place) in [
        ("0s 1 allow", "4: found \"1\""),
        ("0s check 1 allow", "4: found \"check\""),
        ("0s acquire allow", "12: found \"allow\""),
        ("0s acquire 1.5 allow", "12: found \"1.5\""),
        ("0s acquire 18446744073709551616", "12: found \"18446744073709551616\""),
        ("0s acquire 1 within 5 allow", "21: found \"5\""),
        ("0s acquire 1 took 1", "14: found \"took\""),
        ("0s acquire 1 allow 3", "20: found \"3\""),
        ("-1s acquire 1 allow", "1: found \"-1s\""),
        ("5 acquire 1 allow", "1: found \"5\""),
        ("0s change rule 5/s", "11: found \"rule\""),
        ("change pace 5/x", "15: found \"x\""),
        ("quota 5/s", "1: found \"quota\""),
        ("pace 6/s", "1: found \"pace\""),
    ] {
        assert_mistakes(&format!("pace 5/s\n{row}\n0s peek"), &[&format!("f:2:{place}")]);
    }
    assert_mistakes("pace 5/s warm 1s\n0s acquire 1", &["f:1:10: found \"warm\""]);
    assert_mistakes("quota 5/s\npace 5/s\n0s 1", &["f:2:1: found \"pace\""]);
    assert_mistakes("pace 5/s\n0s peek\npace 6/s", &["f:3:1: found \"pace 6/s\""]);
}

#[test]
fn file_or_case_without_rows_is_rejected() {
    assert_mistakes("", &["f:1:1: the line ends"]);
    assert_mistakes("# only a comment\nquota 5/s\n", &["f:1:1: the line ends"]);
    assert_mistakes("quota 5/s\ncase a\ncase b\n0s 1", &["f:2:1: found \"case a\""]);
}

#[test]
fn input_that_is_not_text_is_a_mistake() {
    let (text, status) = report(b"quota 5/s\n0s 1 allow \xFF\n0 1\n");
    assert!(text.starts_with("f:2:12: found \"byte 0xff\"; expected text in UTF-8\nf:3:1: "), "{text}");
    assert_eq!(status, Status::Malformed);
}

#[test]
fn unreadable_file_is_malformed_and_the_others_still_run() {
    let mut report = Report::default();
    report.content("gone", Err(io::ErrorKind::NotFound.into()), subject::SUBJECTS);
    report.content("good", Ok(b"quota 5/s\n0s 1 allow 3".to_vec()), subject::SUBJECTS);
    report.summary();
    assert_eq!(report.status(), Status::Malformed);
    assert!(report.text.starts_with("gone: "), "{}", report.text);
    assert!(report.text.contains("good:2"), "{}", report.text);
    assert!(
        report.text.ends_with("1 case, 1 row, 1 difference\n1 file could not be run\n"),
        "{}",
        report.text
    );
}

/// Random changes to valid files, from a fixed seed: neither the reader nor the library may panic on any of
/// them.
#[test]
fn no_input_makes_the_runner_panic() {
    let files: Vec<Vec<u8>> = vector_files().iter().map(|path| fs::read(path).unwrap()).collect();
    let mut random = Random(0x5EED);
    for round in 0..4_000 {
        let mut content = files[round % files.len()].clone();
        // Pieces keep the rounds short; most rounds still hold whole cases.
        let start = random.below(content.len());
        content.drain(..start);
        content.truncate(600);
        for _ in 0..=random.below(6) {
            mutate(&mut content, &mut random);
        }
        if let Ok(cases) = format::parse(&content) {
            survive(&cases, &content);
        }
    }
}

fn survive(cases: &[format::Case], content: &[u8]) {
    let requests = |case: &format::Case| -> u64 { case.steps.iter().map(requests_of).sum() };
    for case in cases.iter().filter(|case| requests(case) < 2_000) {
        for (_, differences) in report::runs(case, subject::SUBJECTS) {
            let panicked = differences.into_iter().find(|difference| difference.got == "a panic");
            assert_eq!(panicked, None, "for:\n{}", String::from_utf8_lossy(content));
        }
    }
}

fn requests_of(step: &format::Step) -> u64 {
    match &step.act {
        format::Act::Ask(row) => u64::from(row.times),
        format::Act::Pace(row) => u64::from(row.times),
        format::Act::Change { .. } | format::Act::SetRate { .. } => 1,
    }
}

const PIECES: [&str; 28] = [
    "pace 3/s\n",
    "acquire ",
    "within 1s ",
    "18446744073709551615",
    " ",
    "\n",
    "0",
    "9",
    "99999999999",
    "9007199254740991us",
    "4294967295",
    "-",
    "+",
    ".",
    "..",
    "[",
    "]",
    "x2",
    "force ",
    "take ",
    "refund ",
    "reset ",
    "change ",
    "rule ",
    "quota 3/s\n",
    "us",
    "\u{1F30A}",
    "=",
];

fn mutate(content: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(content.len() + 1);
    let end = (at + random.below(8)).min(content.len());
    match random.below(4) {
        0 => drop(content.drain(at..end)),
        1 => content.insert(at, u8::try_from(random.below(256)).unwrap_or(0)),
        2 => drop(content.splice(at..end, PIECES[random.below(PIECES.len())].bytes())),
        _ => drop(content.splice(at..at, content[at..end].to_vec())),
    }
}

/// A small generator of random numbers, so that failures are reproducible.
struct Random(u64);

impl Random {
    /// A number below `end`; 0 if there is none.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0).checked_rem(end).unwrap_or(0)
    }
}
