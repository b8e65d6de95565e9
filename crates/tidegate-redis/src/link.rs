//! # A connection that heals
//!
//! A link is connected, or it is not and says so at once: nobody waits for a connection while a request does. A task of its own
//! connects, looks at what it has connected to, loads the script, and sleeps until the connection is lost.
//!
//! ```text
//!   connect ──► look at it, load the script ──► serve … lost ─┐
//!      ▲  └── failed: wait, longer each time                  │
//!      └──────────────────────────────────────────────────────┘
//! ```
//!
//! Many requests share a connection: those that come while others are under way are sent together.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value};
use tokio::sync::{Mutex, Notify};

use crate::server::{self, Findings};
use crate::trouble::{Trouble, breaks_the_connection, is_no_script};
use crate::wire::SCRIPT;

/// Where to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Single(redis::Client),
    Cluster(Box<redis::cluster::ClusterClient>),
}

/// A connection, of which clones are the same one.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

#[derive(Debug)]
pub(crate) struct Link {
    target: Target,
    standing: RwLock<Standing>,
    /// How many in a row were not answered in time.
    late: AtomicU32,
    lost: Notify,
    /// Held by who loads the script.
    loading: Mutex<()>,
}

#[derive(Debug)]
enum Standing {
    Connected { connection: Connection, number: u64, findings: Findings },
    Not { trouble: Trouble, connected: u64 },
}

/// So many in a row that are not answered in time, and the connection is given up: a peer that has vanished sends no word of it.
const MOST_LATE: u32 = 5;
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(1);
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_millis(500);

impl Link {
    pub(crate) fn new(target: Target) -> Self {
        let trouble = Trouble::NotConnected { why: "none was made yet".into() };
        let standing = RwLock::new(Standing::Not { trouble, connected: 0 });
        Link { target, standing, late: AtomicU32::new(0), lost: Notify::new(), loading: Mutex::new(()) }
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
        if breaks_the_connection(error) {
            self.give_up(number, Trouble::of(error));
        } else {
            self.answered();
        }
    }

    #[inline]
    pub(crate) fn answered(&self) {
        if self.late.load(Ordering::Relaxed) != 0 {
            self.late.store(0, Ordering::Relaxed);
        }
    }

    /// There was no answer in time.
    pub(crate) fn is_late(&self) {
        if self.late.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_LATE
            && let Ok((_, number)) = self.connection()
        {
            self.give_up(number, Trouble::TooLate);
        }
    }

    fn give_up(&self, number: u64, trouble: Trouble) {
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*standing, Standing::Connected { number: current, .. } if *current == number) {
            *standing = Standing::Not { trouble, connected: number };
            self.late.store(0, Ordering::Relaxed);
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

    fn not_connected(&self, why: Trouble) {
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Not { trouble, .. } = &mut *standing {
            *trouble = why;
        }
    }

    /// Asks again after the script was not there. Who comes while another is loading it finds it loaded.
    pub(crate) async fn load_and_ask(
        &self,
        connection: &mut Connection,
        cmd: &Cmd,
    ) -> Result<Value, RedisError> {
        let _loading = self.loading.lock().await;
        match connection.ask(cmd).await {
            Err(error) if is_no_script(&error) => {
                connection.load().await?;
                connection.ask(cmd).await
            }
            reply => reply,
        }
    }

    /// Connects whenever there is no connection, until the link is gone.
    pub(crate) async fn keep_connected(link: Weak<Link>) {
        let mut wait = FIRST_WAIT;
        while let Some(it) = link.upgrade() {
            match it.connect().await {
                Ok((connection, findings)) => {
                    it.connected(connection, findings);
                    wait = FIRST_WAIT;
                    it.until_lost(link.clone()).await;
                }
                Err(trouble) => {
                    it.not_connected(trouble);
                    drop(it);
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }

    /// Comes back when the connection is lost, or nobody needs it any more.
    async fn until_lost(self: Arc<Self>, link: Weak<Link>) {
        let lost = self.lost.notified();
        tokio::pin!(lost);
        loop {
            if tokio::time::timeout(LONGEST_WAIT, &mut lost).await.is_ok() {
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
        match tokio::time::timeout(CONNECT, attempt).await {
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
            Target::Single(client) => {
                // Deadlines are the gate's. Nothing may queue up here: the gate bounds what is under way.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(CONNECT))
                    .set_response_timeout(None)
                    .set_pipeline_buffer_size(1_024);
                client.get_multiplexed_async_connection_with_config(&config).await.map(Connection::Single)
            }
            Target::Cluster(client) => client.get_async_connection().await.map(Connection::Cluster),
        }
    }
}

impl Connection {
    async fn load(&mut self) -> Result<Value, RedisError> {
        self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await
    }

    pub(crate) async fn ask(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        match self {
            Connection::Single(connection) => connection.req_packed_command(cmd).await,
            Connection::Cluster(connection) => connection.req_packed_command(cmd).await,
        }
        .and_then(Value::extract_error)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Connection::Single(_) => "Single",
            Connection::Cluster(_) => "Cluster",
        })
    }
}
