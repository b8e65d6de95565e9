//! A key that may be missing needs a fallback.

use std::borrow::Cow;

use tidegate::http::{KeyPart, Limits, by};
use tidegate::{Limiter, Quota};

fn main() {
    let limits = || Limits::builder(Limiter::new(Quota::per_second(1)));
    let _ = limits().rule("user", by::header("x-user"));
    let _ = limits().rule("user", (by::method(), by::query("user")));
    let _ = limits().rule("user", (by::method(), by::header("x-user").or_skip()));
    let _ = limits().rule("user", by::value(|head| head.uri.host().map(Cow::from)));
    let _ = Limits::single(Limiter::new(Quota::per_second(1)), by::param("/users/{id}", "id"));
}
