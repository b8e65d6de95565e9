//! Laws of reading: no bytes make it panic or grow, and what it takes the schema takes, too.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fault::{Colours, Severity};
use super::node::{Kind, Node};
use super::{Config, Faults, Format, Loaded, Source, parse, schema};
use crate::rules::{Call, Compiled};

fn load(text: &str) -> Loaded {
    Config::load("x", text.as_bytes(), Format::Yaml, &|_| None)
}

fn codes(text: &str) -> Vec<&'static str> {
    load(text).faults.iter().map(|fault| fault.code).collect()
}

// === bounds ===

#[test]
fn a_yaml_bomb_is_defused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let before = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    assert_eq!(codes(&bomb), ["too-large"]);
}

#[test]
fn a_bomb_of_one_long_text_is_defused_too() {
    let bomb = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 1_000].join(", "));
    assert_eq!(codes(&bomb), ["too-large"]);
}

#[test]
fn warnings_however_many_are_no_errors() {
    let many: String = (0..300).map(|n| format!("  - {{name: a{n}, key: user, quota: 1/s}}\n")).collect();
    let loaded = load(&format!("rules:\n{many}"));
    assert_eq!((loaded.faults.count(Severity::Warning), loaded.faults.count(Severity::Error)), (100, 0));
    assert!(loaded.config.is_some());
    let wrong = load(&format!("rules:\n{many}  - {{name: z, quota: x}}\n"));
    assert!(wrong.config.is_none(), "an error beyond those shown is one all the same");
}

#[test]
fn what_lies_too_deep_is_not_followed() {
    for (open, close) in [("[", "]"), ("{a: ", "}")] {
        let deep = open.repeat(10_000) + &close.repeat(10_000);
        assert!(!load(&deep).faults.is_usable());
    }
    let block: String = (0..5_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    assert!(!load(&block).faults.is_usable());
    let aliased = "a: &a [[[[x]]]]\n".to_owned() + &"b: *a\n".repeat(100);
    assert!(codes(&aliased).contains(&"unknown-field"), "copies that are neither deep nor many are taken");
}

#[test]
fn a_file_that_is_too_long_is_not_read() {
    let long = "#".repeat(super::LONGEST + 1);
    assert_eq!(codes(&long), ["too-large"]);
}

#[test]
fn a_thousand_faults_are_counted_and_a_hundred_shown() {
    let many: String = (0..1_000).map(|n| format!("  - {{name: a{n}, quota: x}}\n")).collect();
    let loaded = load(&format!("rules:\n{many}"));
    assert_eq!(loaded.faults.count(Severity::Error), 100);
    assert!(loaded.faults.text(&loaded.source, Colours::None).contains("and 900 more"));
    assert!(loaded.config.is_none());
}

#[test]
fn more_limits_than_numbers_are_an_error() {
    let many: String = (0..66_000).map(|n| format!("  - {{name: a{n}, quota: 1/s}}\n")).collect();
    assert_eq!(codes(&format!("rules:\n{many}")), ["too-many"]);
}

// === the schema ===

#[test]
fn the_committed_schema_is_the_current_one() {
    let committed = fs::read_to_string(folder("schema.json")).expect("schema.json is part of the crate");
    let current = format!("{:#}\n", schema());
    assert!(
        committed == current,
        "run: cargo run -p tidegate-server -- config schema > crates/tidegate-server/schema.json"
    );
}

#[test]
fn examples_are_fine_and_fit_the_schema() {
    let examples: Vec<_> = fs::read_dir(folder("examples")).expect("there are examples").flatten().collect();
    assert!(!examples.is_empty());
    for example in examples {
        let text = fs::read_to_string(example.path()).expect("it can be read");
        let loaded = load(&text);
        assert_eq!(loaded.faults.text(&loaded.source, Colours::None), "", "{:?}", example.path());
        assert_eq!(misfit(&text), None);
    }
}

#[test]
fn what_has_no_such_field_does_not_fit_the_schema() {
    for wrong in [
        "{ruels: []}",
        "rules: [{name: a}]",
        "rules: [{name: a, quota: 1/s, missing: shred}]",
        "rules: [{name: a, quota: 1/s, match: {}}]",
        "rules: [{name: a, quota: 1/s, match: {a: null}}]",
        "rules: [{name: a, quota: 1/s, cost: many}]",
        "rules: [{name: a, quota: 1/s, key: {addres: ip}}]",
        "listeners: {http: {}}",
        "store: memroy",
        "store: {redis: {deadline: soon}}",
        "rules: [{name: a, quota: []}]",
    ] {
        assert!(misfit(wrong).is_some() && !load(wrong).faults.is_usable(), "{wrong}");
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// What of a text does not fit the schema, if anything.
fn misfit(text: &str) -> Option<String> {
    let source = Source::new("x", text);
    let tree = parse(&source, Format::Yaml, &mut Faults::default())?;
    let schema = schema();
    fits(&as_json(&tree), &schema, &schema).err()
}

fn as_json(node: &Node) -> Value {
    match &node.kind {
        Kind::Nothing => Value::Null,
        Kind::Scalar(scalar) if scalar.is_quoted => json!(scalar.text),
        Kind::Scalar(scalar) => match scalar.text.replace('_', "").parse::<u64>() {
            Ok(number) => json!(number),
            Err(_) => match scalar.text.as_str() {
                "true" | "false" => json!(scalar.text == "true"),
                text => json!(text),
            },
        },
        Kind::List(items) => items.iter().map(as_json).collect(),
        Kind::Table(entries) => {
            Value::Object(entries.iter().map(|(name, value)| (name.value.clone(), as_json(value))).collect())
        }
    }
}

/// As much of JSON Schema as ours uses. A word it does not know is a failure, so that nothing is passed over.
fn fits(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let Some(words) = schema.as_object() else { return Ok(()) };
    let no = |why: &str| Err(format!("{value} {why} in {schema}"));
    for (word, what) in words {
        let is_good = match word.as_str() {
            "$ref" => {
                let path =
                    what.as_str().and_then(|path| path.strip_prefix('#')).expect("a path within the schema");
                fits(value, root.pointer(path).expect("it leads somewhere"), root).is_ok()
            }
            "anyOf" | "oneOf" => {
                what.as_array().expect("a list").iter().any(|one| fits(value, one, root).is_ok())
            }
            "type" => is_type(value, what),
            "enum" => what.as_array().expect("a list").contains(value),
            "const" => what == value,
            "required" => {
                let names = what.as_array().expect("a list").iter().filter_map(Value::as_str);
                value.as_object().is_none_or(|object| names.into_iter().all(|name| object.contains_key(name)))
            }
            "properties" => value.as_object().is_none_or(|object| {
                object.iter().all(|(name, value)| {
                    what.get(name).is_none_or(|schema| fits(value, schema, root).is_ok())
                })
            }),
            "additionalProperties" => value.as_object().is_none_or(|object| {
                let known = words.get("properties");
                let mut others =
                    object.iter().filter(|(name, _)| known.is_none_or(|known| known.get(name).is_none()));
                others.all(|(_, value)| *what != json!(false) && fits(value, what, root).is_ok())
            }),
            "items" => {
                value.as_array().is_none_or(|items| items.iter().all(|item| fits(item, what, root).is_ok()))
            }
            "minItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 >= what.as_u64().unwrap_or(0))
            }
            "minProperties" => {
                value.as_object().is_none_or(|object| object.len() as u64 >= what.as_u64().unwrap_or(0))
            }
            "minimum" => value.as_u64().is_none_or(|number| number >= what.as_u64().unwrap_or(0)),
            "maximum" => value.as_u64().is_none_or(|number| number <= what.as_u64().unwrap_or(u64::MAX)),
            "pattern" => value.as_str().is_none_or(|text| is_like(text, what.as_str().expect("a text"))),
            "$schema" | "$defs" | "title" | "description" | "examples" | "format" | "default" => true,
            other => return Err(format!("the schema says {other:?}, which this test does not know")),
        };
        if !is_good {
            return no(word);
        }
    }
    Ok(())
}

fn is_type(value: &Value, what: &Value) -> bool {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64(),
        "boolean" => value.is_boolean(),
        _ => false,
    };
    match what {
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        name => name.as_str().is_some_and(is),
    }
}

/// The two patterns there are.
fn is_like(text: &str, pattern: &str) -> bool {
    match pattern {
        r"\$\{" => text.contains("${"),
        r"^\s*[0-9]|\$\{" => {
            text.trim_start().starts_with(|c: char| c.is_ascii_digit()) || text.contains("${")
        }
        other => panic!("a pattern this test does not know: {other}"),
    }
}

// === any bytes ===

/// Reads, and looks at everything that can be looked at.
fn survives(bytes: &[u8], format: Format) {
    let variables = |name: &str| (name != "NONE").then(|| "1".to_owned());
    let loaded = Config::load("x", bytes, format, &variables);
    assert_eq!(loaded.config.is_some(), loaded.faults.is_usable());
    let _ = loaded.faults.text(&loaded.source, Colours::None);
    let _ = loaded.faults.json(&loaded.source);
    for fault in loaded.faults.iter() {
        let span = loaded.source.clamped(fault.span.unwrap_or_default());
        assert!(span.start <= loaded.source.text().len());
    }
    let Some(config) = loaded.config else { return };
    let _ = super::show::text(&config.shown);
    let compiled = Compiled::new(config.rules);
    let _ = compiled.explain(&Call::of(&[("path", "/login"), ("ip", "::ffff:10.0.0.1"), ("user", "")]));
    let text = String::from_utf8_lossy(bytes);
    if format == Format::Yaml && !text.contains("${") {
        assert_eq!(misfit(text.trim_start_matches('\u{feff}')), None, "{text}");
    }
}

/// Texts to be spoiled: the example, and everything in `tests/faults`.
fn texts() -> Vec<String> {
    let faults = fs::read_dir(folder("tests/faults")).expect("they are there").flatten();
    let faults =
        faults.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "yaml"));
    let all = faults.chain([folder("examples/tidegate.yaml")]);
    all.map(|path| String::from_utf8_lossy(&fs::read(path).expect("it can be read")).into_owned()).collect()
}

/// Scraps that mean something to a parser of YAML or of quotas.
const SCRAPS: [&str; 40] = [
    "\n",
    " ",
    "  ",
    "\t",
    "- ",
    ": ",
    ":",
    "?",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\"",
    "'",
    "#",
    "&a ",
    "*a",
    "!!str ",
    "|\n",
    ">\n",
    "---\n",
    "...\n",
    "~",
    "null",
    "true",
    "0",
    "18446744073709551616",
    "-1",
    "1e9",
    "10/s",
    " burst 0",
    " at once",
    "${A}",
    "${NONE}",
    "${",
    "\u{0}",
    "\u{feff}",
    "é",
    "::ffff:10.0.0.0/104",
];

#[derive(Clone, Debug)]
enum Spoil {
    Insert(usize, usize),
    Remove(usize, usize),
    Copy(usize, usize, usize),
    Byte(usize, u8),
}

fn spoil() -> impl Strategy<Value = Spoil> {
    let place = 0usize..4_000;
    prop_oneof![
        (place.clone(), 0..SCRAPS.len()).prop_map(|(at, scrap)| Spoil::Insert(at, scrap)),
        (place.clone(), 1usize..40).prop_map(|(at, length)| Spoil::Remove(at, length)),
        (place.clone(), 1usize..60, place.clone())
            .prop_map(|(from, length, to)| Spoil::Copy(from, length, to)),
        (place, any::<u8>()).prop_map(|(at, byte)| Spoil::Byte(at, byte)),
    ]
}

fn spoiled(text: &str, spoils: &[Spoil]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for spoil in spoils {
        let length = bytes.len() + 1;
        match *spoil {
            Spoil::Insert(at, scrap) => {
                let at = at % length;
                bytes.splice(at..at, SCRAPS[scrap].bytes());
            }
            Spoil::Remove(at, many) => {
                let at = at % length;
                bytes.drain(at..(at + many).min(bytes.len()));
            }
            Spoil::Copy(from, many, to) => {
                let from = from % length;
                let copied = bytes[from..(from + many).min(bytes.len())].to_vec();
                let to = to % length;
                bytes.splice(to..to, copied);
            }
            Spoil::Byte(at, byte) if !bytes.is_empty() => {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            Spoil::Byte(..) => {}
        }
    }
    bytes
}

/// How many files are spoiled in a test run. `TIDEGATE_FUZZ=1000000` looks harder.
fn cases() -> u32 {
    std::env::var("TIDEGATE_FUZZ").ok().and_then(|cases| cases.parse().ok()).unwrap_or(3_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_spoiled_file_makes_it_panic(text in prop::sample::select(texts()), spoils in prop::collection::vec(spoil(), 1..6)) {
        let bytes = spoiled(&text, &spoils);
        survives(&bytes, Format::Yaml);
        survives(&bytes, Format::Toml);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        survives(&bytes, Format::Yaml);
        survives(&bytes, Format::Toml);
    }

    #[test]
    fn no_scraps_make_it_panic(scraps in prop::collection::vec(prop::sample::select(SCRAPS.to_vec()), 0..60)) {
        survives(scraps.concat().as_bytes(), Format::Yaml);
    }
}
