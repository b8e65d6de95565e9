//! # Paths, and what lies there
//!
//! One table has every path, its method, and what is to be done; whoever is asked looks there and nowhere else. So a
//! test that goes through the table has gone through everything that can be asked.

use hyper::StatusCode;

use super::head::Head;
use super::problem::Problem;
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
}

impl<V> Route<V> {
    pub(crate) const fn get(path: &'static str, verb: V) -> Self {
        Route { method: "GET", path, verb, whom: Whom::Known }
    }

    pub(crate) const fn post(path: &'static str, verb: V) -> Self {
        Route { method: "POST", path, verb, whom: Whom::Known }
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
pub(crate) fn find<V: Copy>(
    routes: &[Route<V>],
    token: Option<&Account>,
    head: &Head<'_>,
) -> Result<V, Problem> {
    let Head { path, method, .. } = *head;
    let Some(route) = routes.iter().find(|route| route.path == path) else {
        let paths: Vec<_> = routes.iter().map(|route| route.path).collect();
        let detail = format!("there is nothing at {path:?}; use one of {}", paths.join(", "));
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    if !route.is_for(method) {
        let detail = format!("{method} is not for {path}; use {}", route.method);
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail);
        return Err(Problem { allow: Some(route.allow()), ..problem });
    }
    match token {
        token if route.whom == Whom::Known && !is_known(token, head.authorization) => {
            let detail = "who asks has to say the token; send it as `Authorization: Bearer …`";
            Err(Problem::new(StatusCode::UNAUTHORIZED, detail))
        }
        _ => Ok(route.verb),
    }
}

/// Whether a caller who says this in the header `Authorization` says what it has to know.
pub(crate) fn is_known(token: Option<&Account>, said: &[u8]) -> bool {
    let Some(account) = token else { return true };
    let (scheme, token) = said.split_at_checked(7).unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"Bearer ") && account.is(account.user().as_bytes(), token)
}
