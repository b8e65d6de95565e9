//! # Routes
//!
//! A path is not a good key: it contains ids, and clients can invent any number of paths. The route of a path is a good
//! key, and so is a path parameter. If a router has matched the path already, use its result, so that limiter and router
//! cannot disagree: `by::extension(|matched: &MatchedPath| matched.as_str())`. Otherwise use templates such as
//! `/users/{id}`.
//!
//! `/%6cogin`, `//login` and `/x/../login;v=1` are matched as `/login`, because the server may treat them so.

use super::head::Head;
use super::key::{InvalidKey, KeyPart, MissingPart};
use super::key_buf::{KeyBuf, Kind};

/// The route of the request: the first of these templates that its path matches.
///
/// `/users/{id}` matches `/users/7`; `/files/{*rest}` matches `/files` and everything below it.
pub fn route<'a>(templates: impl IntoIterator<Item = &'a str>) -> Route {
    Route(templates.into_iter().map(Template::new).collect())
}

/// A parameter of the path, if the path matches the template.
///
/// ```
/// use tidegate::http::{KeyPart, by};
/// let tenant = by::param("/tenants/{tenant}/{*rest}", "tenant").or_skip();
/// ```
#[must_use]
pub fn param(template: &str, param: &str) -> Param {
    Param { template: Template::new(template), param: param.to_owned() }
}

/// See [`route`].
#[derive(Clone, Debug)]
pub struct Route(Box<[Template]>);

/// See [`param`].
#[derive(Clone, Debug)]
pub struct Param {
    template: Template,
    param: String,
}

#[derive(Clone, Debug)]
struct Template {
    text: String,
    segments: Box<[Segment]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Text(String),
    Param(String),
    Rest,
}

impl KeyPart for Route {
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let path = Path::of(head.uri.path());
        let template = self.0.iter().find(|template| template.matches(&path)).ok_or(MissingPart)?;
        key.part(Kind::Route, |key| key.raw(template.text.as_bytes()));
        Ok(())
    }

    fn check(&self) -> Result<(), InvalidKey> {
        self.0.iter().try_for_each(Template::check)
    }
}

impl KeyPart for Param {
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let path = Path::of(head.uri.path());
        let value =
            self.segment_index().and_then(|index| path.get(index)).filter(|_| self.template.matches(&path));
        let value = value.ok_or(MissingPart)?;
        key.part(Kind::Param, |key| decode(value, b'%').for_each(|byte| key.raw(&[byte])));
        Ok(())
    }

    fn check(&self) -> Result<(), InvalidKey> {
        self.template.check()?;
        match self.segment_index() {
            Some(_) => Ok(()),
            None => Err(InvalidKey::UnknownParam {
                template: self.template.text.clone(),
                param: self.param.clone(),
            }),
        }
    }
}

impl Param {
    /// The index of the segment that is the parameter.
    fn segment_index(&self) -> Option<usize> {
        self.template
            .segments
            .iter()
            .position(|segment| matches!(segment, Segment::Param(name) if *name == self.param))
    }
}

impl Template {
    fn new(text: &str) -> Self {
        let segments = text.split('/').skip(1).filter(|segment| !segment.is_empty()).map(Segment::new);
        Template { text: text.to_owned(), segments: segments.collect() }
    }

    fn check(&self) -> Result<(), InvalidKey> {
        let is_well_formed = |(index, segment): (usize, &Segment)| match segment {
            Segment::Text(text) => !text.contains(['{', '}']),
            Segment::Param(name) => {
                !name.is_empty()
                    && !name.contains(['{', '}', '*'])
                    && !self.segments[..index].contains(segment)
            }
            Segment::Rest => index + 1 == self.segments.len(),
        };
        if self.text.starts_with('/') && self.segments.iter().enumerate().all(is_well_formed) {
            return Ok(());
        }
        Err(InvalidKey::InvalidTemplate { template: self.text.clone() })
    }

    fn matches(&self, path: &Path<'_>) -> bool {
        let (fixed, fits) = match &*self.segments {
            [fixed @ .., Segment::Rest] => (fixed, path.length >= fixed.len()),
            all => (all, path.length == all.len()),
        };
        fits && fixed.iter().rev().zip(path.first(fixed.len())).all(|(segment, actual)| match segment {
            Segment::Text(text) => decode(actual, b'%').eq(text.bytes()),
            Segment::Param(_) | Segment::Rest => true,
        })
    }
}

impl Segment {
    fn new(text: &str) -> Self {
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(rest) if rest.starts_with('*') => Segment::Rest,
            Some(name) => Segment::Param(name.to_owned()),
            None => Segment::Text(text.to_owned()),
        }
    }
}

/// A path as its normalized segments.
///
/// They are read from the right, where `..` comes before the segment that it removes, so that nothing is allocated.
struct Path<'a> {
    text: &'a str,
    length: usize,
}

impl<'a> Path<'a> {
    fn of(text: &'a str) -> Self {
        Path { text, length: segments_from_right(text).count() }
    }

    /// The segment at this index, counted from 0.
    fn get(&self, index: usize) -> Option<&'a str> {
        segments_from_right(self.text).nth(self.length.checked_sub(index + 1)?)
    }

    /// The first `count` segments, from right to left.
    fn first(&self, count: usize) -> impl Iterator<Item = &'a str> {
        segments_from_right(self.text).skip(self.length - count)
    }
}

/// The segments of a path, last to first, without empty, `.` and removed ones.
///
/// What follows a semicolon in a segment is cut off.
fn segments_from_right(path: &str) -> impl Iterator<Item = &str> {
    let mut removed = 0_usize;
    path.rsplit('/').map(|segment| segment.split(';').next().unwrap_or(segment)).filter(move |segment| {
        if segment.is_empty() || decode(segment, b'%').eq(*b".") {
            return false;
        }
        if decode(segment, b'%').eq(*b"..") {
            removed += 1;
            return false;
        }
        let is_kept = removed == 0;
        removed = removed.saturating_sub(1);
        is_kept
    })
}

/// Decodes `%41` and the like to bytes.
///
/// A `%` before anything else stays. A `+` is read as a space if `plus` is `+`.
pub(super) fn decode(text: &str, plus: u8) -> impl Iterator<Item = u8> + '_ {
    let mut bytes = text.bytes();
    std::iter::from_fn(move || {
        let byte = bytes.next()?;
        if byte == b'%' {
            let mut ahead = bytes.clone();
            let digits = [ahead.next(), ahead.next()].map(|digit| char::from(digit?).to_digit(16));
            if let [Some(high), Some(low)] = digits {
                bytes = ahead;
                return u8::try_from(high * 16 + low).ok();
            }
        }
        Some(if byte == b'+' && plus == b'+' { b' ' } else { byte })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(template: &str, path: &str) -> bool {
        Template::new(template).matches(&Path::of(path))
    }

    #[test]
    fn paths_are_normalized_before_matching() {
        for login in
            ["/login", "/%6cogin", "//login", "/login/", "/x/../login", "/x/%2E%2e/login;v=1", "/./login"]
        {
            assert!(matches("/login", login), "{login}");
        }
        for other in ["/", "/logi", "/login/x", "/Login", "/login%2f", "/%6"] {
            assert!(!matches("/login", other), "{other}");
        }
    }

    #[test]
    fn parent_segments_remove_the_segment_before() {
        for (path, normalized) in [
            ("/a/b/../c", "/a/c"),
            ("/a/../../b", "/b"),
            ("/../a", "/a"),
            ("/a/b/c/../../d", "/a/d"),
            ("/a/../b/../c", "/c"),
            ("/a/..", "/"),
            ("/a/.../b", "/a/.../b"),
            ("/a;x/../b;y/c;..", "/b/c"),
        ] {
            let mut segments: Vec<&str> = segments_from_right(path).collect();
            segments.reverse();
            assert_eq!(format!("/{}", segments.join("/")), normalized, "{path}");
        }
        let param = |path| Path::of(path).get(1);
        assert_eq!([param("/x/../a/7/b"), param("/a/7"), param("/a")], [Some("7"), Some("7"), None]);
    }

    #[test]
    fn parameters_and_rest_parameters_match() {
        assert!(matches("/users/{id}", "/users/7") && !matches("/users/{id}", "/users"));
        assert!(matches("/files/{*rest}", "/files/a/b") && matches("/files/{*rest}", "/files"));
        assert!(!matches("/files/{*rest}", "/file/a") && matches("/", "/"));
    }

    #[test]
    fn invalid_templates_are_rejected() {
        for template in ["users", "", "/{}", "/{a}/{a}", "/{*rest}/x", "/us{id}", "/{i{d}}"] {
            assert!(Template::new(template).check().is_err(), "{template}");
        }
        for template in ["/", "/users/{id}", "/users/{id}/{*rest}", "//a//"] {
            assert_eq!(Template::new(template).check(), Ok(()), "{template}");
        }
        assert!(param("/users/{id}", "user").check().is_err());
    }
}
