//! # What was meant
//!
//! Somebody who writes `qouta` wants to be told `quota`, and not the whole list.

/// The name nearest to `given`, if one is near enough to have been meant.
pub(crate) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let near = names.into_iter().map(|name| (likeness(&given, name), name));
    let (likeness, name) = near.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (likeness >= LIKE).then_some(name)
}

/// The same as a sentence.
pub(crate) fn did_you_mean<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(given, names).map(|name| format!("did you mean `{name}`?"))
}

/// Names in a row: `a, b, c`.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Longer texts are no slips of the pen.
const LONGEST: usize = 64;
const LIKE: f64 = 0.6;

fn likeness(given: &str, name: &str) -> f64 {
    if given.len() > LONGEST {
        return 0.0;
    }
    let holds_it = name.len() >= 4 && given.contains(name); // `fail_open` for `open`
    strsim::normalized_damerau_levenshtein(given, name).max(if holds_it { LIKE } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_nonsense_is_not() {
        let names = ["quota", "match", "overrides", "when_lost"];
        assert_eq!(nearest("qouta", names), Some("quota"));
        assert_eq!(nearest("quotas", names), Some("quota"));
        assert_eq!(nearest("When-Lost", names), Some("when_lost"));
        assert_eq!(nearest("override", names), Some("overrides"));
        assert_eq!(nearest("fail-match", names), Some("match"));
        assert_eq!(nearest("zebra", names), None);
        assert_eq!(nearest(&"quota".repeat(1_000), names), None);
    }
}
