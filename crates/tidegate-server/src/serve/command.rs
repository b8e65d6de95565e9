//! # `tidegate serve`

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tidegate::Quota;
use tokio::signal::unix::{SignalKind, signal};

use super::{Server, Settings};
use crate::engine::{Engine, Rules};
use crate::resp::{Account, Service};

/// What it is told on the command line or by the environment.
#[derive(Debug, Parser)]
pub struct Serve {
    /// Where clients of Redis come in.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6380", env = "TIDEGATE_RESP", value_parser = address)]
    resp: SocketAddr,
    /// A socket in the file system where they come in, too.
    #[arg(long, value_name = "PATH", env = "TIDEGATE_RESP_SOCKET")]
    resp_socket: Option<PathBuf>,
    /// What clients have to say to `AUTH`; without it, nothing.
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
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an address and a port, as in 127.0.0.1:6380 or [::1]:6380".to_owned())
}

impl Serve {
    /// What counts if nothing is said.
    #[must_use]
    pub fn told_nothing() -> Self {
        Serve::parse_from(["tidegate"])
    }

    /// Answers until it is told to end.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ran = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(self)));
        match ran {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tidegate: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

async fn run(serve: Serve) -> Result<(), Box<dyn Error>> {
    let account = serve.password.as_ref().map(|password| Account::new(&serve.user, password));
    let service = Service::new(Engine::new(rules())?).accounts(account);
    let mut server = Server::new(service, settings(&serve)).tcp(serve.resp).await?;
    if let Some(path) = &serve.resp_socket {
        server = server.unix(path).await?;
    }
    // Before it says that it is ready: from then on it may be told to end.
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    for address in server.addresses() {
        println!(
            "tidegate: clients of Redis are answered on {address}; try: redis-cli -p {} TG.CHECK user alice",
            address.port()
        );
    }
    let end = async {
        std::future::poll_fn(|cx| {
            let told = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
            if told { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    };
    server.run(end).await?;
    Ok(())
}

fn settings(serve: &Serve) -> Settings {
    Settings {
        threads: serve.threads,
        connections: serve.connections,
        idle: Duration::from_secs(serve.idle),
        ..Settings::default()
    }
}

/// The rules that are in force. An example, until they are read from a file.
fn rules() -> Rules {
    Rules::new()
        .rate("everybody", Quota::per_second(10_000))
        .rate("user", Quota::per_second(10).burst(20))
        .places("at work", 100, Duration::from_secs(30))
}
