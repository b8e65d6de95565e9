//! # Vector files
//!
//! A vector file is a table that a person can check with a pencil: rules, then rows with an instant, a
//! request and the expected result. The format is described, with its grammar, in `conformance/README.md`;
//! this module parses it into cases that can be run. Rows are parsed in `row.rs`, times in `time.rs`.
//!
//! The parser guesses nothing. Input that it does not understand is a mistake, and every mistake of the
//! file is reported.

use tidegate::algorithm::{Pacing, TokenBucket};
use tidegate::clock::Micros;
use tidegate::{InvalidQuota, Quota, Rule};

use super::line::Line;
use super::mistake::Mistake;
use super::pace::{self, Begins, PaceRow};
use super::row::{self, Row, Rules};
use super::time;

/// A limit and a sequence of steps, starting from a new key.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Empty for rows that come before any `case` line.
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
    pub(crate) names: Vec<Option<String>>,
    /// A pacer in place of rules.
    pub(crate) pacing: Option<Pacing>,
    pub(crate) steps: Vec<Step>,
    /// The text of each rule of the case, including the rules that it changes to.
    texts: Vec<(Rule, String)>,
    line: usize,
    origin: Origin,
    /// Whether there was a row or a change, even a mistaken one.
    tried: bool,
    /// Whether a rule could not be parsed, so that references to the rules cannot be checked.
    mistaken: bool,
}

/// Where the rules of a case come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// From the case before; the first rule line of this case replaces them.
    Inherited,
    Own,
}

/// One line of the sequence.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) line: usize,
    /// The line as it is shown in a table of differences.
    pub(crate) text: String,
    pub(crate) at: Micros,
    pub(crate) act: Act,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Ask(Row),
    /// The rule at a position is replaced while the state lives on.
    Change {
        position: usize,
        rule: Rule,
    },
    Pace(PaceRow),
    /// The pacer's rate is replaced while its state lives on.
    SetRate {
        begins: Begins,
        quota: Quota,
    },
}

/// More rules on one key than any policy needs.
const MOST_RULES: usize = 64;

const A_LINE: &str = "'case', 'quota', 'rule', 'pace', 'change', or a row, which starts with an instant such as 0ms, +1s or 12:34:31";
const A_NAME: &str = "a name for the case";
const A_ROW: &str = "expected at least one row in this case; a case without rows tests nothing";
const ANY_ROW: &str = "expected at least one row; a file without rows tests nothing";
const A_RULE_FIRST: &str = "a 'quota', 'rule' or 'pace' line before the first row";
const RULES_OR_PACE: &str = "either rules or one 'pace' in a case; a request is limited or it is paced";
const CHANGE_PACE: &str = "'pace' and a rate after 'change', because this case has a pacer";
const RULES_BEFORE_ROWS: &str =
    "rules before rows; to start again write 'case', to change a rule while running write 'change'";
const QUOTA_OR_RULE: &str = "'quota' or 'rule' after 'change'";
const RULE_NAME: &str = "a name for the rule: letters, digits and _, starting with a letter";
const NEW_NAME: &str = "a name that no other rule of this case has";
const FEWER_RULES: &str = "at most 64 rules in a case";
const TEXT: &str = "expected text in UTF-8";

/// Parses a vector file.
///
/// # Errors
/// All mistakes of the file, in the order of its lines.
pub(crate) fn parse(file: &[u8]) -> Result<Vec<Case>, Vec<Mistake>> {
    let mut parser = Parser::default();
    let file = file.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(file);
    for (index, bytes) in file.split(|&byte| byte == b'\n').enumerate() {
        match std::str::from_utf8(bytes) {
            Ok(text) => parser.line(&mut Line::new(index + 1, text)),
            Err(error) => parser.mistakes.push(not_text(index + 1, bytes, error.valid_up_to())),
        }
    }
    parser.finish()
}

fn not_text(line: usize, bytes: &[u8], valid: usize) -> Mistake {
    let column = String::from_utf8_lossy(&bytes[..valid]).chars().count() + 1;
    let found = format!("byte {:#04x}", bytes.get(valid).copied().unwrap_or_default());
    Mistake { line, column, found, says: TEXT.to_owned() }
}

#[derive(Default)]
struct Parser {
    cases: Vec<Case>,
    mistakes: Vec<Mistake>,
    /// The instant of the row before, from which `+100ms` counts.
    previous: Micros,
}

/// The keyword of a line that gives a rule: `quota` means a token bucket, `rule` names its algorithm.
#[derive(Clone, Copy)]
enum Keyword {
    Quota,
    Rule,
}

impl Parser {
    fn line(&mut self, line: &mut Line<'_>) {
        if line.is_done() {
            return;
        }
        if let Err(mistake) = self.statement(line) {
            self.mistakes.push(mistake);
        }
    }

    fn statement(&mut self, line: &mut Line<'_>) -> Result<(), Mistake> {
        if line.takes("case") {
            return self.case(line);
        }
        if let Some(keyword) = keyword(line) {
            return self.rule(line, keyword);
        }
        if line.takes("pace") {
            return self.pace(line);
        }
        if line.takes("change") {
            return if self.is_paced() {
                self.set_rate(line, Begins::After(0))
            } else {
                self.change(line, self.previous)
            };
        }
        let starts_row = line.peek().is_some_and(|token| {
            token.text.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-')
        });
        match starts_row {
            true if self.is_paced() => self.pace_row(line),
            true => self.row(line),
            false => Err(line.mistake(A_LINE)),
        }
    }

    fn case(&mut self, line: &mut Line<'_>) -> Result<(), Mistake> {
        let missing = line.mistake(A_NAME);
        let (name, _) = line.rest();
        self.open_case(name.trim().to_owned(), line.number());
        if name.trim().is_empty() { Err(missing) } else { Ok(()) }
    }

    /// Opens a case with a fresh state; it keeps the rules of the case before until it gives its own.
    fn open_case(&mut self, name: String, line: usize) {
        self.close_case();
        let (rules, names, texts, pacing, mistaken) = match self.cases.last() {
            Some(Case { rules, names, texts, pacing, mistaken, .. }) => {
                (rules.clone(), names.clone(), texts.clone(), *pacing, *mistaken)
            }
            None => Default::default(),
        };
        self.previous = Micros::ZERO;
        let (steps, origin, tried) = (Vec::new(), Origin::Inherited, false);
        self.cases.push(Case { name, rules, names, pacing, steps, texts, line, origin, tried, mistaken });
    }

    fn close_case(&mut self) {
        let Some(case) = self.cases.last() else { return };
        // Lines before the first `case` may give rules for all that follow, and then need no rows.
        if !case.name.is_empty() && !case.tried {
            let found = format!("case {}", case.name);
            self.mistakes.push(Mistake { line: case.line, column: 1, found, says: A_ROW.to_owned() });
        }
    }

    /// The case that the line belongs to; lines before the first `case` are one without a name.
    fn current(&mut self, line: usize) -> &mut Case {
        if self.cases.is_empty() {
            self.open_case(String::new(), line);
        }
        let last = self.cases.len() - 1;
        &mut self.cases[last]
    }

    /// The case that a rule or pace line belongs to, with its inherited rules removed.
    fn described(&mut self, line: &Line<'_>) -> Result<&mut Case, Mistake> {
        let case = self.current(line.number());
        if case.tried {
            return Err(Mistake { column: 1, found: line.squeezed(), ..line.mistake(RULES_BEFORE_ROWS) });
        }
        if case.origin == Origin::Inherited {
            (case.rules, case.names, case.pacing) = (Vec::new(), Vec::new(), None);
            (case.origin, case.mistaken) = (Origin::Own, false);
        }
        Ok(case)
    }

    fn rule(&mut self, line: &mut Line<'_>, keyword: Keyword) -> Result<(), Mistake> {
        let case = self.described(line)?;
        if case.pacing.is_some() {
            return Err(line.mistake_at(0, RULES_OR_PACE));
        }
        let added = named_rule(line, keyword, case);
        if added.is_err() {
            case.mistaken = true;
        }
        added
    }

    fn pace(&mut self, line: &mut Line<'_>) -> Result<(), Mistake> {
        let case = self.described(line)?;
        if case.pacing.is_some() || !case.rules.is_empty() {
            return Err(line.mistake_at(0, RULES_OR_PACE));
        }
        // A placeholder in case of a mistake: the rows are still parsed as a pacer's, and none of them is
        // run.
        case.pacing = Some(Pacing::new(Quota::per_second(1)));
        case.pacing = Some(pace::pacing(line)?);
        Ok(())
    }

    fn is_paced(&self) -> bool {
        self.cases.last().is_some_and(|case| case.pacing.is_some())
    }

    /// A row of a case with a pacer, or a change of its rate.
    fn pace_row(&mut self, line: &mut Line<'_>) -> Result<(), Mistake> {
        let number = line.number();
        let mut mistakes = std::mem::take(&mut self.mistakes);
        let begins = pace::begins(line).unwrap_or_else(|mistake| {
            line.skip_past(&mistake);
            mistakes.push(mistake);
            Begins::After(0)
        });
        self.mistakes = mistakes;
        if line.takes("change") {
            return self.set_rate(line, begins);
        }
        let row = pace::row(line, begins, &mut self.mistakes);
        let case = self.current(number);
        case.tried = true;
        let text = line.squeezed();
        let step = row.map(|row| Step { line: number, text, at: Micros::ZERO, act: Act::Pace(row) });
        case.steps.extend(step);
        Ok(())
    }

    fn set_rate(&mut self, line: &mut Line<'_>, begins: Begins) -> Result<(), Mistake> {
        let case = self.current(line.number());
        case.tried = true;
        if !line.takes("pace") {
            return Err(line.mistake(CHANGE_PACE));
        }
        let act = Act::SetRate { begins, quota: pace::rate(line)? };
        case.steps.push(Step { line: line.number(), text: line.squeezed(), at: Micros::ZERO, act });
        Ok(())
    }

    /// Replaces a rule at the instant `at`, while the state lives on.
    fn change(&mut self, line: &mut Line<'_>, at: Micros) -> Result<(), Mistake> {
        let case = self.current(line.number());
        case.tried = true;
        let keyword = keyword(line).ok_or_else(|| line.mistake(QUOTA_OR_RULE))?;
        let rules = case.referred();
        if case.rules.is_empty() && rules.names.is_some() {
            return Err(line.mistake(A_RULE_FIRST));
        }
        let position = if has_name(line) {
            let position = rules.position(line)?;
            line.takes("=");
            position
        } else if case.rules.len() > 1 {
            return Err(line.mistake(format!("{} and = before the new rule", rules.choices())));
        } else {
            Some(0)
        };
        let (rule, written) = rule_text(line, keyword)?;
        case.texts.push((rule, written));
        let text = line.squeezed();
        if let Some(position) = position {
            case.steps.push(Step { line: line.number(), text, at, act: Act::Change { position, rule } });
        }
        Ok(())
    }

    fn row(&mut self, line: &mut Line<'_>) -> Result<(), Mistake> {
        let number = line.number();
        let previous = self.previous;
        let at = time::instant(line, previous).unwrap_or_else(|mistake| {
            line.skip_past(&mistake);
            self.mistakes.push(mistake);
            previous
        });
        self.previous = at;
        if line.takes("change") {
            return self.change(line, at);
        }
        let before_rules = line.mistake_at(0, A_RULE_FIRST);
        let mut mistakes = std::mem::take(&mut self.mistakes);
        let case = self.current(number);
        case.tried = true;
        let row = row::row(line, case.referred(), &mut mistakes);
        let no_rules = case.rules.is_empty() && !case.mistaken;
        if let Some(row) = row {
            let step = Step { line: number, text: line.squeezed(), at, act: Act::Ask(row) };
            let ends = step.ends();
            case.steps.push(step);
            self.previous = ends;
        }
        self.mistakes = mistakes;
        if no_rules { Err(before_rules) } else { Ok(()) }
    }

    fn finish(mut self) -> Result<Vec<Case>, Vec<Mistake>> {
        self.close_case();
        self.cases.retain(|case| !case.steps.is_empty());
        if self.cases.is_empty() && self.mistakes.is_empty() {
            let (found, says) = (String::new(), ANY_ROW.to_owned());
            self.mistakes.push(Mistake { line: 1, column: 1, found, says });
        }
        self.mistakes.sort();
        if self.mistakes.is_empty() { Ok(self.cases) } else { Err(self.mistakes) }
    }
}

impl Case {
    /// The rules that a row may refer to.
    fn referred(&self) -> Rules<'_> {
        Rules { names: (!self.mistaken).then_some(self.names.as_slice()) }
    }

    /// The text of a rule of this case, for subjects that pass it on as text.
    pub(crate) fn written(&self, rule: &Rule) -> Option<&str> {
        self.texts.iter().find(|(known, _)| known == rule).map(|(_, text)| text.as_str())
    }

    /// Whether a row is earlier than the one above it. A subject with a monotonic clock cannot run such a
    /// case.
    pub(crate) fn steps_back(&self) -> bool {
        self.steps.windows(2).any(|pair| pair[1].at < pair[0].ends())
    }
}

impl Step {
    /// The instant of the last request of the row.
    pub(crate) fn ends(&self) -> Micros {
        match &self.act {
            Act::Ask(row) => row::instant_of(self.at, row.every, row.times - 1),
            // The instants of a pacer are known only when the case is run.
            Act::Change { .. } | Act::Pace(_) | Act::SetRate { .. } => self.at,
        }
    }
}

fn keyword(line: &mut Line<'_>) -> Option<Keyword> {
    if line.takes("quota") {
        Some(Keyword::Quota)
    } else if line.takes("rule") {
        Some(Keyword::Rule)
    } else {
        None
    }
}

/// Adds the rule that the rest of the line describes, with its optional name.
fn named_rule(line: &mut Line<'_>, keyword: Keyword, case: &mut Case) -> Result<(), Mistake> {
    let mark = line.mark();
    let name = if has_name(line) { Some(rule_name(line)?) } else { None };
    if name.is_some() && case.names.contains(&name) {
        return Err(line.mistake_at(mark, NEW_NAME));
    }
    if case.rules.len() == MOST_RULES {
        return Err(line.mistake_at(mark, FEWER_RULES));
    }
    let (rule, written) = rule_text(line, keyword)?;
    case.rules.push(rule);
    case.names.push(name);
    case.texts.push((rule, written));
    Ok(())
}

/// Whether `NAME =` comes next.
fn has_name(line: &Line<'_>) -> bool {
    line.second().is_some_and(|(token, _)| token.text == "=")
}

fn rule_name(line: &mut Line<'_>) -> Result<String, Mistake> {
    let name = line.next_of(super::line::Kind::Word).ok_or_else(|| line.mistake(RULE_NAME))?;
    line.takes("=");
    Ok(name.text.to_owned())
}

/// A rule, and its text.
fn rule_text(line: &mut Line<'_>, keyword: Keyword) -> Result<(Rule, String), Mistake> {
    let number = line.number();
    let (text, column) = line.rest();
    let rule = match keyword {
        Keyword::Quota => text.parse::<Quota>().map(|quota| Rule::TokenBucket(TokenBucket::new(quota))),
        Keyword::Rule => text.parse::<Rule>(),
    };
    let rule = rule.map_err(|error| invalid_rule(error, number, text, column))?;
    Ok((rule, text.to_owned()))
}

/// The library's error about a quota, with its position translated to the file.
pub(crate) fn invalid_rule(error: InvalidQuota, line: usize, text: &str, column: usize) -> Mistake {
    let sentence = error.to_string();
    let Some(position) = error.position() else {
        return Mistake { line, column, found: text.to_owned(), says: sentence };
    };
    // The error text counts characters from the start of the rule and repeats the first wrong one. Here the
    // column and the offending word replace both.
    let says = sentence.split_once(": ").map_or(sentence.as_str(), |(_, says)| says);
    let says = says.find("expected ").map_or(says, |from| &says[from..]).to_owned();
    let rest: String = text.chars().skip(position).collect();
    let found = rest.split_whitespace().next().unwrap_or("").to_owned();
    Mistake { line, column: column + position, found, says }
}
