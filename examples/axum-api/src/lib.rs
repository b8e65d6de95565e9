//! # An API with limits
//!
//! Notes, for those who are logged in. Three limits stand in front of them, all or nothing: what everybody may ask
//! for together, what each user may, and how many are at work. Logging in has a limit of its own, by address, because
//! nobody is known yet there.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Extension, Request};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use tidegate::http::{ClientAddress, Expose, Fields, KeyPart, Limits, by};
use tidegate::tower::{ConcurrencyLayer, RateLimitLayer};
use tidegate::{KeyedLimiter, Policy, Quota};

/// How much is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// To everybody together.
    pub everybody: Quota,
    /// To each user.
    pub user: Quota,
    /// To each address that logs in.
    pub login: Quota,
    /// At the same time.
    pub at_work: u32,
}

/// What a small service can bear.
pub const USUAL: Plan = Plan {
    everybody: Quota::per_second(1_000),
    user: Quota::per_minute(100).burst(20),
    login: Quota::per_minute(5),
    at_work: 200,
};

/// Somebody who is logged in.
#[derive(Clone, Debug)]
struct User {
    name: String,
}

/// The API. To be served with `into_make_service_with_connect_info::<SocketAddr>()`, which tells it who connects.
///
/// # Errors
///
/// If the limits cannot be built.
pub fn app(plan: Plan) -> Result<Router, Box<dyn Error>> {
    let notes = Router::new()
        .route("/notes", get(list).post(add))
        .layer(ConcurrencyLayer::new(limits_on_notes(plan)?))
        .layer(middleware::from_fn(authenticate)); // before the limits: only who is known is counted as somebody
    let login = Router::new().route("/login", post(login)).layer(RateLimitLayer::new(limits_on_login(plan)?));
    Ok(notes.merge(login))
}

fn limits_on_notes(plan: Plan) -> Result<Limits, Box<dyn Error>> {
    let policy = Policy::builder()
        .rule("everybody", plan.everybody)
        .rule("user", plan.user)
        .concurrency("at work", plan.at_work)
        .build()?;
    let limits = Limits::over(policy)
        .rule("everybody", by::global())
        .expose(Expose::RetryAfterOnly)
        .rule("user", by::extension(|user: &User| &user.name).or_refuse())
        .quota(plan.user)
        .cost(|head| if head.method == "POST" { 5 } else { 1 })
        .rule("at work", by::global())
        .expose(Expose::RetryAfterOnly)
        .fields(Fields::Draft11)
        .build()?;
    Ok(limits)
}

fn limits_on_login(plan: Plan) -> Result<Limits, Box<dyn Error>> {
    let client = ClientAddress::from_socket(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
    let limiter = KeyedLimiter::<str>::new(plan.login);
    Ok(Limits::over(limiter).rule("login", by::address(client)).expose(Expose::RetryAfterOnly).build()?)
}

/// Knows whoever says `Authorization: Bearer <name>`. A real one checks that.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let said = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let name = said.and_then(|said| said.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
    let user = User { name: name.to_owned() };
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

async fn list(Extension(user): Extension<User>) -> String {
    format!("notes of {}\n", user.name)
}

async fn add(Extension(user): Extension<User>, note: String) -> String {
    format!("{} notes: {} bytes\n", user.name, note.len())
}

async fn login(name: String) -> String {
    format!("Bearer {name}\n")
}
