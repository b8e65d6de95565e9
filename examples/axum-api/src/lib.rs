//! # An API with limits
//!
//! Notes, for users who are logged in. Three limits protect them, and a request is charged by all of them or none: a
//! global rate, a rate for each user, and a limit on requests in progress. The login has a separate limit by client
//! address, because its requests have no user yet.

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

/// The limits of the API.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// For all users together.
    pub global: Quota,
    /// For each user.
    pub user: Quota,
    /// For the logins from each address.
    pub login: Quota,
    /// The maximum number of requests in progress.
    pub concurrency: u32,
}

/// Limits for a small service.
pub const USUAL: Plan = Plan {
    global: Quota::per_second(1_000),
    user: Quota::per_minute(100).burst(20),
    login: Quota::per_minute(5),
    concurrency: 200,
};

/// A user who is logged in.
#[derive(Clone, Debug)]
struct User {
    name: String,
}

/// Builds the API. Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, which adds the client address.
///
/// # Errors
///
/// If the limits cannot be built.
pub fn app(plan: Plan) -> Result<Router, Box<dyn Error>> {
    let notes = Router::new()
        .route("/notes", get(list).post(add))
        .layer(ConcurrencyLayer::new(limits_on_notes(plan)?))
        .layer(middleware::from_fn(authenticate)); // outermost: the limits need the user
    let login = Router::new().route("/login", post(login)).layer(RateLimitLayer::new(limits_on_login(plan)?));
    Ok(notes.merge(login))
}

fn limits_on_notes(plan: Plan) -> Result<Limits, Box<dyn Error>> {
    let policy = Policy::builder()
        .rule("global", plan.global)
        .rule("user", plan.user)
        .concurrency("concurrency", plan.concurrency)
        .build()?;
    let limits = Limits::builder(policy)
        .rule("global", by::global())
        .expose(Expose::RetryAfterOnly)
        .rule("user", by::extension(|user: &User| &user.name).or_refuse())
        .quota(plan.user)
        .cost(|head| if head.method == "POST" { 5 } else { 1 })
        .rule("concurrency", by::global())
        .expose(Expose::RetryAfterOnly)
        .fields(Fields::Draft11)
        .build()?;
    Ok(limits)
}

fn limits_on_login(plan: Plan) -> Result<Limits, Box<dyn Error>> {
    let client = ClientAddress::from_socket(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
    let limiter = KeyedLimiter::<str>::new(plan.login);
    Ok(Limits::builder(limiter).rule("login", by::address(client)).expose(Expose::RetryAfterOnly).build()?)
}

/// Takes the user from `Authorization: Bearer <name>`. A real service verifies the token.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let credentials = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let name = credentials.and_then(|value| value.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
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
