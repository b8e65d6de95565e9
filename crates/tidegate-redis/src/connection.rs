//! # Reconnecting connections
//!
//! A connection is established, or it reports an error immediately: no request waits for a connection. A background
//! task connects, loads the scripts, inspects the server, and sleeps until the connection is lost.
//!
//! ```text
//!   connect ──► load the scripts, inspect the server ─► serve … lost ─┐
//!      ▲  └── failed: wait, longer each time                          │
//!      └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! Many requests share a connection: requests that arrive while others are in flight are sent together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::{AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, RedisError, ServerErrorKind, Value};
use tidegate::SteadyClock;
use tidegate::clock::Clock;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use crate::adhoc::ADHOC_SCRIPT;
use crate::error::{Error, breaks_connection};
use crate::pipeline::Pipeline;
use crate::server::{self, Findings};
use crate::wire::{Call, SCRIPT};

/// The server or cluster to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Single(Box<redis::Client>),
    Cluster(Box<redis::cluster::ClusterClient>),
}

/// An established connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Transport {
    Plain(Pipeline),
    Encrypted(MultiplexedConnection),
    Cluster(ClusterConnection),
}

#[derive(Debug)]
pub(crate) struct Connection {
    target: Target,
    state: RwLock<ConnectionState>,
    /// The first timeout since the last reply, in microseconds of the clock; 0 if there was none.
    silent_since: AtomicU64,
    clock: SteadyClock,
    lost: Notify,
    /// How many times the scripts were loaded. The mutex below is locked while a task loads them.
    loads: AtomicU64,
    loading: Mutex<()>,
}

#[derive(Debug)]
enum ConnectionState {
    Connected { transport: Transport, number: u64, findings: Findings },
    Disconnected { error: Error, last_number: u64 },
}

const NOT_ATTEMPTED: &str = "not attempted yet";
/// How many microseconds without a reply make the connection count as lost.
///
/// A peer that vanishes sends no notice.
const MAX_SILENCE_MICROS: u64 = 300_000;
/// The timeouts for connecting to a server, to each node of a cluster, and to a whole cluster.
///
/// The timeout per node is shorter because some nodes may be dead.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(300);
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_BACKOFF: Duration = Duration::from_millis(20);
/// The longest wait between two attempts to connect.
///
/// Short, because during the wait this node adds its local share to what the other nodes get from Redis.
const MAX_BACKOFF: Duration = Duration::from_millis(100);
/// How often an established connection checks whether its gate still exists.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl Connection {
    pub(crate) fn new(target: Target) -> Self {
        let error = Error::not_connected(NOT_ATTEMPTED);
        let state = RwLock::new(ConnectionState::Disconnected { error, last_number: 0 });
        Connection {
            target,
            state,
            silent_since: AtomicU64::new(0),
            clock: SteadyClock::new(),
            lost: Notify::new(),
            loads: AtomicU64::new(0),
            loading: Mutex::new(()),
        }
    }

    /// Whether a first attempt to connect has finished.
    pub(crate) fn was_tried(&self) -> bool {
        self.transport().err() != Some(Error::not_connected(NOT_ATTEMPTED))
    }

    /// Returns the transport and its number, or why there is none.
    pub(crate) fn transport(&self) -> Result<(Transport, u64), Error> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            ConnectionState::Connected { transport, number, .. } => Ok((transport.clone(), *number)),
            ConnectionState::Disconnected { error, .. } => Err(error.clone()),
        }
    }

    pub(crate) fn findings(&self) -> Result<Findings, Error> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            ConnectionState::Connected { findings, .. } => Ok(findings.clone()),
            ConnectionState::Disconnected { error, .. } => Err(error.clone()),
        }
    }

    /// Handles an error on the connection with this number; drops the connection if necessary.
    pub(crate) fn failed(&self, number: u64, error: &RedisError) {
        // A cluster connection repairs the connection to each node by itself.
        if breaks_connection(error) && !self.target.is_cluster() {
            self.disconnect(number, Error::from_redis(error));
        } else {
            self.received_reply();
        }
    }

    #[inline]
    pub(crate) fn received_reply(&self) {
        if self.silent_since.load(Ordering::Relaxed) != 0 {
            self.silent_since.store(0, Ordering::Relaxed);
        }
    }

    /// Records that a reply on the connection with this number timed out.
    pub(crate) fn timed_out(&self, number: u64) {
        let now = self.clock.now().get().max(1);
        let since = match self.silent_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(since) => since,
        };
        if now.saturating_sub(since) >= MAX_SILENCE_MICROS {
            self.disconnect(number, Error::timeout());
        }
    }

    fn disconnect(&self, number: u64, error: Error) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*state, ConnectionState::Connected { number: current, .. } if *current == number) {
            *state = ConnectionState::Disconnected { error, last_number: number };
            self.received_reply();
            self.lost.notify_one();
        }
    }

    fn connected(&self, transport: Transport, findings: Findings) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let number = match &*state {
            ConnectionState::Connected { number, .. } => *number,
            ConnectionState::Disconnected { last_number, .. } => *last_number,
        };
        *state = ConnectionState::Connected { transport, number: number + 1, findings };
    }

    /// Inspects the server again: settings and roles change during the life of a connection.
    pub(crate) async fn inspect_again(&self) {
        let Ok((mut transport, inspected)) = self.transport() else { return };
        let Ok(Ok(found)) = tokio::time::timeout(SERVER_TIMEOUT, server::inspect(&mut transport)).await
        else {
            return;
        };
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let ConnectionState::Connected { number, findings, .. } = &mut *state
            && *number == inspected
        {
            *findings = found;
        }
    }

    fn attempt_failed(&self, why: Error) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let ConnectionState::Disconnected { error, .. } = &mut *state {
            *error = why;
        }
    }

    /// Returns how many times the scripts were loaded so far.
    pub(crate) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Acquire)
    }

    /// Loads the scripts, unless another task has loaded them since the count was `loads`.
    pub(crate) async fn load(&self, transport: &mut Transport, loads: u64) -> Result<(), RedisError> {
        let _loading = self.loading.lock().await;
        if self.loads() == loads {
            transport.load().await?;
            self.loads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Reconnects whenever there is no connection, until the owner drops it.
    pub(crate) async fn keep_connected(connection: Weak<Connection>) {
        let mut backoff = MIN_BACKOFF;
        while let Some(this) = connection.upgrade() {
            let started = Instant::now();
            match this.connect().await {
                Ok((transport, findings)) => {
                    this.connected(transport, findings);
                    this.until_lost(connection.clone()).await;
                }
                Err(error) => {
                    this.attempt_failed(error);
                    drop(this);
                }
            }
            // A connection that is lost immediately, such as one to a read-only replica, is as bad as none.
            backoff = if started.elapsed() > MAX_BACKOFF * 2 {
                MIN_BACKOFF
            } else {
                (backoff * 2).min(MAX_BACKOFF)
            };
            tokio::time::sleep(backoff).await;
        }
    }

    /// Returns when the connection is lost, or is not used any more.
    async fn until_lost(self: Arc<Self>, connection: Weak<Connection>) {
        let lost = self.lost.notified();
        tokio::pin!(lost);
        loop {
            if tokio::time::timeout(OWNER_CHECK_INTERVAL, &mut lost).await.is_ok() {
                return;
            }
            if connection.strong_count() <= 1 {
                return;
            }
        }
    }

    async fn connect(&self) -> Result<(Transport, Findings), Error> {
        let attempt = async {
            let mut transport = self.target.connect().await?;
            transport.load().await?;
            let findings = server::inspect(&mut transport).await?;
            Ok::<_, RedisError>((transport, findings))
        };
        let timeout = if self.target.is_cluster() { CLUSTER_TIMEOUT } else { SERVER_TIMEOUT };
        match tokio::time::timeout(timeout, attempt).await {
            Ok(done) => done.map_err(|error| Error::from_redis(&error)),
            Err(_) => Err(Error::timeout()),
        }
    }
}

impl Target {
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self, Target::Cluster(_))
    }

    async fn connect(&self) -> Result<Transport, RedisError> {
        match self {
            Target::Single(client) if !is_encrypted(client) => {
                Pipeline::connect(client.get_connection_info()).await.map(Transport::Plain)
            }
            Target::Single(client) => {
                // The gate enforces deadlines. Nothing may queue up here: the gate bounds the requests in flight.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(SERVER_TIMEOUT))
                    .set_response_timeout(None)
                    .set_pipeline_buffer_size(1_024);
                client.get_multiplexed_async_connection_with_config(&config).await.map(Transport::Encrypted)
            }
            Target::Cluster(client) => client.get_async_connection().await.map(Transport::Cluster),
        }
    }
}

impl Transport {
    /// Loads both scripts: where one is missing, so is the other.
    async fn load(&mut self) -> Result<(), RedisError> {
        for script in [SCRIPT, ADHOC_SCRIPT] {
            self.command(redis::cmd("SCRIPT").arg("LOAD").arg(script)).await?;
        }
        Ok(())
    }

    /// Sends a call to the node that a redirection names.
    ///
    /// After a permanent redirection the connection already knows the new node. While a slot is being migrated, only
    /// this call goes to the new node, preceded by `ASKING`; other keys of the slot are still on the old node.
    pub(crate) async fn follow_redirection(
        &mut self,
        call: &Call<'_>,
        redirection: &RedisError,
    ) -> Result<Value, RedisError> {
        let Transport::Cluster(transport) = self else { return Err(redirection.clone()) };
        let Some(route) = migration_target(redirection) else { return self.call(call).await };
        let mut commands = redis::pipe();
        commands.cmd("ASKING").add_command(call.cmd());
        let mut replies = transport.route_pipeline(commands, 1, 1, route).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Calls a script.
    pub(crate) async fn call(&mut self, call: &Call<'_>) -> Result<Value, RedisError> {
        match self {
            Transport::Plain(pipeline) => pipeline.request(|unsent| call.write(unsent)).await,
            _ => self.command(&call.cmd()).await,
        }
    }

    /// Sends any command.
    pub(crate) async fn command(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        match self {
            Transport::Plain(pipeline) => pipeline.request(|unsent| cmd.write_packed_command(unsent)).await,
            Transport::Encrypted(transport) => transport.req_packed_command(cmd).await,
            Transport::Cluster(transport) => transport.req_packed_command(cmd).await,
        }
        .and_then(Value::extract_error)
    }
}

fn is_encrypted(client: &redis::Client) -> bool {
    matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
}

/// Returns the target node of a slot that is being migrated, if that is what the error says.
fn migration_target(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
        return None;
    }
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Plain(_) => "Plain",
            Transport::Encrypted(_) => "Encrypted",
            Transport::Cluster(_) => "Cluster",
        })
    }
}
