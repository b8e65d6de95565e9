//! # From a path to what an administrator wants

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tidegate::clock::Clock;

use super::{Service, told};
use crate::config::Protocol;
use crate::engine::meter::DoorMeter;
use crate::engine::{Answer, InForce};
use crate::http::asked::{self, Named};
use crate::http::problem::Problem;
use crate::http::reply::Said;
use crate::http::routes::Route;
use crate::http::{Answers, Guard, Told};
use crate::metrics;
use crate::resp::Account;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Rules,
    Inspect,
    Reset,
    Block,
    Unblock,
    Blocks,
    Refused,
    Reload,
    Metrics,
}

/// Every path there is. All of them ask for the token, if there is one.
const ALL: [Route<Verb>; 9] = [
    Route::get("/admin/rules", Verb::Rules),
    Route::post("/admin/inspect", Verb::Inspect),
    Route::post("/admin/reset", Verb::Reset),
    Route::post("/admin/block", Verb::Block),
    Route::post("/admin/unblock", Verb::Unblock),
    Route::get("/admin/blocks", Verb::Blocks),
    Route::get("/admin/refused", Verb::Refused),
    Route::post("/admin/reload", Verb::Reload),
    Route::get("/metrics", Verb::Metrics),
];

/// Nobody is blocked for longer than a year: who is, is better denied in the file.
const LONGEST: u64 = 366 * 24 * 60 * 60;
/// So many of the most refused keys are told.
const MOST_REFUSED: usize = 50;

/// Every method and path there is.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.iter().map(|route| (route.method, route.path))
}

impl<C: Clock + Send + Sync + 'static> Answers for Service<C> {
    type Verb = Verb;
    const ROUTES: &'static [Route<Verb>] = &ALL;

    fn token(&self) -> Option<&Account> {
        self.token.as_ref()
    }

    fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Later: some of it takes its time, and nobody is in a hurry.
    fn answer(self: &Arc<Self>, verb: Verb, body: &[u8]) -> Told {
        if verb == Verb::Metrics {
            return Answer::Ready(Ok(Said::metrics(metrics::Text::new(&self.engine))));
        }
        let (service, body) = (self.clone(), body.to_vec());
        Answer::Pending(Box::pin(async move { service.said(verb, &body).await }))
    }

    fn door(&self) -> &DoorMeter {
        self.engine.meter().door(Protocol::Admin)
    }
}

impl<C: Clock + Send + Sync + 'static> Service<C> {
    async fn said(&self, verb: Verb, body: &[u8]) -> Result<Said, Problem> {
        match verb {
            Verb::Rules => Ok(Said::json(told::rules(&self.engine.in_force()))),
            Verb::Blocks => Ok(Said::json(told::blocks(&self.engine.in_force(), &self.engine.blocks()))),
            Verb::Refused => {
                let most = self.engine.most_refused(MOST_REFUSED);
                Ok(Said::json(told::refused(&self.engine.in_force(), &most)))
            }
            Verb::Metrics => Ok(Said::metrics(metrics::Text::new(&self.engine))),
            Verb::Reload => self.reload().await,
            verb => {
                let named = asked::named(body)?;
                let rules = self.engine.in_force();
                let number = named.number(&rules)?;
                if named.lasting().is_some() && verb != Verb::Block {
                    return Err(Problem::bad("`for` is how long a key is blocked; leave it out"));
                }
                let rules = Arc::clone(&rules);
                self.of_key(verb, &named, number, &rules).await
            }
        }
    }

    async fn of_key(
        &self,
        verb: Verb,
        named: &Named<'_>,
        number: u32,
        rules: &Arc<InForce<C>>,
    ) -> Result<Said, Problem> {
        let key = rules.key(number, named.parts());
        match verb {
            Verb::Reset => {
                let asked = rules.ask().rule(number, named.parts(), None).reset();
                let decided = asked.wait().await?;
                self.note("reset", named, &key, rules);
                Ok(Said::json(crate::http::told::decided(rules, &decided).end()))
            }
            Verb::Block => self.block(named, number, &key, rules),
            Verb::Unblock => {
                let was = self.engine.unblock(named.rule(), &key);
                self.note("unblocked", named, &key, rules);
                Ok(Said::json(format!("{{\"unblocked\":{was}}}")))
            }
            _ => {
                let left = rules.inspect(number, named.parts()).wait().await;
                let blocked = self.engine.blocked(named.rule(), &key);
                Ok(Said::json(told::inspected(rules, number, &key, &left, blocked)))
            }
        }
    }

    fn block(&self, named: &Named<'_>, number: u32, key: &[u8], rules: &InForce<C>) -> Result<Said, Problem> {
        let conflict = |detail: String| Problem::new(StatusCode::CONFLICT, detail);
        let (name, seconds) = (named.rule(), named.lasting().unwrap_or_default());
        if seconds == 0 || seconds > LONGEST {
            return Err(Problem::bad(format!(
                "`for` is {}; say for how many seconds the key is blocked, from 1 to {LONGEST}",
                named.lasting().map_or("missing".to_owned(), |seconds| seconds.to_string())
            )));
        }
        if rules.compiled().rule(number as usize).is_some_and(|rule| rule.shadow) {
            return Err(conflict(format!(
                "rule {name:?} only watches, so it refuses nobody; name one without `shadow`"
            )));
        }
        let blocked = self.engine.block(name, key, Duration::from_secs(seconds));
        blocked.map_err(|too_many| conflict(too_many.to_string()))?;
        self.note(&format!("blocked for {seconds} s"), named, key, rules);
        Ok(Said::json(format!("{{\"blocked\":{seconds}}}")))
    }

    /// What was done to a key, for whoever wonders later.
    fn note(&self, done: &str, named: &Named<'_>, key: &[u8], rules: &InForce<C>) {
        let (rule, key) = (named.rule(), told::parts(rules, named.rule(), key));
        let message = format!("key {key} of rule {rule:?} {done} by an administrator");
        self.log.info(message).with("rule", rule).with("key", key).with("done", done).say();
    }

    async fn reload(&self) -> Result<Said, Problem> {
        let Some(reload) = self.reload.clone() else {
            let detail = "there is no file to read again; start with --config FILE";
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        };
        let reloaded = tokio::task::spawn_blocking(move || reload()).await;
        match reloaded {
            Ok(Ok((diff, waiting))) => Ok(Said::json(told::reloaded(&diff, &waiting))),
            Ok(Err(unread)) => {
                let detail = format!("the file is not in force, the rules before it are: {unread}");
                Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail))
            }
            Err(_) => Err(Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the file could not be read again; the rules before it are in force, and the log says why",
            )),
        }
    }
}
