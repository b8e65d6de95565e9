//! # Paths, and what lies there
//!
//! One table has every path, its method, and what is to be done; whoever is asked looks there and nowhere else. So a
//! test that goes through the table has gone through everything that can be asked.

use hyper::StatusCode;

use super::head::Head;
use super::problem::Problem;
use super::session::Answers;
use crate::resp::Account;

/// A path, and what is to be done if it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<V> {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) verb: V,
    /// Who may ask.
    pub(crate) whom: Whom,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// Everybody: whoever looks after the service and has no token.
    All,
    /// Those who know the token, if there is one.
    Known,
    /// Those who know the token for changes, if there is a token.
    Changes,
}

impl<V> Route<V> {
    pub(crate) const fn get(path: &'static str, verb: V) -> Self {
        Route { method: "GET", path, verb, whom: Whom::Known }
    }

    pub(crate) const fn post(path: &'static str, verb: V) -> Self {
        Route { method: "POST", path, verb, whom: Whom::Known }
    }

    pub(crate) const fn post_change(path: &'static str, verb: V) -> Self {
        Route { method: "POST", path, verb, whom: Whom::Changes }
    }

    pub(crate) const fn get_by_all(path: &'static str, verb: V) -> Self {
        Route { method: "GET", path, verb, whom: Whom::All }
    }

    fn allow(&self) -> &'static str {
        if self.method == "GET" { "GET, HEAD" } else { self.method }
    }

    fn is_for(&self, method: &str) -> bool {
        method == self.method || (self.method == "GET" && method == "HEAD")
    }
}

/// What a request asks for, if it may.
pub(crate) fn find<S: Answers>(service: &S, head: &Head<'_>) -> Result<S::Verb, Problem> {
    let Head { path, method, .. } = *head;
    let found = S::ROUTES.iter().find(|route| route.path == path);
    // Who may not ask is not told what there is, either.
    may_ask(service, found.map_or(Whom::Known, |route| route.whom), head)?;
    let Some(route) = found else {
        let paths: Vec<_> = S::ROUTES.iter().map(|route| route.path).collect();
        let detail = format!("there is nothing at {path:?}; use one of {}", paths.join(", "));
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    if !route.is_for(method) {
        let detail = format!("{method} is not for {path}; use {}", route.method);
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail);
        return Err(Problem { allow: Some(route.allow()), ..problem });
    }
    Ok(route.verb)
}

fn may_ask<S: Answers>(service: &S, whom: Whom, head: &Head<'_>) -> Result<(), Problem> {
    let Some(token) = service.token().filter(|_| whom != Whom::All) else {
        return if whom == Whom::All { Ok(()) } else { service.guard().check(head) };
    };
    let knows = |token: &Account| is_known(Some(token), head.authorization);
    let may_change = service.change_token().is_some_and(knows);
    match knows(token) {
        _ if may_change => Ok(()),
        true if whom == Whom::Known => Ok(()),
        true => {
            let detail =
                "this token lets callers check and not reset; send the `change_token` of the listener";
            Err(Problem::new(StatusCode::FORBIDDEN, detail))
        }
        false => {
            let detail = "missing or invalid bearer token; send it as `Authorization: Bearer …`";
            Err(Problem::new(StatusCode::UNAUTHORIZED, detail))
        }
    }
}

/// Whether a caller who says this in the header `Authorization` says what it has to know.
pub(crate) fn is_known(token: Option<&Account>, said: &[u8]) -> bool {
    let Some(account) = token else { return true };
    let (scheme, token) = said.split_at_checked(7).unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"Bearer ") && account.is(account.user().as_bytes(), token)
}
