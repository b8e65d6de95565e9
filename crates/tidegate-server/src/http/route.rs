//! # From a path to an answer

use std::sync::Arc;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tidegate::Clock;

use super::Service;
use super::asked::{self, Asked, OneOrMany};
use super::problem::Problem;
use super::told;
use crate::engine::{Answer, Engine, Fault, InForce, Question};
use crate::resp::Account;

/// Every path there is, with its method.
pub const ROUTES: [(&str, &str); 10] = [
    ("POST", "/v1/check"),
    ("POST", "/v1/peek"),
    ("POST", "/v1/refund"),
    ("POST", "/v1/reset"),
    ("POST", "/v1/acquire"),
    ("POST", "/v1/renew"),
    ("POST", "/v1/release"),
    ("POST", "/v1/explain"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
];

/// What is to be done to what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Check,
    Peek,
    Refund,
    Reset,
    Acquire,
    Renew,
    Release,
    Explain,
    Health,
}

/// The longest body, in bytes.
const BODY: usize = 256 << 10;

type Told = Answer<Result<String, Problem>>;

/// Answers a request, whatever it is.
pub(super) async fn answer<C: Clock + Send + Sync + 'static>(
    service: &Service<C>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let told = match route(service, &request) {
        Ok(Verb::Health) => Ok("{\"status\":\"ok\"}".to_owned()),
        Ok(verb) => match body(request.into_body()).await {
            Ok(body) => put(&service.engine, verb, &body).wait().await,
            Err(problem) => Err(problem),
        },
        Err(problem) => Err(problem),
    };
    match told {
        Ok(json) => response(StatusCode::OK, "application/json", json),
        Err(problem) => problem_of(&problem),
    }
}

fn route<C>(service: &Service<C>, request: &Request<Incoming>) -> Result<Verb, Problem> {
    let path = request.uri().path();
    let verb = verb(path).ok_or_else(|| {
        let paths: Vec<_> = ROUTES.iter().map(|(_, path)| *path).collect();
        Problem::new(
            StatusCode::NOT_FOUND,
            format!("there is nothing at {path:?}; use one of {}", paths.join(", ")),
        )
    })?;
    let method = if verb == Verb::Health { Method::GET } else { Method::POST };
    let is_right = *request.method() == method || (verb == Verb::Health && request.method() == Method::HEAD);
    if !is_right {
        let detail = format!("{} is not for {path}; use {method}", request.method());
        let allow = if verb == Verb::Health { "GET, HEAD" } else { "POST" };
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail);
        return Err(Problem { allow: Some(allow), ..problem });
    }
    if verb != Verb::Health && !is_known(service.token.as_ref(), request.headers()) {
        let detail = "who asks has to say the token; send it as `Authorization: Bearer …`";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, detail));
    }
    Ok(verb)
}

fn verb(path: &str) -> Option<Verb> {
    Some(match path {
        "/v1/check" => Verb::Check,
        "/v1/peek" => Verb::Peek,
        "/v1/refund" => Verb::Refund,
        "/v1/reset" => Verb::Reset,
        "/v1/acquire" => Verb::Acquire,
        "/v1/renew" => Verb::Renew,
        "/v1/release" => Verb::Release,
        "/v1/explain" => Verb::Explain,
        "/livez" | "/readyz" => Verb::Health,
        _ => return None,
    })
}

/// Whether a caller with these headers says what it has to know.
pub(crate) fn is_known(token: Option<&Account>, headers: &HeaderMap) -> bool {
    let Some(account) = token else { return true };
    let said = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let (scheme, token) = said.split_at_checked(7).unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"Bearer ") && account.is(account.user().as_bytes(), token)
}

async fn body(body: Incoming) -> Result<Bytes, Problem> {
    let too_long = || {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is too long; send at most {BODY} bytes"),
        )
    };
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_long());
    }
    match Limited::new(body, BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long()),
        Err(error) => Err(Problem::bad(format!("the body ended early ({error}); send all of it"))),
    }
}

fn put<C: Clock + Send + Sync + 'static>(engine: &Engine<C>, verb: Verb, body: &[u8]) -> Told {
    match verb {
        Verb::Renew | Verb::Release => match asked::place(body) {
            Ok(id) if verb == Verb::Renew => engine.renew(id).map(|lease| Ok(renewed(lease))),
            Ok(id) => engine.release(id).map(|held| Ok(format!("{{\"released\":{held}}}"))),
            Err(problem) => Answer::Ready(Err(problem)),
        },
        verb => match asked::read(body) {
            Ok(OneOrMany::One(asked)) => one(&engine.in_force(), verb, &asked),
            Ok(OneOrMany::Many(many)) => batch(&engine.in_force(), verb, &many),
            Err(problem) => Answer::Ready(Err(problem)),
        },
    }
}

fn renewed(lease: Option<std::time::Duration>) -> String {
    let mut object = told::Object::new();
    object.flag("renewed", lease.is_some());
    if let Some(lease) = lease {
        object.lease(lease);
    }
    object.end()
}

/// Each for itself. What is wrong with one of them is told in its place, unless it can be seen before any is decided.
fn batch<C: Clock + Send + Sync + 'static>(rules: &Arc<InForce<C>>, verb: Verb, many: &[Asked<'_>]) -> Told {
    for (index, asked) in many.iter().enumerate() {
        if let Err(problem) = asked.question(rules) {
            return Answer::Ready(Err(Problem {
                detail: format!("[{index}]: {}", problem.detail),
                ..problem
            }));
        }
    }
    let answers = many.iter().map(|asked| one(rules, verb, asked)).collect();
    Answer::all(answers).map(|answers| {
        let item = |answer: Result<String, Problem>| answer.unwrap_or_else(|problem| problem.body());
        Ok(told::list(answers.into_iter().map(item)))
    })
}

fn one<C: Clock + Send + Sync + 'static>(rules: &Arc<InForce<C>>, verb: Verb, asked: &Asked<'_>) -> Told {
    if verb == Verb::Explain {
        return match asked.with_call(|call| rules.explain(call)) {
            Ok(answer) => answer.map(|explanation| Ok(told::explained(&explanation).end())),
            Err(problem) => Answer::Ready(Err(problem)),
        };
    }
    let question = match asked.question(rules) {
        Ok(question) => question,
        Err(problem) => return Answer::Ready(Err(problem)),
    };
    match verb {
        Verb::Acquire => told_by(rules, question.acquire(), |rules, it| told::acquired(rules, &it)),
        Verb::Peek => told_by(rules, question.peek(), |rules, it| told::decided(rules, &it)),
        Verb::Refund => told_by(rules, question.refund(), |rules, it| told::decided(rules, &it)),
        Verb::Reset => told_by(rules, question.reset(), |rules, it| told::decided(rules, &it)),
        _ => told_by(rules, Question::check(question), |rules, it| told::decided(rules, &it)),
    }
}

/// Written by the rules that have decided, whichever are in force by then.
fn told_by<C: Clock + Send + Sync + 'static, T: 'static>(
    rules: &Arc<InForce<C>>,
    answer: Answer<Result<T, Fault>>,
    write: impl FnOnce(&InForce<C>, T) -> told::Object + Send + 'static,
) -> Told {
    let write = |rules: &InForce<C>, answer: Result<T, Fault>| match answer {
        Ok(answer) => Ok(write(rules, answer).end()),
        Err(fault) => Err(fault.into()),
    };
    match answer {
        Answer::Ready(answer) => Answer::Ready(write(rules, answer)),
        pending => {
            let rules = rules.clone();
            pending.map(move |answer| write(&rules, answer))
        }
    }
}

fn problem_of(problem: &Problem) -> Response<Full<Bytes>> {
    let mut response = response(problem.status, "application/problem+json", problem.body());
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(allow) = problem.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if problem.status == StatusCode::UNAUTHORIZED {
        headers.insert(hyper::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
