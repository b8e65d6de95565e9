//! limitador, for orientation. The context of a request is built for each question, as its callers have to.

use std::collections::HashMap;
use std::hint::black_box;

use limitador::RateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace};

use crate::case::Case;
use crate::keys::{LIVE, each_text, fill_texts};

/// Room for twice the keys, so that none is thrown out.
const ROOM: u64 = 2 * LIVE as u64;

pub(crate) fn texts(what: &'static str) -> Case {
    let (limiter, namespace) = (RateLimiter::new(ROOM), Namespace::from("bench"));
    let client = Expression::parse("client").expect("a name is an expression");
    limiter.add_limit(Limit::new("bench", u64::MAX / 2, 36_000, vec![], vec![client]));
    fill_texts(|key| ask(&limiter, &namespace, key));
    Case::new(what, "limitador", move |n| each_text(n, |key| ask(&limiter, &namespace, key)))
}

#[inline]
fn ask(limiter: &RateLimiter, namespace: &Namespace, key: &str) -> bool {
    let context = Context::from(HashMap::from([("client".to_owned(), key.to_owned())]));
    let answer = limiter.check_rate_limited_and_update(namespace, &context, 1);
    black_box(answer).is_ok_and(|answer| !answer.limited)
}
