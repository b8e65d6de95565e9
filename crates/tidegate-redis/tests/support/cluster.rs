//! A real cluster: three primaries, each with a replica, that notice within a second or so when one is gone.
//!
//! ```text
//!   node      0 ◄─┐     1 ◄─┐     2 ◄─┐
//!   slots     a   │     b   │     c   │     a third of the 16,384 slots each
//!   node      3 ──┘     4 ──┘     5 ──┘     copies what the one above has, and takes over when it is gone
//! ```

use super::poll::until;
use super::port::BUS;
use super::proxy::Proxy;
use super::server::{Kind, Server};

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
/// The first slot of each third, and the end of the last.
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
    // Replicas stay with their primary, and copy it without waiting for company.
    "--cluster-allow-replica-migration",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];

/// Six nodes that know one another.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// A cluster in which every node answers for every slot, and every replica has its copy.
    pub(crate) fn start() -> Self {
        let nodes = (0..NODES).map(|_| Server::start(Kind::Redis, SETTINGS)).collect();
        let cluster = Cluster { nodes };
        cluster.deal_slots();
        cluster.introduce();
        cluster.pair();
        until("every node is content", || cluster.nodes.iter().all(is_content).then_some(()));
        cluster
    }

    /// The addresses of all nodes, as clients are told.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    pub(crate) fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// A node to kill, pause or restart. Restarted, it comes back into the cluster as a replica of whoever took over.
    pub(crate) fn node_mut(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index]
    }

    /// Ends a node without a farewell.
    pub(crate) fn kill(&mut self, index: usize) {
        self.nodes[index].kill();
    }

    /// A network that fails, before one node: from now on the others tell clients to go there. Among themselves the
    /// nodes speak as before, but the node's replica copies through it.
    pub(crate) fn put_proxy_before(&self, index: usize) -> Proxy {
        let proxy = Proxy::start(self.nodes[index].port());
        let port = proxy.port().to_string();
        self.nodes[index].cli(&["CONFIG", "SET", "cluster-announce-port", &port]);
        let is_told = |node: &Server| node.cli(&["CLUSTER", "SLOTS"]).lines().any(|line| line == port);
        until("every node tells of it", || self.nodes.iter().all(is_told).then_some(()));
        until("every node is content", || self.nodes.iter().all(is_content).then_some(()));
        proxy
    }

    /// The node that decides for `key`, in the eyes of the first node that is alive. Until the others have noticed
    /// that one is dead it can be that one; ask again with [`until`].
    pub(crate) fn primary_of(&mut self, key: &str) -> usize {
        let witness = self.nodes.iter_mut().position(Server::is_alive).expect("a node is alive");
        let slot = number(&self.nodes[witness].cli(&["CLUSTER", "KEYSLOT", key]));
        let nodes = self.nodes[witness].cli(&["CLUSTER", "NODES"]);
        let owner = nodes.lines().find(|line| owns(line, slot)).expect("somebody has every slot");
        let bus = bus_port_of(owner);
        self.nodes.iter().position(|node| node.port() + BUS == bus).expect("it is one of ours")
    }

    fn deal_slots(&self) {
        for (index, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            let (first, last) = (THIRDS[index].to_string(), (THIRDS[index + 1] - 1).to_string());
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
    }

    /// One node meets all others; from there they hear of one another.
    fn introduce(&self) {
        for node in &self.nodes[1..] {
            self.nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]);
        }
        until("every node knows every other", || self.nodes.iter().all(knows_all).then_some(()));
    }

    fn pair(&self) {
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
fn is_content(node: &Server) -> bool {
    let replicas = node.cli(&["CLUSTER", "NODES"]).lines().filter(|line| line.contains("slave")).count();
    let replication = node.cli(&["INFO", "replication"]);
    let has_copy = replication.contains("role:master") || replication.contains("master_link_status:up");
    let served = node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
    replicas == NODES - PRIMARIES && has_copy && served
}

/// Whether a line of `CLUSTER NODES` is that of the primary of a slot. After eight words come its slots: `7` or
/// `0-5460`.
fn owns(line: &str, slot: u32) -> bool {
    line.split_whitespace().skip(8).any(|slots| {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        (number(first)..=number(last)).contains(&slot)
    })
}

/// From the second word of a line of `CLUSTER NODES`, `127.0.0.1:7000@17000,name`: where clients go may be a proxy's.
fn bus_port_of(line: &str) -> u16 {
    let address = line.split_whitespace().nth(1).and_then(|address| address.split('@').nth(1));
    let port = address.and_then(|address| address.split(',').next());
    port.and_then(|port| port.parse().ok()).expect("every node has an address")
}

fn number(text: &str) -> u32 {
    text.parse().expect("slots are numbers")
}
