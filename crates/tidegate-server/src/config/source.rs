//! # A text, and where in it something is
//!
//! Every complaint points at a place, and a place is a range of bytes until somebody has to read it.

/// A range of bytes of a [`Source`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
}

/// Something that was read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// What it is.
    pub value: T,
    /// Where it stands.
    pub span: Span,
}

/// A line and a column, both from 1; columns are counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// The text of a file, and its name.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: String,
    lines: Vec<usize>,
    has_secrets: bool,
}

impl Span {
    /// From one byte up to another.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        Span { start, end: end.max(start) }
    }
}

impl<T> At<T> {
    /// The same place, with something else in it.
    pub fn with<U>(&self, value: U) -> At<U> {
        At { value, span: self.span }
    }
}

impl Source {
    /// A text, and what its file is called.
    #[must_use]
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(index, _)| index + 1);
        let lines = std::iter::once(0).chain(ends).collect();
        Source { name: name.into(), text, lines, has_secrets: false }
    }

    /// What the file is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All of it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same, with its secrets blotted out in place.
    pub(crate) fn blotted(self, text: String) -> Self {
        Source { has_secrets: true, ..Source::new(self.name, text) }
    }

    /// Whether there were secrets in it, which are blotted out.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        self.has_secrets
    }

    /// What stands at `span`; nothing if that is no range of this text.
    #[must_use]
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or("")
    }

    /// The line of a byte. Quicker than its [place](Source::place), also in a file that is one long line.
    #[must_use]
    pub fn line(&self, byte: usize) -> usize {
        self.lines.partition_point(|start| *start <= byte)
    }

    /// The line and the column of a byte.
    #[must_use]
    pub fn place(&self, byte: usize) -> Place {
        let byte = self.clamp(byte);
        let line = self.line(byte);
        let start = self.lines[line - 1];
        Place { line, column: self.text[start..byte].chars().count() + 1 }
    }

    /// The nearest range that lies within the text and cuts no character in two.
    #[must_use]
    pub fn clamped(&self, span: Span) -> Span {
        Span::new(self.clamp(span.start), self.clamp(span.end))
    }

    fn clamp(&self, byte: usize) -> usize {
        self.text.floor_char_boundary(byte.min(self.text.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_characters_and_survives_any_byte() {
        let source = Source::new("x", "ab\nµé!\n");
        let place = |byte| (source.place(byte).line, source.place(byte).column);
        assert_eq!(
            [place(0), place(2), place(3), place(5), place(7)],
            [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3)]
        );
        assert_eq!([place(4), place(9), place(999)], [(2, 1), (3, 1), (3, 1)]);
        assert_eq!(source.clamped(Span::new(4, 999)), Span::new(3, 9));
    }
}
