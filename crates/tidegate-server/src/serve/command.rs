//! # `tidegate serve`

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, Args};
use tidegate::clock::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::attend::{Attendant, Files};
use super::files;
use super::notify::{READY, STOPPING, notify};
use super::outage::Outages;
use super::reload::Watching;
use super::{Certificates, Reloader, Server, Settings, Speaks, Unusable};
use crate::admin;
use crate::config::command::{read, told};
use crate::config::flags::{Flags, Given};
use crate::config::process::{LogFormat, Process};
use crate::config::{Address, Auth, Config, Listener, Loaded, Protocol};
use crate::engine::{Engine, InForce};
use crate::grpc;
use crate::http::{self, Guard};
use crate::log::{self, Log, Stream};
use crate::resp::{Account, Service};
use crate::rules::Compiled;

/// What it is told on the command line or by the environment.
#[derive(Args, Debug)]
pub struct Serve {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    process: Process,
}

/// Said when it starts, if it is.
const PUT_TO_THE_TEST: &str =
    "--conformance: clients of the Redis protocol set the time and the rules; this protects nothing";
/// So long is waited at the end for what is given back to Redis.
const GIVING_BACK: Duration = Duration::from_secs(5);
/// And so long for the last lines of the log to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

impl Serve {
    /// Answers until it is told to end. `matches` are those of the subcommand.
    #[must_use]
    pub fn run(self, matches: &ArgMatches) -> ExitCode {
        let ended = self.answer(matches);
        log::flush(LAST_LINES);
        ended
    }

    fn answer(self, matches: &ArgMatches) -> ExitCode {
        if let Some(sentence) = self.no_address() {
            eprintln!("error: {sentence}");
            return ExitCode::from(2);
        }
        let log = Log::from(self.process.log_format);
        let given = Given { has_socket: self.process.resp_socket.is_some(), ..self.flags.given(matches) };
        let watching = self.file().map(Watching::of);
        let mut loaded = match &self.flags.config {
            Some(path) => read(path, &given),
            None => Config::example(&given),
        };
        if loaded.config.is_none() || loaded.faults.iter().next().is_some() {
            complain(&loaded, log); // errors, or warnings
        }
        let Some(config) = loaded.config.take() else { return ExitCode::FAILURE };
        drop(loaded); // the text of the file is not needed while serving
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ran = runtime.map_err(Into::into).and_then(|runtime| {
            let ran = runtime.block_on(run(self, config, given, watching));
            runtime.shutdown_background(); // a file system may hang
            ran
        });
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
    /// The file that can be read again: not what came by the standard input.
    fn file(&self) -> Option<&Path> {
        self.flags.config.as_deref().filter(|path| path.as_os_str() != "-")
    }

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

async fn run(
    serve: Serve,
    mut config: Config,
    given: Given,
    watching: Option<Watching>,
) -> Result<(), Box<dyn Error>> {
    // Moved, not cloned, and what nobody reads any more is freed: with ten thousand rules each is megabytes.
    let rules = Compiled::new(std::mem::take(&mut config.rules));
    config.shown = Vec::new();
    if serve.flags.conformance {
        let engine = Engine::for_testing(rules, &config.store)?;
        Log::from(serve.process.log_format).warn(PUT_TO_THE_TEST).say();
        return run_engine(engine, serve, config, given, watching).await;
    }
    run_engine(Engine::of(rules, &config.store)?, serve, config, given, watching).await
}

async fn run_engine<C: Clock + Clone + Send + Sync + 'static>(
    engine: Engine<C>,
    serve: Serve,
    config: Config,
    given: Given,
    watching: Option<Watching>,
) -> Result<(), Box<dyn Error>> {
    let (engine, log) = (Arc::new(engine), Log::from(serve.process.log_format));
    let bound = |permits: u64| usize::try_from(permits).unwrap_or(usize::MAX);
    engine.bound_permits(bound(serve.process.permits), bound(serve.process.permits_per_rule));
    let certificates = certificates(&config)?;
    let reloader = serve.file().map(|path| {
        let (listeners, store) = (config.listeners.clone(), config.store.clone());
        let reloader = Reloader::new(path.to_owned(), given, engine.clone(), listeners, store);
        Arc::new(reloader.certificates(certificates.iter().flatten().cloned().collect()).log(log))
    });
    // Before the listeners open, so that the first decisions are those of the store.
    let mut outages = Outages::new(log);
    if let Err(trouble) = engine.connect().await {
        outages.begin(&trouble.to_string());
    }
    let server = listening(&serve, &config, &certificates, &engine, reloader.as_ref()).await?;
    // Before it says that it is ready: from then on it may be told to end, or to read its file again.
    let ends = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let notice = Duration::from_secs(serve.process.notice);
    let hangup = signal(SignalKind::hangup())?;
    greet(&serve, &config, &engine.in_force(), &server, log);
    notify(READY, log);
    let certificates = certificates.into_iter().flatten().collect();
    let files = Files { file: watching, reloader, certificates };
    let attendant = Attendant::new(engine.clone(), files, outages, log);
    let attending = tokio::spawn(attendant.attend(hangup));
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
    let mut server = Server::with(fitted(settings(serve), Log::from(serve.process.log_format)));
    for (listener, tls) in config.listeners.iter().zip(certificates) {
        let speaks = speaks(serve, listener, engine, reloader);
        server = server.listen_with(speaks, &listener.address, tls.clone()).await?;
    }
    if let Some(path) = &serve.process.resp_socket {
        // As everybody else who speaks the Redis protocol.
        let auth = config.listeners.iter().filter(|listener| listener.protocol == Protocol::Resp);
        let auth = auth.filter_map(|listener| listener.auth.as_ref()).next();
        let speaks = Speaks::Resp(resp(serve, auth, engine));
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
            let service = http::Service::new(engine.clone()).guard(guard(listener));
            Speaks::Http(Arc::new(match &listener.auth {
                Some(Auth::Token { token, change }) => {
                    let service = service.token(token.reveal());
                    match change {
                        Some(change) => service.change_token(change.reveal()),
                        None => service,
                    }
                }
                _ => service,
            }))
        }
        Protocol::Resp => Speaks::Resp(resp(serve, listener.auth.as_ref(), engine)),
        Protocol::Grpc => {
            let service = grpc::Service::new(engine.clone()).headers(listener.headers);
            Speaks::Grpc(Arc::new(match &listener.auth {
                Some(Auth::Token { token, .. }) => service.token(token.reveal()),
                _ => service,
            }))
        }
        Protocol::Admin => {
            let service = admin::Service::new(engine.clone()).log(Log::from(serve.process.log_format));
            let service = service.guard(guard(listener));
            let service = match reloader {
                Some(reloader) => service.reloader(reloader.clone()),
                None => service,
            };
            Speaks::Admin(Arc::new(match &listener.auth {
                Some(Auth::Token { token, .. }) => service.token(token.reveal()),
                _ => service,
            }))
        }
    }
}

/// Which requests pass at a listener without a token.
fn guard(listener: &Listener) -> Guard {
    let is_loopback = matches!(listener.address, Address::Tcp(_)) && listener.address.is_local();
    Guard::new(&listener.hosts, is_loopback)
}

fn resp<C>(serve: &Serve, auth: Option<&Auth>, engine: &Arc<Engine<C>>) -> Arc<Service<C>> {
    let accounts = match (&serve.process.password, auth) {
        (Some(password), _) => vec![Account::new(&serve.process.user, password)],
        (None, Some(Auth::Password { user, password, change })) => {
            let change = change.as_ref().map(|change| Account::new(user, change.reveal()));
            let checks = Account::new(user, password.reveal()).who_only_checks();
            std::iter::once(checks).chain(change).collect()
        }
        (None, _) => Vec::new(),
    };
    Arc::new(Service::new(engine.clone()).accounts(accounts))
}

fn settings(serve: &Serve) -> Settings {
    Settings {
        threads: serve.process.threads as usize,
        connections: serve.process.connections as usize,
        connections_per_address: serve.process.connections_per_address as usize,
        idle: Duration::from_secs(serve.process.idle),
        ..Settings::default()
    }
}

/// No more connections than there are files for.
fn fitted(settings: Settings, log: Log) -> Settings {
    let Some(files) = files::too_few(&settings) else { return settings };
    let connections = files::room(files, settings.threads());
    let message = format!(
        "at most {connections} connections, because no more than {files} files may be open; raise that by `ulimit -n`, \
         or LimitNOFILE= of systemd"
    );
    log.info(message).with("connections", connections).with("files", files).say();
    Settings { connections, ..settings }
}

// === what is said ===

/// What is wrong with a file, in the lines it is about.
fn complain(loaded: &Loaded, log: Log) {
    if log == Log::Text {
        return log::write(Stream::Error, told(loaded));
    }
    let (name, faults) = (loaded.source.name(), loaded.faults.json(&loaded.source));
    let event = match &loaded.config {
        Some(_) => log.warn(format!("{name} is in force, and there is something to say about it")),
        None => log.error(format!("{name} cannot be used")),
    };
    event.with("file", name).with("faults", faults).say();
}

/// Where it listens, what it limits, and three lines to try.
fn greet<C: Clock + Send + Sync + 'static>(
    serve: &Serve,
    config: &Config,
    rules: &InForce<C>,
    server: &Server<C>,
    log: Log,
) {
    let names: Vec<_> = rules.compiled().rules().map(|rule| rule.name.as_str()).collect();
    let file = match &serve.flags.config {
        Some(path) => path.display().to_string(),
        None => "the example, for want of --config FILE".to_owned(),
    };
    let few = &names[..names.len().min(20)];
    let more = if names.len() > 20 { ", and more" } else { "" };
    let noun = if names.len() == 1 { "rule" } else { "rules" };
    let message = format!("{} {noun} of {file}: {}{more}", names.len(), few.join(", "));
    log.info(message).with("version", env!("CARGO_PKG_VERSION")).with("file", file).with("rules", few).say();
    for (protocol, place) in server.places() {
        log.info(format!("{protocol} on {place}")).with("protocol", protocol).with("address", place).say();
    }
    if log == Log::Text {
        suggest(serve, config, names.contains(&"user"), server);
    }
}

/// For whoever sits before it: what works as it stands, so nothing for doors that ask for a token or are encrypted.
fn suggest<C: Clock + Send + Sync + 'static>(
    serve: &Serve,
    config: &Config,
    has_user: bool,
    server: &Server<C>,
) {
    let doors = config.listeners.iter().zip(server.places());
    let open = doors.filter_map(|(listener, (_, place))| {
        let Address::Tcp(_) = listener.address else { return None };
        let is_open = listener.tls.is_none() && listener.auth.is_none();
        is_open.then_some((listener.protocol, place))
    });
    let open: Vec<_> = open.collect();
    let of = |wanted| open.iter().find(|(protocol, _)| *protocol == wanted).map(|(_, place)| place);
    let mut lines = Vec::new();
    if let Some(place) = of(Protocol::Http) {
        let ask = |verb| {
            format!("  curl --json '{{\"descriptors\": {{\"user\": \"alice\"}}}}' http://{place}/v1/{verb}")
        };
        lines.extend(["check", "explain"].map(ask));
    }
    let port = of(Protocol::Resp).and_then(|place| place.rsplit_once(':'));
    if let Some((_, port)) = port.filter(|_| serve.process.password.is_none()) {
        let rule = if has_user { "user alice" } else { "RULE KEY" };
        lines.push(format!("  redis-cli -p {port} TG.CHECK {rule}"));
    }
    if !lines.is_empty() {
        log::write(Stream::Output, format!("tidegate: try\n{}\n", lines.join("\n")));
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
