//! # YAML, and so JSON, as a tree
//!
//! The parser gives events with their places; here they become nodes. Aliases are copies of what they stand for, and
//! that is how a page of YAML becomes gigabytes: each level names the one before ten times. So there is a bound on
//! how many nodes a file may have with all copies made, and one on how deep they may lie. A long text counts as many.

use std::collections::HashMap;

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span as Marked, StrInput};

use super::fault::{Fault, Faults};
use super::node::{Kind, Node};
use super::source::{At, Source, Span};

/// The most nodes a file may have, copies counted.
const MOST_NODES: usize = 500_000;
/// So many bytes of a text count as a node.
const BYTES: usize = 256;
/// How deep they may lie. No configuration needs ten.
const DEEPEST: usize = 64;

/// The tree of the first document; `None`, with a fault, if the text is no YAML.
pub(crate) fn parse(source: &Source, faults: &mut Faults) -> Option<Node> {
    let mut builder = Builder {
        source,
        parser: Parser::new_from_str_with_options(source.text(), options()),
        anchors: HashMap::new(),
        nodes: 0,
    };
    match builder.document() {
        Ok(Some(node)) => Some(node),
        Ok(None) => {
            faults.push(
                Fault::error("empty", "the file is empty")
                    .help("begin with `rules:`; `tidegate config schema` lists all that can be said"),
            );
            None
        }
        Err(fault) => {
            faults.push(*fault);
            None
        }
    }
}

/// What a scalar without quotes says.
pub(crate) fn plain(text: &str, span: Span) -> Node {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Node { kind: Kind::Nothing, span },
        text => Node::scalar(text, false, span),
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.flow_nesting_limit = DEEPEST;
    options.block_nesting_limit = DEEPEST;
    options.set_emit_comments(false);
    options
}

struct Builder<'a> {
    source: &'a Source,
    parser: Parser<'a, StrInput<'a>>,
    /// What aliases stand for, and how many nodes each of them is.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
}

type Built<T> = Result<T, Box<Fault>>;

impl<'a> Builder<'a> {
    fn document(&mut self) -> Built<Option<Node>> {
        let mut first = None;
        while let Some((event, span)) = self.next()? {
            match event {
                Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
                _ if first.is_some() => return Err(several_documents(span)),
                event => first = Some(self.node(event, span, 0)?),
            }
        }
        Ok(first)
    }

    fn next(&mut self) -> Built<Option<(Event<'a>, Span)>> {
        match self.parser.next_event() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, bytes(span)))),
            Some(Err(error)) => Err(no_yaml(&error)),
        }
    }

    /// The node that begins with `event`.
    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Built<Node> {
        let before = self.nodes;
        let bytes = if let Event::Scalar(text, ..) = &event { text.len() } else { 0 };
        self.count(1 + bytes / BYTES, span)?;
        let (node, anchor) = match event {
            Event::Scalar(text, ScalarStyle::Plain, anchor, None) => (plain(&text, span), anchor),
            Event::Scalar(text, _, anchor, _) => (Node::scalar(text, true, self.trimmed(span)), anchor),
            Event::SequenceStart(_, anchor, _) => (self.list(span, depth)?, anchor),
            Event::MappingStart(_, anchor, _) => (self.table(span, depth)?, anchor),
            Event::Alias(anchor) => return self.copy(anchor, span),
            _ => (Node { kind: Kind::Nothing, span }, 0),
        };
        if anchor != 0 {
            let nodes = self.nodes - before;
            self.count(nodes, span)?; // for the copy that is kept
            self.anchors.insert(anchor, (node.clone(), nodes));
        }
        Ok(node)
    }

    /// A text in several lines ends where the next thing begins; what is shown of it ends with its last word.
    fn trimmed(&self, span: Span) -> Span {
        let text = self.source.slice(span);
        Span::new(span.start, span.start + text.trim_end().len().max(1))
    }

    fn list(&mut self, start: Span, depth: usize) -> Built<Node> {
        check_depth(depth, start)?;
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if event == Event::SequenceEnd {
                return Ok(Node { kind: Kind::List(items), span: whole(start, span) });
            }
            items.push(self.node(event, span, depth + 1)?);
        }
        Ok(Node { kind: Kind::List(items), span: start })
    }

    fn table(&mut self, start: Span, depth: usize) -> Built<Node> {
        check_depth(depth, start)?;
        let mut entries = Vec::new();
        while let Some((event, span)) = self.next()? {
            if event == Event::MappingEnd {
                return Ok(Node { kind: Kind::Table(entries), span: whole(start, span) });
            }
            let name = self.name(event, span, depth)?;
            let Some((event, span)) = self.next()? else { break };
            entries.push((name, self.node(event, span, depth + 1)?));
        }
        Ok(Node { kind: Kind::Table(entries), span: start })
    }

    fn name(&mut self, event: Event<'a>, span: Span, depth: usize) -> Built<At<String>> {
        match self.node(event, span, depth + 1)? {
            Node { kind: Kind::Scalar(scalar), span } => Ok(At { value: scalar.text, span }),
            other => Err(Box::new(
                Fault::error("name", format!("{} cannot be a name", other.describe()))
                    .at(other.span)
                    .label("expected a name, as in `quota: 100/s`"),
            )),
        }
    }

    fn copy(&mut self, anchor: usize, span: Span) -> Built<Node> {
        let Some(nodes) = self.anchors.get(&anchor).map(|(_, nodes)| *nodes) else {
            return Err(Box::new(
                Fault::error("yaml", "an alias inside of what it stands for")
                    .at(span)
                    .label("this would never end"),
            ));
        };
        self.count(nodes, span)?;
        Ok(Node { span, ..self.anchors[&anchor].0.clone() })
    }

    fn count(&mut self, nodes: usize, span: Span) -> Built<()> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes <= MOST_NODES {
            return Ok(());
        }
        Err(Box::new(
            Fault::error("too-large", format!("more than {MOST_NODES} values, aliases counted"))
                .at(span)
                .label("up to here"),
        ))
    }
}

fn check_depth(depth: usize, span: Span) -> Built<()> {
    if depth < DEEPEST {
        return Ok(());
    }
    Err(Box::new(Fault::error("too-deep", format!("values more than {DEEPEST} levels deep")).at(span)))
}

/// A block ends where the next thing begins; what it says ends earlier, so its first line is shown and not all of it.
fn whole(start: Span, end: Span) -> Span {
    if start.end > start.start { Span::new(start.start, end.end) } else { start }
}

fn bytes(span: Marked) -> Span {
    span.byte_range().map_or(Span::default(), |range| Span::new(range.start, range.end))
}

fn no_yaml(error: &ScanError) -> Box<Fault> {
    let at = error.marker().byte_offset().unwrap_or(0);
    Box::new(
        Fault::error("yaml", "the text is not YAML")
            .at(Span::new(at, at + 1))
            .label(error.info())
            .help("look at the indentation and the quotes here and in the line above"),
    )
}

fn several_documents(span: Span) -> Box<Fault> {
    Box::new(
        Fault::error("yaml", "a second document in one file")
            .at(span)
            .label("after `---`")
            .help("a configuration is one document; put the other into a file of its own"),
    )
}
