//! # A connection that heals
//!
//! A link is connected, or it is not and says so at once: nobody waits for a connection while a request does. A task of its own
//! connects, looks at what it has connected to, loads the scripts, and sleeps until the connection is lost.
//!
//! ```text
//!   connect ──► look at it, load the scripts ─► serve … lost ─┐
//!      ▲  └── failed: wait, longer each time                  │
//!      └──────────────────────────────────────────────────────┘
//! ```
//!
//! Many requests share a connection: those that come while others are under way are sent together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::{AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, RedisError, ServerErrorKind, Value};
use tidegate::{Clock, SteadyClock};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use crate::brought::SCRIPT_OF_BROUGHT;
use crate::pipe::Pipe;
use crate::server::{self, Findings};
use crate::trouble::{Trouble, breaks_the_connection};
use crate::wire::{Call, SCRIPT};

/// Where to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Single(Box<redis::Client>),
    Cluster(Box<redis::cluster::ClusterClient>),
}

/// A connection, of which clones are the same one.
#[derive(Clone)]
pub(crate) enum Connection {
    Plain(Pipe),
    Encrypted(MultiplexedConnection),
    Cluster(ClusterConnection),
}

#[derive(Debug)]
pub(crate) struct Link {
    target: Target,
    standing: RwLock<Standing>,
    /// Since when nobody was answered who should have been, in microseconds; 0 if all is well.
    silent_since: AtomicU64,
    clock: SteadyClock,
    lost: Notify,
    /// How often the scripts were loaded, and held by who loads them.
    loads: AtomicU64,
    loading: Mutex<()>,
}

#[derive(Debug)]
enum Standing {
    Connected { connection: Connection, number: u64, findings: Findings },
    Not { trouble: Trouble, connected: u64 },
}

const NOT_YET: &str = "none was made yet";
/// If nobody is answered for so long, the connection is given up: a peer that has vanished sends no word of it.
const SILENCE: u64 = 300_000;
/// How long a connection may take to be made; to each node of a cluster, of which some may be dead; and to the whole of it.
pub(crate) const CONNECT: Duration = Duration::from_secs(1);
pub(crate) const CONNECT_NODE: Duration = Duration::from_millis(300);
const CONNECT_CLUSTER: Duration = Duration::from_secs(5);
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Short, because until it is connected again a node adds its local share to what the other nodes get from Redis.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// How often a connected link checks whether its gate is still there.
const IN_USE: Duration = Duration::from_millis(500);

impl Link {
    pub(crate) fn new(target: Target) -> Self {
        let trouble = Trouble::NotConnected { why: NOT_YET.into() };
        let standing = RwLock::new(Standing::Not { trouble, connected: 0 });
        Link {
            target,
            standing,
            silent_since: AtomicU64::new(0),
            clock: SteadyClock::new(),
            lost: Notify::new(),
            loads: AtomicU64::new(0),
            loading: Mutex::new(()),
        }
    }

    /// Whether a connection was made, or tried to be.
    pub(crate) fn was_tried(&self) -> bool {
        self.connection().err() != Some(Trouble::NotConnected { why: NOT_YET.into() })
    }

    /// The connection and its number, or why there is none.
    pub(crate) fn connection(&self) -> Result<(Connection, u64), Trouble> {
        match &*self.standing.read().unwrap_or_else(PoisonError::into_inner) {
            Standing::Connected { connection, number, .. } => Ok((connection.clone(), *number)),
            Standing::Not { trouble, .. } => Err(trouble.clone()),
        }
    }

    pub(crate) fn findings(&self) -> Result<Findings, Trouble> {
        match &*self.standing.read().unwrap_or_else(PoisonError::into_inner) {
            Standing::Connected { findings, .. } => Ok(findings.clone()),
            Standing::Not { trouble, .. } => Err(trouble.clone()),
        }
    }

    /// The connection with this number has answered with an error. It is given up if it must be.
    pub(crate) fn failed(&self, number: u64, error: &RedisError) {
        // Who is connected to many nodes repairs each by itself.
        if breaks_the_connection(error) && !self.target.is_cluster() {
            self.give_up(number, Trouble::of(error));
        } else {
            self.answered();
        }
    }

    #[inline]
    pub(crate) fn answered(&self) {
        if self.silent_since.load(Ordering::Relaxed) != 0 {
            self.silent_since.store(0, Ordering::Relaxed);
        }
    }

    /// There was no answer in time on the connection with this number.
    pub(crate) fn is_late(&self, number: u64) {
        let now = self.clock.now().get().max(1);
        let since = match self.silent_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(since) => since,
        };
        if now.saturating_sub(since) >= SILENCE {
            self.give_up(number, Trouble::TooLate);
        }
    }

    fn give_up(&self, number: u64, trouble: Trouble) {
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*standing, Standing::Connected { number: current, .. } if *current == number) {
            *standing = Standing::Not { trouble, connected: number };
            self.answered();
            self.lost.notify_one();
        }
    }

    fn connected(&self, connection: Connection, findings: Findings) {
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        let number = match &*standing {
            Standing::Connected { number, .. } => *number,
            Standing::Not { connected, .. } => *connected,
        };
        *standing = Standing::Connected { connection, number: number + 1, findings };
    }

    /// Looks again at what is at the other end: settings and roles change while a connection stays.
    pub(crate) async fn look_again(&self) {
        let Ok((mut connection, looked_at)) = self.connection() else { return };
        let Ok(Ok(seen)) = tokio::time::timeout(CONNECT, server::look(&mut connection)).await else { return };
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Connected { number, findings, .. } = &mut *standing
            && *number == looked_at
        {
            *findings = seen;
        }
    }

    fn not_connected(&self, why: Trouble) {
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Not { trouble, .. } = &mut *standing {
            *trouble = why;
        }
    }

    /// How often the scripts were loaded so far.
    pub(crate) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Acquire)
    }

    /// Loads the scripts, unless somebody has since they were loaded so often.
    pub(crate) async fn load(&self, connection: &mut Connection, loads: u64) -> Result<(), RedisError> {
        let _loading = self.loading.lock().await;
        if self.loads() == loads {
            connection.load().await?;
            self.loads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Connects whenever there is no connection, until the link is gone.
    pub(crate) async fn keep_connected(link: Weak<Link>) {
        let mut wait = FIRST_WAIT;
        while let Some(it) = link.upgrade() {
            let started = Instant::now();
            match it.connect().await {
                Ok((connection, findings)) => {
                    it.connected(connection, findings);
                    it.until_lost(link.clone()).await;
                }
                Err(trouble) => {
                    it.not_connected(trouble);
                    drop(it);
                }
            }
            // A connection that is lost at once, as one to a replica that takes no writes, is as bad as none.
            wait =
                if started.elapsed() > LONGEST_WAIT * 2 { FIRST_WAIT } else { (wait * 2).min(LONGEST_WAIT) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Comes back when the connection is lost, or nobody needs it any more.
    async fn until_lost(self: Arc<Self>, link: Weak<Link>) {
        let lost = self.lost.notified();
        tokio::pin!(lost);
        loop {
            if tokio::time::timeout(IN_USE, &mut lost).await.is_ok() {
                return;
            }
            if link.strong_count() <= 1 {
                return;
            }
        }
    }

    async fn connect(&self) -> Result<(Connection, Findings), Trouble> {
        let attempt = async {
            let mut connection = self.target.connect().await?;
            connection.load().await?;
            let findings = server::look(&mut connection).await?;
            Ok::<_, RedisError>((connection, findings))
        };
        let patience = if self.target.is_cluster() { CONNECT_CLUSTER } else { CONNECT };
        match tokio::time::timeout(patience, attempt).await {
            Ok(done) => done.map_err(|error| Trouble::of(&error)),
            Err(_) => Err(Trouble::TooLate),
        }
    }
}

impl Target {
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self, Target::Cluster(_))
    }

    async fn connect(&self) -> Result<Connection, RedisError> {
        match self {
            Target::Single(client) if !is_encrypted(client) => {
                Pipe::to(client.get_connection_info()).await.map(Connection::Plain)
            }
            Target::Single(client) => {
                // Deadlines are the gate's. Nothing may queue up here: the gate bounds what is under way.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(CONNECT))
                    .set_response_timeout(None)
                    .set_pipeline_buffer_size(1_024);
                client.get_multiplexed_async_connection_with_config(&config).await.map(Connection::Encrypted)
            }
            Target::Cluster(client) => client.get_async_connection().await.map(Connection::Cluster),
        }
    }
}

impl Connection {
    /// Both scripts: where one is missing, so is the other.
    async fn load(&mut self) -> Result<(), RedisError> {
        for script in [SCRIPT, SCRIPT_OF_BROUGHT] {
            self.command(redis::cmd("SCRIPT").arg("LOAD").arg(script)).await?;
        }
        Ok(())
    }

    /// Asks where a redirection says. One to stay is known to the connection by now; a slot that is being moved has to be asked
    /// for by its own word, at its new node, while the rest stays where it was.
    pub(crate) async fn ask_as_told(
        &mut self,
        call: &Call<'_>,
        told: &RedisError,
    ) -> Result<Value, RedisError> {
        let Connection::Cluster(connection) = self else { return Err(told.clone()) };
        let Some(route) = new_node(told) else { return self.ask(call).await };
        let mut asking = redis::pipe();
        asking.cmd("ASKING").add_command(call.cmd());
        let mut replies = connection.route_pipeline(asking, 1, 1, route).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Asks a script.
    pub(crate) async fn ask(&mut self, call: &Call<'_>) -> Result<Value, RedisError> {
        match self {
            Connection::Plain(pipe) => pipe.ask(|unsent| call.write(unsent)).await,
            _ => self.command(&call.cmd()).await,
        }
    }

    /// Asks for anything.
    pub(crate) async fn command(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        match self {
            Connection::Plain(pipe) => pipe.ask(|unsent| cmd.write_packed_command(unsent)).await,
            Connection::Encrypted(connection) => connection.req_packed_command(cmd).await,
            Connection::Cluster(connection) => connection.req_packed_command(cmd).await,
        }
        .and_then(Value::extract_error)
    }
}

fn is_encrypted(client: &redis::Client) -> bool {
    matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
}

/// Where the slot goes that is being moved, if that is what the error says.
fn new_node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
        return None;
    }
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Connection::Plain(_) => "Plain",
            Connection::Encrypted(_) => "Encrypted",
            Connection::Cluster(_) => "Cluster",
        })
    }
}
