//! # Asking a service that runs, from a shell
//!
//! ```text
//!   tidegate check user alice && echo "may pass"        0: allowed, 3: refused
//!   tidegate health                                      0: ok, 3: it should not be asked
//! ```
//!
//! By HTTP, as everybody else. 1 is for what could not be asked, 2 for what was not understood.

mod client;
mod encrypted;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use client::{Client, NoAnswer};

/// Where the service is.
#[derive(Args, Clone, Debug)]
struct Where {
    /// Where its HTTP is: an address, `http://…`, `https://…`, or `unix:PATH`.
    #[arg(long, value_name = "URL", env = "TIDEGATE_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The token, if it asks for one.
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The root that signs its certificate, in PEM; for `https://…`.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    ca: Option<PathBuf>,
}

/// `tidegate check`
#[derive(Args, Clone, Debug)]
pub struct Check {
    /// The name of the rule.
    rule: String,
    /// Its key: one word for each part of it. None, if the rule has one count for all.
    key: Vec<String>,
    /// What the request takes, where the rule lets the caller say so.
    #[arg(long, value_name = "N")]
    cost: Option<u32>,
    /// Print the whole answer, as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Where,
}

/// `tidegate health`
#[derive(Args, Clone, Debug)]
pub struct Health {
    #[command(flatten)]
    service: Where,
}

/// The exit codes of what failed, of what makes no sense on a command line, and of what was refused.
const FAILED: u8 = 1;
const MISUNDERSTOOD: u8 = 2;
const REFUSED: u8 = 3;

impl Check {
    /// Asks, and tells.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        self.service.told(self.ask())
    }

    fn ask(&self) -> Result<(String, bool), NoAnswer> {
        let mut asked = json!({"rule": self.rule, "key": self.key});
        if let Some(cost) = self.cost {
            asked["cost"] = json!(cost);
        }
        let (status, body) = self.service.client()?.request("POST", "/v1/check", &asked.to_string())?;
        let told: Value = serde_json::from_str(&body).map_err(|_| NoAnswer::not_ours(status))?;
        match told["allowed"].as_bool() {
            Some(allowed) if self.json => Ok((body, allowed)),
            Some(allowed) => Ok((sentence(&told), allowed)),
            None => Err(NoAnswer::problem(status, &told)),
        }
    }
}

impl Health {
    /// Asks, and tells.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        self.service.told(self.ask())
    }

    fn ask(&self) -> Result<(String, bool), NoAnswer> {
        let (status, body) = self.service.client()?.request("GET", "/readyz", "")?;
        let told: Value = serde_json::from_str(&body).map_err(|_| NoAnswer::not_ours(status))?;
        match told["status"].as_str() {
            Some(word) => Ok((word.to_owned(), status == 200)),
            None => Err(NoAnswer::problem(status, &told)),
        }
    }
}

impl Where {
    fn client(&self) -> Result<Client, NoAnswer> {
        Client::connect(&self.url, self.token.as_deref(), self.ca.as_deref())
    }

    fn told(&self, answer: Result<(String, bool), NoAnswer>) -> ExitCode {
        match answer {
            Ok((sentence, passes)) => {
                crate::config::command::say(&sentence);
                ExitCode::from(if passes { 0 } else { REFUSED })
            }
            Err(why) => {
                eprintln!("tidegate: {}: {why}", self.url);
                ExitCode::from(if matches!(why, NoAnswer::Address(_)) { MISUNDERSTOOD } else { FAILED })
            }
        }
    }
}

/// The outcome first, for whoever reads no further.
fn sentence(told: &Value) -> String {
    let mut sentence = told["outcome"].as_str().unwrap_or_default().to_owned();
    if let Some(wait) = told["wait"].as_f64() {
        sentence += &format!(", wait {wait} s");
    }
    if let (Some(remaining), Some(limit)) = (told["remaining"].as_u64(), told["limit"].as_u64()) {
        sentence += &format!(", {remaining} of {limit} left");
    }
    if let Some(reason) = told["reason"].as_str() {
        sentence += &format!(": {reason}");
    }
    if let Some(source) = told["source"].as_str().filter(|source| *source != "strict") {
        sentence += &format!(" ({source})");
    }
    sentence
}
