//! # The text format of Prometheus

use std::fmt::{Display, Write};

use crate::engine::meter::{BOUNDS, Seen};

/// Lines that are being written.
#[derive(Debug, Default)]
pub(super) struct Lines(String);

/// What a number means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

type Label<'a> = (&'a str, &'a str);

impl Lines {
    /// Says what the next lines are.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}"); // into a string nothing can fail
    }

    pub(super) fn one(&mut self, name: &str, labels: &[Label<'_>], value: u64) {
        self.line(name, "", labels, None, value);
    }

    pub(super) fn float(&mut self, name: &str, labels: &[Label<'_>], value: f64) {
        self.line(name, "", labels, None, value);
    }

    pub(super) fn histogram(&mut self, name: &str, labels: &[Label<'_>], seen: &Seen) {
        for (bound, count) in BOUNDS.iter().zip(&seen.up_to) {
            self.line(name, "_bucket", labels, Some(&seconds(*bound)), count);
        }
        let all = seen.up_to[BOUNDS.len()];
        self.line(name, "_bucket", labels, Some("+Inf"), all);
        let (whole, nanos) = (seen.nanos / 1_000_000_000, seen.nanos % 1_000_000_000);
        self.line(name, "_sum", labels, None, format_args!("{whole}.{nanos:09}"));
        self.line(name, "_count", labels, None, all);
    }

    fn line(
        &mut self,
        name: &str,
        suffix: &str,
        labels: &[Label<'_>],
        le: Option<&str>,
        value: impl Display,
    ) {
        self.0.push_str(name);
        self.0.push_str(suffix);
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(le.map(|le| ("le", le))) {
            let _ = write!(self.0, "{before}{name}=\"");
            self.escaped(value);
            self.0.push('"');
            before = ',';
        }
        self.0.push_str(if before == '{' { "" } else { "}" });
        let _ = writeln!(self.0, " {value}");
    }

    fn escaped(&mut self, value: &str) {
        for letter in value.chars() {
            match letter {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
    }

    pub(super) fn end(self) -> String {
        self.0
    }
}

fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_bounds_are_seconds() {
        let mut lines = Lines::default();
        lines.one("a_total", &[("rule", "say \"hi\"\\\n"), ("x", "ü")], 7);
        lines.float("b", &[], 0.5);
        assert_eq!(lines.end(), "a_total{rule=\"say \\\"hi\\\"\\\\\\n\",x=\"ü\"} 7\nb 0.5\n");
        assert_eq!([1, 250, 5_000, 1_000_000].map(seconds), ["0.000001", "0.00025", "0.005", "1"]);
    }
}
