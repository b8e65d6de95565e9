//! # `tidegate serve`

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, Args};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::notify::{READY, STOPPING, notify};
use super::{Certificates, Reloader, Server, Settings, Speaks};
use crate::admin;
use crate::config::command::{read, report};
use crate::config::flags::{Flags, Given};
use crate::config::{Address, Auth, Config, Format, Listener, Loaded, Protocol};
use crate::engine::Engine;
use crate::grpc;
use crate::http;
use crate::resp::{Account, Service};
use crate::rules::Compiled;

/// What it is told on the command line or by the environment.
#[derive(Args, Debug)]
pub struct Serve {
    #[command(flatten)]
    flags: Flags,
    /// A socket in the file system where clients of Redis come in, too.
    #[arg(long, value_name = "PATH", env = "TIDEGATE_RESP_SOCKET")]
    resp_socket: Option<PathBuf>,
    /// What clients of Redis have to say to `AUTH`; without it, what the file says.
    #[arg(long, value_name = "PASSWORD", env = "TIDEGATE_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Who they have to say they are.
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_USER",
        default_value = "default",
        requires = "password"
    )]
    user: String,
    /// Threads that answer; 0 for half as many as there are processors.
    #[arg(long, value_name = "N", env = "TIDEGATE_THREADS", default_value_t = 0)]
    threads: usize,
    /// More connections than this are turned away.
    #[arg(long, value_name = "N", env = "TIDEGATE_CONNECTIONS", default_value_t = 10_000)]
    connections: usize,
    /// Seconds after which a client that asks nothing is let go.
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_IDLE", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    idle: u64,
    /// Seconds between being told to end (SIGTERM) and closing the doors. Meanwhile `/readyz` says that it ends, and
    /// all are answered, so that others can be asked instead. A second signal, or SIGINT, ends it at once.
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_NOTICE", default_value_t = 1)]
    notice: u64,
}

/// How often it is looked after.
const EVERY: Duration = Duration::from_millis(500);
/// So long is waited at the end for what is given back to Redis.
const GIVING_BACK: Duration = Duration::from_secs(5);
/// What it does if it is told nothing.
const EXAMPLE: &str = include_str!("../../examples/small.yaml");

impl Serve {
    /// Answers until it is told to end. `matches` are those of the subcommand.
    #[must_use]
    pub fn run(self, matches: &ArgMatches) -> ExitCode {
        if let Some(sentence) = self.no_address() {
            eprintln!("error: {sentence}");
            return ExitCode::from(2);
        }
        let given = self.flags.given(matches);
        let mut loaded = match &self.flags.config {
            Some(path) => read(path, &given),
            None => example(&given),
        };
        let Some(config) = loaded.config.take() else {
            report(&loaded);
            return ExitCode::FAILURE;
        };
        if loaded.faults.iter().next().is_some() {
            loaded.config = Some(config.clone());
            report(&loaded); // warnings
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ran = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(self, config, given)));
        match ran {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tidegate: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

impl Serve {
    /// What is wrong with an address that was given beside the file: a mistake of whoever has started it.
    fn no_address(&self) -> Option<String> {
        let Flags { http, grpc, resp, admin, .. } = &self.flags;
        let given = [("http", http), ("grpc", grpc), ("resp", resp), ("admin", admin)];
        let given = given.into_iter().filter_map(|(name, text)| Some((name, text.as_deref()?)));
        let mut wrong = given.filter(|(_, text)| *text != "off").filter_map(|(name, text)| {
            let advice = Address::parse(text).err()?;
            Some(format!("invalid value '{text}' for '--{name} <ADDRESS>': {advice}"))
        });
        wrong.next()
    }
}

fn example(given: &Given) -> Loaded {
    Config::load_with("the example", EXAMPLE.as_bytes(), Format::Yaml, &|_| None, given)
}

async fn run(serve: Serve, config: Config, given: Given) -> Result<(), Box<dyn Error>> {
    let engine = Arc::new(Engine::of(Compiled::new(config.rules.clone()), &config.store)?);
    let file = serve.flags.config.clone().filter(|path| path.as_os_str() != "-");
    let reloader = file.map(|path| {
        let (listeners, store) = (config.listeners.clone(), config.store.clone());
        Arc::new(Reloader::new(path, given, engine.clone(), listeners, store))
    });
    let server = listening(&serve, &config, &engine, reloader.as_ref()).await?;
    // Before it says that it is ready: from then on it may be told to end, or to read its file again.
    let ends = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let notice = Duration::from_secs(serve.notice);
    let hangup = signal(SignalKind::hangup())?;
    greet(&serve, &config, &server);
    notify(READY);
    let watching = tokio::spawn(watch(engine.clone(), reloader, server.certificates(), hangup));
    server.run(end(ends, &engine, notice)).await?;
    watching.abort();
    // What does not arrive in time ends by its own.
    let _ = tokio::time::timeout(GIVING_BACK, engine.give_back()).await;
    say("tidegate: ended");
    Ok(())
}

/// Waits until it is to end: first nobody new is to come, and a moment later the doors are closed.
async fn end([mut terminate, mut interrupt]: [Signal; 2], engine: &Engine, notice: Duration) {
    let is_urgent = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => true,
    };
    engine.drain();
    notify(STOPPING);
    say("tidegate: told to end; who is there is answered");
    if !is_urgent {
        tokio::select! {
            () = tokio::time::sleep(notice) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Looks after the engine while it is asked: its file, and places whose lease is over.
async fn watch(
    engine: Arc<Engine>,
    reloader: Option<Arc<Reloader>>,
    certificates: Vec<Arc<Certificates>>,
    mut hangup: Signal,
) {
    let mut file = reloader.as_ref().map(|reloader| reloader.watched());
    loop {
        let is_told = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(EVERY) => false,
        };
        engine.free_overdue(); // of places that are counted in Redis, too, for which others ask elsewhere
        crate::metrics::look(&engine);
        certificates.iter().for_each(|certificates| refresh(certificates, is_told));
        match &reloader {
            Some(reloader) if file.as_mut().is_some_and(|file| file.is_due(is_told)) => {
                let reloader = reloader.clone();
                let _ = tokio::task::spawn_blocking(move || reloader.reload_and_say()).await; // it says it itself
            }
            None if is_told && certificates.is_empty() => {
                say("tidegate: there is no file to read again; start with --config FILE")
            }
            _ => {}
        }
    }
}

fn refresh(certificates: &Certificates, is_told: bool) {
    match certificates.refresh(is_told) {
        None => {}
        Some(Ok(())) => {
            say(&format!("tidegate: the certificate {} is in force", certificates.path().display()))
        }
        Some(Err(unusable)) => eprintln!("tidegate: {unusable}; the certificate before it is in force"),
    }
}

async fn listening(
    serve: &Serve,
    config: &Config,
    engine: &Arc<Engine>,
    reloader: Option<&Arc<Reloader>>,
) -> Result<Server, Box<dyn Error>> {
    let mut server = Server::with(settings(serve));
    for listener in &config.listeners {
        let Some(speaks) = speaks(serve, listener, engine, reloader) else { continue };
        let tls =
            listener.tls.as_ref().map(|files| Certificates::read(files, listener.protocol).map(Arc::new));
        server = server.listen_with(speaks, &listener.address, tls.transpose()?).await?;
    }
    if let Some(path) = &serve.resp_socket {
        let speaks = Speaks::Resp(resp(serve, None, engine));
        server = server.listen(speaks, &Address::Unix(path.clone())).await?;
    }
    Ok(server)
}

/// What is spoken at a listener; nothing yet at some.
fn speaks(
    serve: &Serve,
    listener: &Listener,
    engine: &Arc<Engine>,
    reloader: Option<&Arc<Reloader>>,
) -> Option<Speaks> {
    let speaks = match listener.protocol {
        Protocol::Http => {
            let service = http::Service::new(engine.clone());
            Speaks::Http(Arc::new(match &listener.auth {
                Some(Auth::Token(token)) => service.token(token.reveal()),
                _ => service,
            }))
        }
        Protocol::Resp => Speaks::Resp(resp(serve, listener.auth.as_ref(), engine)),
        Protocol::Grpc => {
            let service = grpc::Service::new(engine.clone()).headers(listener.headers);
            Speaks::Grpc(Arc::new(match &listener.auth {
                Some(Auth::Token(token)) => service.token(token.reveal()),
                _ => service,
            }))
        }
        Protocol::Admin => {
            let service = admin::Service::new(engine.clone());
            let service = match reloader {
                Some(reloader) => service.reloader(reloader.clone()),
                None => service,
            };
            Speaks::Admin(Arc::new(match &listener.auth {
                Some(Auth::Token(token)) => service.token(token.reveal()),
                _ => service,
            }))
        }
    };
    Some(speaks)
}

fn resp(serve: &Serve, auth: Option<&Auth>, engine: &Arc<Engine>) -> Arc<Service> {
    let account = match (&serve.password, auth) {
        (Some(password), _) => Some(Account::new(&serve.user, password)),
        (None, Some(Auth::Password { user, password })) => Some(Account::new(user, password.reveal())),
        (None, _) => None,
    };
    Arc::new(Service::new(engine.clone()).accounts(account))
}

fn settings(serve: &Serve) -> Settings {
    Settings {
        threads: serve.threads,
        connections: serve.connections,
        idle: Duration::from_secs(serve.idle),
        ..Settings::default()
    }
}

// === what is said ===

/// Where it listens, what it limits, and three lines to try.
fn greet(serve: &Serve, config: &Config, server: &Server) {
    let names: Vec<_> = config.rules.rules.iter().map(|rule| rule.name.as_str()).collect();
    let file = match &serve.flags.config {
        Some(path) => path.display().to_string(),
        None => "the example, for want of --config FILE".to_owned(),
    };
    let few = names[..names.len().min(20)].join(", ");
    let more = if names.len() > 20 { ", and more" } else { "" };
    say(&format!("tidegate: {} rules of {file}: {few}{more}", names.len()));
    for (protocol, place) in server.places() {
        say(&format!("tidegate: {protocol} on {place}"));
    }
    say("tidegate: try");
    let of = |wanted| server.places().find(|(protocol, _)| *protocol == wanted).map(|(_, place)| place);
    if let Some(place) = of("http").filter(|place| !place.starts_with("unix:")) {
        for verb in ["check", "explain"] {
            say(&format!(
                "  curl -d '{{\"descriptors\": {{\"user\": \"alice\"}}}}' http://{place}/v1/{verb}"
            ));
        }
    }
    if let Some(port) = of("resp").and_then(|place| place.rsplit_once(':').map(|(_, port)| port.to_owned())) {
        let rule = names.iter().find(|name| **name == "user").map_or("RULE KEY", |_| "user alice");
        say(&format!("  redis-cli -p {port} TG.CHECK {rule}"));
    }
}

/// Whoever reads may go away: that is no error.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
