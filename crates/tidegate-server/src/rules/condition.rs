//! # Conditions on what a caller sends
//!
//! A caller describes its request by descriptors, pairs of a name and a value: `path=/login`, `ip=10.1.2.3`. A
//! condition is about the descriptors of one name. Names may repeat (Envoy sends `generic_key` twice), so a test
//! holds if *some* value of that name passes it; and `not` holds if none does, also because there is no such
//! descriptor at all.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// A descriptor: a name and a value.
pub type Descriptor<'a> = (&'a str, &'a str);

/// A test of the descriptors of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The name.
    pub name: Box<str>,
    /// What its values have to pass.
    pub test: Test,
}

/// What values have to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// Be there, whatever it is.
    Any,
    /// Be one of these.
    OneOf(Values),
    /// Begin like this.
    Prefix(Box<str>),
    /// Look like this.
    Like(Pattern),
    /// Be an address in one of these networks.
    In(Networks),
    /// Pass at least one of these.
    Or(Box<[Test]>),
    /// Pass each of these.
    And(Box<[Test]>),
    /// Not pass this.
    Not(Box<Test>),
}

/// Several values, found quickly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values(Box<[Box<str>]>);

/// A text with `*` for any characters, also none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    first: Box<str>,
    middle: Box<[Box<str>]>,
    last: Box<str>,
}

/// Networks, found quickly: ranges in order, none of which touch. An IPv4 address within IPv6 is the IPv4 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks {
    written: Box<[IpNet]>,
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

// === impl Condition ===

impl Condition {
    /// A test of the descriptors of this name.
    pub fn new(name: impl Into<Box<str>>, test: Test) -> Self {
        Condition { name: name.into(), test }
    }

    /// Whether the descriptors pass.
    #[must_use]
    pub fn holds(&self, descriptors: &[Descriptor<'_>]) -> bool {
        self.test.holds(&self.name, descriptors)
    }

    /// Whether everything that passes this surely passes `other`. `false` where that cannot be told.
    #[must_use]
    pub fn implies(&self, other: &Condition) -> bool {
        self.name == other.name && self.test.implies(&other.test)
    }

    /// The values it is about, if it is about some exact ones.
    #[must_use]
    pub fn values(&self) -> Option<&Values> {
        match &self.test {
            Test::OneOf(values) => Some(values),
            Test::And(tests) => tests.iter().find_map(|test| match test {
                Test::OneOf(values) => Some(values),
                _ => None,
            }),
            _ => None,
        }
    }

    /// Whether it holds only if there is a descriptor of its name.
    #[must_use]
    pub fn needs_presence(&self) -> bool {
        self.test.needs_presence()
    }
}

/// Whether each condition of `wide` is surely met by whatever meets all of `narrow`.
#[must_use]
pub fn all_implied(narrow: &[Condition], wide: &[Condition]) -> bool {
    wide.iter().all(|wanted| narrow.iter().any(|given| given.implies(wanted)))
}

// === impl Test ===

impl Test {
    /// To be exactly this.
    pub fn is(value: impl Into<Box<str>>) -> Self {
        Test::OneOf(Values::new([value.into()]))
    }

    /// To be this, where `*` stands for any characters, and alone for any value.
    #[must_use]
    pub fn text(text: &str) -> Self {
        match text {
            "*" => Test::Any,
            text if text.contains('*') => Test::Like(Pattern::new(text)),
            text => Test::is(text),
        }
    }

    /// To pass at least one of these; exact values and networks are put together.
    #[must_use]
    pub fn any_of(tests: Vec<Test>) -> Self {
        let (mut values, mut networks, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for test in tests {
            match test {
                Test::OneOf(some) => values.extend(some.0),
                Test::In(some) => networks.extend(some.written),
                other => others.push(other),
            }
        }
        if !networks.is_empty() {
            others.insert(0, Test::In(Networks::new(networks)));
        }
        if !values.is_empty() {
            others.insert(0, Test::OneOf(Values::new(values)));
        }
        if others.len() == 1 { others.remove(0) } else { Test::Or(others.into()) }
    }

    /// To pass each of these.
    #[must_use]
    pub fn all_of(mut tests: Vec<Test>) -> Self {
        if tests.len() == 1 { tests.remove(0) } else { Test::And(tests.into()) }
    }

    /// Whether the descriptors of this name pass.
    #[must_use]
    pub fn holds(&self, name: &str, descriptors: &[Descriptor<'_>]) -> bool {
        match self {
            Test::Or(tests) => tests.iter().any(|test| test.holds(name, descriptors)),
            Test::And(tests) => tests.iter().all(|test| test.holds(name, descriptors)),
            Test::Not(test) => !test.holds(name, descriptors),
            test => descriptors.iter().any(|(given, value)| *given == name && test.passes(value)),
        }
    }

    /// Whether one value passes, for the tests of one value.
    fn passes(&self, value: &str) -> bool {
        match self {
            Test::Any => true,
            Test::OneOf(values) => values.contains(value),
            Test::Prefix(prefix) => value.starts_with(&**prefix),
            Test::Like(pattern) => pattern.matches(value),
            Test::In(networks) => networks.contains(value),
            Test::Or(_) | Test::And(_) | Test::Not(_) => false,
        }
    }

    fn needs_presence(&self) -> bool {
        match self {
            Test::Or(tests) => !tests.is_empty() && tests.iter().all(Test::needs_presence),
            Test::And(tests) => tests.iter().any(Test::needs_presence),
            Test::Not(_) => false,
            _ => true,
        }
    }

    fn implies(&self, other: &Test) -> bool {
        match (self, other) {
            (one, other) if one == other => true,
            (_, Test::And(others)) => others.iter().all(|other| self.implies(other)),
            (Test::Or(ones), other) => !ones.is_empty() && ones.iter().all(|one| one.implies(other)),
            (_, Test::Or(others)) => others.iter().any(|other| self.implies(other)),
            (Test::And(ones), other) => ones.iter().any(|one| one.implies(other)),
            (Test::Not(one), Test::Not(other)) => other.implies(one),
            (one, Test::Any) => one.needs_presence(),
            (Test::OneOf(values), other) => values.iter().all(|value| other.passes(value)),
            (Test::Prefix(one), Test::Prefix(other)) => one.starts_with(&**other),
            (Test::Like(one), Test::Prefix(other)) => one.first.starts_with(&**other),
            (Test::In(ones), Test::In(others)) => ones.is_within(others),
            _ => false,
        }
    }
}

// === impl Values ===

impl Values {
    /// These, each once.
    pub fn new(values: impl IntoIterator<Item = Box<str>>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable();
        values.dedup();
        Values(values.into())
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        match &*self.0 {
            [only] => **only == *value,
            values => values.binary_search_by(|one| (**one).cmp(value)).is_ok(),
        }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }
}

// === impl Pattern ===

impl Pattern {
    /// A text, where each `*` stands for any characters.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut parts: Vec<Box<str>> = text.split('*').map(Into::into).collect();
        let last = if parts.len() > 1 { parts.pop().unwrap_or_default() } else { Box::default() };
        let first = parts.remove(0);
        parts.retain(|part| !part.is_empty());
        Pattern { first, middle: parts.into(), last }
    }

    /// Whether a value looks like it.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let Some(rest) = value.strip_prefix(&*self.first) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.last) else { return false };
        // The leftmost place for each part leaves the most for the others, so nothing has to be tried twice.
        for part in &self.middle {
            let Some(at) = rest.find(&**part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

// === impl Networks ===

impl Networks {
    /// These networks.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let written: Box<[_]> = networks.into_iter().map(canonical).collect();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in &written {
            match network {
                IpNet::V4(net) => v4.push((net.network().to_bits(), net.broadcast().to_bits())),
                IpNet::V6(net) => v6.push((net.network().to_bits(), net.broadcast().to_bits())),
            }
        }
        Networks { written, v4: joined(v4), v6: joined(v6) }
    }

    /// Whether a text is an address in one of them.
    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        match value.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(IpAddr::V4(address)) => within(&self.v4, address.to_bits()),
            Ok(IpAddr::V6(address)) => within(&self.v6, address.to_bits()),
            Err(_) => false,
        }
    }

    fn is_within(&self, others: &Networks) -> bool {
        let v4 = self.v4.iter().all(|(first, last)| covers(&others.v4, *first, *last));
        v4 && self.v6.iter().all(|(first, last)| covers(&others.v6, *first, *last))
    }
}

/// An IPv4 network written as IPv6 is the IPv4 network: `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
#[must_use]
pub fn canonical(network: IpNet) -> IpNet {
    const MAPPED: u8 = 96;
    match (network.network().to_canonical(), network) {
        (IpAddr::V4(address), IpNet::V6(net)) if net.prefix_len() >= MAPPED => {
            IpNet::new(address.into(), net.prefix_len() - MAPPED).unwrap_or(network)
        }
        _ => network.trunc(),
    }
}

fn joined<N: Copy + Ord>(mut ranges: Vec<(N, N)>) -> Box<[(N, N)]> {
    ranges.sort_unstable();
    let mut joined: Vec<(N, N)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(before) if first <= before.1 => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined.into()
}

fn within<N: Copy + Ord>(ranges: &[(N, N)], number: N) -> bool {
    covers(ranges, number, number)
}

fn covers<N: Copy + Ord>(ranges: &[(N, N)], first: N, last: N) -> bool {
    let after = ranges.partition_point(|range| range.0 <= first);
    after > 0 && last <= ranges[after - 1].1
}

// === in words ===

impl fmt::Display for Condition {
    /// As it could be written in a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.test)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Any => f.write_str("*"),
            Test::OneOf(values) => write_list(f, &values.0),
            Test::Prefix(prefix) => write!(f, "{{prefix: {prefix}}}"),
            Test::Like(pattern) => pattern.fmt(f),
            Test::In(networks) => {
                f.write_str("{cidr: ")?;
                write_list(f, &networks.written)?;
                f.write_str("}")
            }
            Test::Or(tests) => write_list(f, tests),
            Test::And(tests) => tests.iter().enumerate().try_for_each(|(index, test)| {
                f.write_str(if index == 0 { "" } else { " and " })?;
                test.fmt(f)
            }),
            Test::Not(test) => write!(f, "{{not: {test}}}"),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}*", self.first)?;
        self.middle.iter().try_for_each(|part| write!(f, "{part}*"))?;
        f.write_str(&self.last)
    }
}

fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    if let [only] = items {
        return only.fmt(f);
    }
    f.write_str("[")?;
    for (index, item) in items.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        item.fmt(f)?;
    }
    f.write_str("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Networks {
        Networks::new(texts.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn a_star_stands_for_anything() {
        let table = [
            ("/api/*", "/api/", true),
            ("/api/*", "/api", false),
            ("*.png", "a/b.png", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("ab*ba", "aba", false),
            ("*x*", "x", true),
            ("a**b", "ab", true),
            ("*é", "café", true),
        ];
        for (pattern, value, matches) in table {
            assert_eq!(Pattern::new(pattern).matches(value), matches, "{pattern} {value}");
        }
    }

    #[test]
    fn an_address_is_one_address_however_it_is_written() {
        let ten = nets(&["10.0.0.0/8"]);
        assert!(
            ten.contains("10.255.255.255")
                && ten.contains("::ffff:10.1.2.3")
                && ten.contains("::FFFF:0a01:203")
        );
        assert!(
            !ten.contains("11.0.0.0")
                && !ten.contains("10.0.0.0/8")
                && !ten.contains("10.1")
                && !ten.contains("")
        );
        assert_eq!(nets(&["::ffff:10.0.0.0/104"]), ten);
        let v6 = nets(&["2001:db8::/32"]);
        assert!(v6.contains("2001:db8:ffff::1") && !v6.contains("2001:db9::"));
        assert!(nets(&["::/0"]).contains("2001:db8::1") && !nets(&["::/0"]).contains("10.0.0.1"));
        assert!(nets(&["0.0.0.0/0"]).contains("255.255.255.255"));
    }

    #[test]
    fn networks_that_touch_or_overlap_are_found_all_the_same() {
        let some = nets(&["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "192.168.1.1/32"]);
        for inside in ["10.0.0.0", "10.127.255.255", "10.128.0.0", "10.255.255.255", "192.168.1.1"] {
            assert!(some.contains(inside), "{inside}");
        }
        for outside in ["9.255.255.255", "11.0.0.0", "192.168.1.0", "192.168.1.2"] {
            assert!(!some.contains(outside), "{outside}");
        }
    }

    #[test]
    fn not_holds_where_there_is_nothing() {
        let gold = Condition::new("plan", Test::Not(Box::new(Test::is("gold"))));
        assert!(gold.holds(&[]) && gold.holds(&[("plan", "free")]));
        assert!(!gold.holds(&[("plan", "free"), ("plan", "gold")]), "one of them is gold");
        assert!(Condition::new("plan", Test::is("gold")).holds(&[("plan", "free"), ("plan", "gold")]));
        assert!(Condition::new("user", Test::Not(Box::new(Test::Any))).holds(&[("plan", "gold")]));
    }

    #[test]
    fn what_is_narrower_is_told_from_what_is_not() {
        let test = |text: &str| Condition::new("x", Test::text(text));
        let prefix = |text: &str| Condition::new("x", Test::Prefix(text.into()));
        let net = |text: &str| Condition::new("x", Test::In(nets(&[text])));
        let not = |test: Condition| Condition::new("x", Test::Not(Box::new(test.test)));
        let list =
            |texts: &[&str]| Condition::new("x", Test::any_of(texts.iter().map(|t| Test::text(t)).collect()));
        let narrower = [
            (test("a"), test("*")),
            (test("a"), list(&["a", "b"])),
            (list(&["a", "b"]), list(&["c", "b", "a"])),
            (test("/api/x"), prefix("/api/")),
            (test("/api/x"), test("/api/*")),
            (test("/api/*"), prefix("/api")),
            (prefix("/api/v1"), prefix("/api")),
            (net("10.1.0.0/16"), net("10.0.0.0/8")),
            (not(test("*")), not(test("a"))),
        ];
        for (narrow, wide) in narrower {
            assert!(narrow.implies(&wide), "{narrow} => {wide}");
            assert!(!wide.implies(&narrow), "{wide} => {narrow}");
        }
        assert!(!not(test("a")).implies(&test("*")), "it also holds where there is nothing");
        assert!(!Condition::new("y", Test::is("a")).implies(&test("a")));
    }
}
