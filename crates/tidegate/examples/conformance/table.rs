//! # Differences as a table
//!
//! One line for each difference: position, request, column, and the two values side by side, so that a
//! pattern ("every reset is one cell too long") is visible, which a list of sentences would hide.

use super::run::Difference;

const HEADINGS: [&str; 7] = ["where", "case", "subject", "row", "column", "got", "want"];

/// Formats the differences of one file; empty if there are none.
pub(crate) fn table(file: &str, differences: &[Difference]) -> String {
    if differences.is_empty() {
        return String::new();
    }
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(differences.iter().map(|difference| cells(file, difference)));
    let widths = widths(&rows);
    rows.iter().map(|row| aligned(row, &widths)).collect()
}

fn cells(file: &str, difference: &Difference) -> [String; 7] {
    let Difference { line, case, subject, row, column, got, want } = difference;
    let case = if case.is_empty() { "-" } else { case };
    [
        format!("{file}:{line}"),
        case.into(),
        subject.clone(),
        row.clone(),
        column.clone(),
        got.clone(),
        want.clone(),
    ]
}

fn widths(rows: &[[String; 7]]) -> [usize; 7] {
    std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
}

fn aligned(row: &[String; 7], widths: &[usize; 7]) -> String {
    let padded: Vec<_> = row.iter().zip(widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
    format!("{}\n", padded.join("  ").trim_end())
}
