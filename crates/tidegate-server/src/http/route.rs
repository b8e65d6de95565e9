//! # From a path to an answer

use std::sync::Arc;

use tidegate::clock::Clock;

use super::Service;
use super::asked::{self, Asked};
use super::guard::Guard;
use super::problem::Problem;
use super::reply::Said;
use super::routes::Route;
use super::session::{self, Answers};
use super::told;
use crate::config::Protocol;
use crate::engine::meter::DoorMeter;
use crate::engine::{Answer, Engine, Fault, InForce, Question};
use crate::metrics;
use crate::resp::Account;

/// What is to be done to what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Check,
    Peek,
    Refund,
    Reset,
    Acquire,
    Renew,
    Release,
    Lease,
    Return,
    Explain,
    Live,
    Ready,
    Metrics,
    OpenApi,
}

/// Every path there is.
const ALL: [Route<Verb>; 14] = [
    Route::post("/v1/check", Verb::Check),
    Route::post("/v1/peek", Verb::Peek),
    Route::post("/v1/refund", Verb::Refund),
    Route::post_change("/v1/reset", Verb::Reset),
    Route::post("/v1/acquire", Verb::Acquire),
    Route::post("/v1/renew", Verb::Renew),
    Route::post("/v1/release", Verb::Release),
    Route::post("/v1/lease", Verb::Lease),
    Route::post("/v1/return", Verb::Return),
    Route::post("/v1/explain", Verb::Explain),
    Route::get("/metrics", Verb::Metrics),
    Route::get_by_all("/livez", Verb::Live),
    Route::get_by_all("/readyz", Verb::Ready),
    Route::get_by_all("/openapi.json", Verb::OpenApi),
];

/// What can be asked and what is told, for programs that write clients.
pub const OPENAPI: &str = include_str!("../../openapi.json");

/// Every method and path there is.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.iter().map(|route| (route.method, route.path))
}

type Told = Answer<Result<String, Problem>>;

impl<C: Clock + Send + Sync + 'static> Answers for Service<C> {
    type Verb = Verb;
    const ROUTES: &'static [Route<Verb>] = &ALL;

    fn token(&self) -> Option<&Account> {
        self.token.as_ref()
    }

    fn change_token(&self) -> Option<&Account> {
        self.change.as_ref()
    }

    fn guard(&self) -> &Guard {
        &self.guard
    }

    fn answer(self: &Arc<Self>, verb: Verb, body: &[u8]) -> session::Told {
        Answer::Ready(Ok(match verb {
            Verb::Live => Said::json("{\"status\":\"ok\"}"),
            Verb::Ready => metrics::readiness(&self.engine),
            Verb::Metrics => Said::metrics(metrics::Text::new(&self.engine)),
            Verb::OpenApi => Said::json(OPENAPI),
            verb => return put(&self.engine, verb, body).map(|told| told.map(Said::json)),
        }))
    }

    fn door(&self) -> &DoorMeter {
        self.engine.meter().door(Protocol::Http)
    }
}

fn put<C: Clock + Send + Sync + 'static>(engine: &Engine<C>, verb: Verb, body: &[u8]) -> Told {
    match verb {
        Verb::Renew | Verb::Release => match asked::place(body) {
            Ok(id) if verb == Verb::Renew => engine.renew(id).map(|lease| Ok(renewed(lease))),
            Ok(id) => engine.release(id).map(|held| Ok(format!("{{\"released\":{held}}}"))),
            Err(problem) => Answer::Ready(Err(problem)),
        },
        Verb::Lease => lend(&engine.in_force(), body),
        Verb::Return => take_back(&engine.in_force(), body),
        verb if asked::is_batch(body) => match asked::many(body) {
            Ok(many) => batch(&engine.in_force(), verb, &many),
            Err(problem) => Answer::Ready(Err(problem)),
        },
        verb => match asked::one(body) {
            Ok(asked) => one(&engine.in_force(), verb, &asked),
            Err(problem) => Answer::Ready(Err(problem)),
        },
    }
}

fn lend<C: Clock + Send + Sync + 'static>(rules: &Arc<InForce<C>>, body: &[u8]) -> Told {
    let asked = asked::lease(body).and_then(|asked| Ok((asked.number(rules)?, asked.ttl()?, asked)));
    let (rule, ttl, asked) = match asked {
        Ok(asked) => asked,
        Err(problem) => return Answer::Ready(Err(problem)),
    };
    let question = rules.ask().rule(rule, asked.parts(), Some(asked.amount()));
    told_by(rules, question.lend(asked.amount(), ttl), |rules, lent| told::lent(rules, &lent))
}

fn take_back<C: Clock + Send + Sync + 'static>(rules: &Arc<InForce<C>>, body: &[u8]) -> Told {
    let asked = asked::returned(body).and_then(|asked| Ok((asked.number(rules)?, asked.id()?, asked)));
    let (rule, id, asked) = match asked {
        Ok(asked) => asked,
        Err(problem) => return Answer::Ready(Err(problem)),
    };
    let question = rules.ask().rule(rule, asked.parts(), Some(asked.unspent()));
    told_by(rules, question.take_back(id, asked.unspent()), |rules, it| told::decided(rules, &it))
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
    let window = match verb {
        Verb::Refund => rules.window(2 * many.len()).of_two_commands_each(),
        _ => rules.window(many.len()),
    };
    let answers = many.iter().map(|asked| one(rules, verb, asked)).collect();
    Answer::all(answers, window).map(|answers| {
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
