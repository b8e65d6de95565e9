//! # Suggestions for unknown names

/// The name closest to `input`, if one is close enough.
pub(crate) fn nearest<'a>(input: &str, names: &[&'a str]) -> Option<&'a str> {
    let distances = names.iter().map(|name| (distance(input, name), *name));
    let (distance, name) = distances.min()?;
    (distance <= 2.max(name.len() / 3)).then_some(name)
}

/// The edit distance: letters to add, remove or replace.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut corner = index;
        row[0] = index + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = corner + usize::from(letter != *other);
            corner = row[column + 1];
            row[column + 1] = replaced.min(corner + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["key", "limiter", "limit", "otherwise"];
        assert_eq!(nearest("kay", &names), Some("key"));
        assert_eq!(nearest("limitter", &names), Some("limiter"));
        assert_eq!(nearest("otherwize", &names), Some("otherwise"));
        assert_eq!(nearest("colour", &names), None);
        assert_eq!(nearest("", &[]), None);
    }

    #[test]
    fn distance_counts_edited_letters() {
        let table =
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("limt", "limit", 1), ("kitten", "sitting", 3)];
        for (from, to, letters) in table {
            assert_eq!(distance(from, to), letters, "{from} to {to}");
        }
    }
}
