//! A real cluster: three primaries, each with a replica, that detect a failed node within a second or so.
//!
//! ```text
//!   node      0 ◄─┐     1 ◄─┐     2 ◄─┐
//!   slots     a   │     b   │     c   │     a third of the 16,384 slots each
//!   node      3 ──┘     4 ──┘     5 ──┘     replicates the node above, and takes over when it fails
//! ```

use super::poll::until;
use super::port::BUS;
use super::proxy::Proxy;
use super::server::{Kind, Server};

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
/// The first slot of each third, and the end of the last one.
const THIRDS: [u32; PRIMARIES + 1] = [0, 5_461, 10_923, 16_384];

const SETTINGS: &[&str] = &[
    "--cluster-enabled",
    "yes",
    "--cluster-config-file",
    "nodes.conf",
    "--cluster-node-timeout",
    "1000",
    // A replica takes over however long ago it last heard from its primary.
    "--cluster-replica-validity-factor",
    "0",
    "--cluster-announce-ip",
    "127.0.0.1",
    // Replicas stay with their primary, and replicate without waiting for other replicas.
    "--cluster-allow-replica-migration",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];

/// Six nodes that form one cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster and waits until every slot is served and every replica is in sync.
    pub(crate) fn start() -> Self {
        let nodes = (0..NODES).map(|_| Server::start(Kind::Redis, SETTINGS)).collect();
        let cluster = Cluster { nodes };
        cluster.assign_slots();
        cluster.meet();
        cluster.replicate();
        until("every node is in sync", || cluster.nodes.iter().all(is_in_sync).then_some(()));
        cluster
    }

    /// The URLs of all nodes, as clients take them.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    pub(crate) fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// A node to kill, pause or restart. Restarted, it rejoins the cluster as a replica of the node that took
    /// over.
    pub(crate) fn node_mut(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index]
    }

    /// Kills a node without a shutdown.
    pub(crate) fn kill(&mut self, index: usize) {
        self.nodes[index].kill();
    }

    /// Puts a failing network in front of one node: from now on the other nodes redirect clients to the
    /// proxy. The nodes still talk to each other directly, but the node's replica replicates through the
    /// proxy.
    pub(crate) fn put_proxy_before(&self, index: usize) -> Proxy {
        let proxy = Proxy::start(self.nodes[index].port());
        let port = proxy.port().to_string();
        self.nodes[index].cli(&["CONFIG", "SET", "cluster-announce-port", &port]);
        let announces = |node: &Server| node.cli(&["CLUSTER", "SLOTS"]).lines().any(|line| line == port);
        until("every node announces the proxy", || self.nodes.iter().all(announces).then_some(()));
        until("every node is in sync", || self.nodes.iter().all(is_in_sync).then_some(()));
        proxy
    }

    /// The node that owns the slot of `key`, according to the first node that is alive. Until the cluster has
    /// detected the failure of a node, the answer can be that node; repeat it with [`until`].
    pub(crate) fn primary_of(&mut self, key: &str) -> usize {
        let witness = self.nodes.iter_mut().position(Server::is_alive).expect("a node is alive");
        let slot = number(&self.nodes[witness].cli(&["CLUSTER", "KEYSLOT", key]));
        let nodes = self.nodes[witness].cli(&["CLUSTER", "NODES"]);
        let owner = nodes.lines().find(|line| owns(line, slot)).expect("every slot has an owner");
        let bus = bus_port_of(owner);
        self.nodes.iter().position(|node| node.port() + BUS == bus).expect("the owner is a node of ours")
    }

    fn assign_slots(&self) {
        for (index, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            let (first, last) = (THIRDS[index].to_string(), (THIRDS[index + 1] - 1).to_string());
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
    }

    /// The first node meets all others; gossip connects the rest.
    fn meet(&self) {
        for node in &self.nodes[1..] {
            self.nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]);
        }
        until("every node knows every other", || self.nodes.iter().all(knows_all).then_some(()));
    }

    fn replicate(&self) {
        for (primary, replica) in self.nodes[..PRIMARIES].iter().zip(&self.nodes[PRIMARIES..]) {
            replica.cli(&["CLUSTER", "REPLICATE", &primary.cli(&["CLUSTER", "MYID"])]);
        }
    }
}

fn knows_all(node: &Server) -> bool {
    let known = node.cli(&["CLUSTER", "NODES"]);
    known.lines().filter(|line| !line.contains("handshake")).count() == NODES
}

/// All slots are served, the replicas are known as such, and a replica has all that its primary has.
fn is_in_sync(node: &Server) -> bool {
    let replicas = node.cli(&["CLUSTER", "NODES"]).lines().filter(|line| line.contains("slave")).count();
    let replication = node.cli(&["INFO", "replication"]);
    let has_copy = replication.contains("role:master") || replication.contains("master_link_status:up");
    let served = node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
    replicas == NODES - PRIMARIES && has_copy && served
}

/// Whether a line of `CLUSTER NODES` describes the primary of a slot. Its slots follow after eight words: `7`
/// or `0-5460`.
fn owns(line: &str, slot: u32) -> bool {
    line.split_whitespace().skip(8).any(|slots| {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        (number(first)..=number(last)).contains(&slot)
    })
}

/// Reads the bus port from the second word of a line of `CLUSTER NODES`, `127.0.0.1:7000@17000,name`: the
/// client port may be a proxy's.
fn bus_port_of(line: &str) -> u16 {
    let address = line.split_whitespace().nth(1).and_then(|address| address.split('@').nth(1));
    let port = address.and_then(|address| address.split(',').next());
    port.and_then(|port| port.parse().ok()).expect("every node has an address")
}

fn number(text: &str) -> u32 {
    text.parse().expect("slots are numbers")
}
