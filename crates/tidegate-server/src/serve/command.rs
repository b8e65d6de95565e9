//! # `tidegate serve`

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, Args, ValueEnum};
use tidegate::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::attend::Attendant;
use super::notify::{READY, STOPPING, notify};
use super::{Certificates, Reloader, Server, Settings, Speaks, Unusable};
use crate::admin;
use crate::config::command::{read, report, say};
use crate::config::flags::{Flags, Given};
use crate::config::{Address, Auth, Config, Format, Listener, Loaded, Protocol};
use crate::engine::Engine;
use crate::grpc;
use crate::http;
use crate::log::Log;
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
    /// How it says what happens to it: in lines for people, or in lines for programs, each of them an object.
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// How it says what happens to it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Said when it starts, if it is.
const PUT_TO_THE_TEST: &str =
    "--conformance: clients of the Redis protocol set the time and the rules; this protects nothing";
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
        let (given, log) = (self.flags.given(matches), Log::from(self.log_format));
        let mut loaded = match &self.flags.config {
            Some(path) => read(path, &given),
            None => example(&given),
        };
        let Some(config) = loaded.config.take() else {
            complain(&loaded, log);
            return ExitCode::FAILURE;
        };
        if loaded.faults.iter().next().is_some() {
            loaded.config = Some(config.clone());
            complain(&loaded, log); // warnings
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ran = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(self, config, given)));
        match ran {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                log.error(error.to_string()).say();
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
    let rules = Compiled::new(config.rules.clone());
    if serve.flags.conformance {
        let engine = Engine::for_testing(rules, &config.store)?;
        Log::from(serve.log_format).warn(PUT_TO_THE_TEST).say();
        return run_engine(engine, serve, config, given).await;
    }
    run_engine(Engine::of(rules, &config.store)?, serve, config, given).await
}

async fn run_engine<C: Clock + Clone + Send + Sync + 'static>(
    engine: Engine<C>,
    serve: Serve,
    config: Config,
    given: Given,
) -> Result<(), Box<dyn Error>> {
    let (engine, log) = (Arc::new(engine), Log::from(serve.log_format));
    let certificates = certificates(&config)?;
    let file = serve.flags.config.clone().filter(|path| path.as_os_str() != "-");
    let reloader = file.map(|path| {
        let (listeners, store) = (config.listeners.clone(), config.store.clone());
        let reloader = Reloader::new(path, given, engine.clone(), listeners, store);
        Arc::new(reloader.certificates(certificates.iter().flatten().cloned().collect()).log(log))
    });
    let server = listening(&serve, &config, &certificates, &engine, reloader.as_ref()).await?;
    // Before it says that it is ready: from then on it may be told to end, or to read its file again.
    let ends = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let notice = Duration::from_secs(serve.notice);
    let hangup = signal(SignalKind::hangup())?;
    greet(&serve, &config, &server, log);
    notify(READY, log);
    let certificates = certificates.into_iter().flatten().collect();
    let attending = tokio::spawn(Attendant::new(engine.clone(), reloader, certificates, log).attend(hangup));
    server.run(end(ends, &engine, notice, log)).await?;
    attending.abort();
    // What does not arrive in time ends by its own.
    let _ = tokio::time::timeout(GIVING_BACK, engine.give_back()).await;
    log.info("ended").say();
    Ok(())
}

/// Waits until it is to end: first nobody new is to come, and a moment later the doors are closed.
async fn end<C: Clock>(
    [mut terminate, mut interrupt]: [Signal; 2],
    engine: &Engine<C>,
    notice: Duration,
    log: Log,
) {
    let is_urgent = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => true,
    };
    engine.drain();
    notify(STOPPING, log);
    log.info("told to end; who is there is answered").say();
    if !is_urgent {
        tokio::select! {
            () = tokio::time::sleep(notice) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Those of each listener, if it has any, in their order.
fn certificates(config: &Config) -> Result<Vec<Option<Arc<Certificates>>>, Unusable> {
    let of = |listener: &Listener| {
        let files = listener.tls.as_ref();
        files.map(|files| Certificates::read(files, listener.protocol).map(Arc::new)).transpose()
    };
    config.listeners.iter().map(of).collect()
}

async fn listening<C: Clock + Clone + Send + Sync + 'static>(
    serve: &Serve,
    config: &Config,
    certificates: &[Option<Arc<Certificates>>],
    engine: &Arc<Engine<C>>,
    reloader: Option<&Arc<Reloader<C>>>,
) -> Result<Server<C>, Box<dyn Error>> {
    let mut server = Server::with(settings(serve));
    for (listener, tls) in config.listeners.iter().zip(certificates) {
        let speaks = speaks(serve, listener, engine, reloader);
        server = server.listen_with(speaks, &listener.address, tls.clone()).await?;
    }
    if let Some(path) = &serve.resp_socket {
        let speaks = Speaks::Resp(resp(serve, None, engine));
        server = server.listen(speaks, &Address::Unix(path.clone())).await?;
    }
    Ok(server)
}

/// What is spoken at a listener.
fn speaks<C: Clock + Clone + Send + Sync + 'static>(
    serve: &Serve,
    listener: &Listener,
    engine: &Arc<Engine<C>>,
    reloader: Option<&Arc<Reloader<C>>>,
) -> Speaks<C> {
    match listener.protocol {
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
            let service = admin::Service::new(engine.clone()).log(Log::from(serve.log_format));
            let service = match reloader {
                Some(reloader) => service.reloader(reloader.clone()),
                None => service,
            };
            Speaks::Admin(Arc::new(match &listener.auth {
                Some(Auth::Token(token)) => service.token(token.reveal()),
                _ => service,
            }))
        }
    }
}

fn resp<C>(serve: &Serve, auth: Option<&Auth>, engine: &Arc<Engine<C>>) -> Arc<Service<C>> {
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

/// What is wrong with a file, in the lines it is about.
fn complain(loaded: &Loaded, log: Log) {
    if log == Log::Text {
        return report(loaded);
    }
    let (name, faults) = (loaded.source.name(), loaded.faults.json(&loaded.source));
    let event = match &loaded.config {
        Some(_) => log.warn(format!("{name} is in force, and there is something to say about it")),
        None => log.error(format!("{name} cannot be used")),
    };
    event.with("file", name).with("faults", faults).say();
}

/// Where it listens, what it limits, and three lines to try.
fn greet<C: Clock + Send + Sync + 'static>(serve: &Serve, config: &Config, server: &Server<C>, log: Log) {
    let names: Vec<_> = config.rules.rules.iter().map(|rule| rule.name.as_str()).collect();
    let file = match &serve.flags.config {
        Some(path) => path.display().to_string(),
        None => "the example, for want of --config FILE".to_owned(),
    };
    let few = &names[..names.len().min(20)];
    let more = if names.len() > 20 { ", and more" } else { "" };
    let message = format!("{} rules of {file}: {}{more}", names.len(), few.join(", "));
    log.info(message).with("version", env!("CARGO_PKG_VERSION")).with("file", file).with("rules", few).say();
    for (protocol, place) in server.places() {
        log.info(format!("{protocol} on {place}")).with("protocol", protocol).with("address", place).say();
    }
    if log == Log::Text {
        suggest(&names, server);
    }
}

/// For whoever sits before it.
fn suggest<C: Clock + Send + Sync + 'static>(names: &[&str], server: &Server<C>) {
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

impl From<LogFormat> for Log {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Log::Text,
            LogFormat::Json => Log::Json,
        }
    }
}
