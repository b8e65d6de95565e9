//! Ten thousand rules: what they take, and that reloads do not add to it.

use std::fmt::Write as _;

use serde_json::json;

use crate::binary::Binary;
use crate::http::{connect, exchange, post, serving};
use crate::metrics::scrape;

const RULES: usize = 10_000;

fn rules(count: usize) -> String {
    let mut text = "rules:\n".to_owned();
    for n in 0..count {
        let _ = writeln!(
            text,
            "  - {{name: rule-{n}, match: {{service: api, user: u{n}}}, key: user, quota: 100/s}}"
        );
    }
    text
}

/// The memory that the process has, in MB.
fn resident(server: &Binary) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("what is resident");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number of kilobytes") / 1_000
}

fn reload(server: &Binary) {
    let (status, _, said) = exchange(&mut connect(server.admin), "POST /admin/reload", "");
    assert_eq!(status, 200, "{said}");
}

#[test]
#[cfg(target_os = "linux")]
fn ten_thousand_idle_rules_take_less_than_200_mb_over_reloads_too() {
    let (server, file) = serving(&rules(RULES));
    let idle = resident(&server);
    println!("{idle} MB for {RULES} idle rules");
    assert!(idle <= 200, "{idle} MB for {RULES} idle rules");

    let told = scrape(server.admin);
    let of_tables = told.iter().filter(|(name, _)| name.starts_with("tidegate_table_bytes{"));
    let (tables, bytes) = of_tables.fold((0, 0.0), |(tables, sum), (_, bytes)| (tables + 1, sum + bytes));
    assert_eq!(tables, RULES, "each of them is told");
    assert!((10e6..40e6).contains(&bytes), "{bytes} bytes are told of {idle} MB");

    for user in ["u0", "u17", "u9999"] {
        let told = post(server.http, "/v1/check", &json!({"descriptors": {"service": "api", "user": user}}));
        assert_eq!(told["rule"], json!(format!("rule-{}", &user[1..])), "{told}");
    }
    for _ in 0..3 {
        std::fs::write(file.path(), rules(1)).expect("written");
        reload(&server);
        std::fs::write(file.path(), rules(RULES)).expect("written");
        reload(&server);
    }
    let reloaded = resident(&server);
    println!("{reloaded} MB after six reloads");
    assert!(reloaded <= 400, "{reloaded} MB after six reloads, {idle} MB before");
}
