//! # Inspection of the server
//!
//! A gate can be connected and still not limit: to a server that evicts keys when memory is short, to a single node of
//! a cluster, or to a version that is too old. Each new connection is checked for such problems, as is each connection
//! after every canary. The health report lists them.

use redis::{RedisError, Value};

use crate::connection::Transport;

/// The result of an inspection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Name and version that the server reports, such as `redis 7.0.15`.
    pub(crate) server: String,
    /// Problems of the server, one sentence each.
    pub(crate) warnings: Vec<String>,
}

pub(crate) async fn inspect(transport: &mut Transport) -> Result<Findings, RedisError> {
    let cluster = matches!(transport, Transport::Cluster(_));
    match transport.command(redis::cmd("INFO").arg("all")).await {
        Ok(info) => Ok(parse_all(&info, cluster)),
        // The command may be forbidden; that is no reason not to limit.
        Err(error) if error.is_connection_dropped() => Err(error),
        Err(_) => Ok(Findings::default()),
    }
}

/// Collects the problems of all nodes, each once. The name is that of the first node.
fn parse_all(info: &Value, cluster: bool) -> Findings {
    let mut all = Findings::default();
    for Findings { server, warnings } in texts(info).iter().map(|info| parse(info, cluster)) {
        if all.server.is_empty() {
            all.server = server;
        }
        for warning in warnings {
            if !all.warnings.contains(&warning) {
                all.warnings.push(warning);
            }
        }
    }
    all
}

/// Returns all texts in a value: a cluster replies with one text per node.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::VerbatimString { text, .. } => vec![text.clone()],
        Value::SimpleString(text) => vec![text.clone()],
        Value::Map(nodes) => nodes.iter().flat_map(|(_, value)| texts(value)).collect(),
        Value::Array(nodes) => nodes.iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

fn parse(info: &str, cluster: bool) -> Findings {
    let field = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    let (redis, valkey) = (field("redis_version"), field("valkey_version"));
    let server = match (valkey, redis) {
        (Some(version), _) => format!("valkey {version}"),
        (None, Some(version)) => format!("redis {version}"),
        (None, None) => String::new(),
    };
    let mut warnings = Vec::new();
    if valkey.is_none() && redis.and_then(version).is_some_and(|version| version < (6, 2)) {
        warnings.push(format!("{server} is too old; use 6.2 or later"));
    }
    if !cluster && field("cluster_enabled") == Some("1") {
        warnings.push(
            "this is one node of a cluster, and keys of other nodes fail; build the gate with `RedisGate::cluster`"
                .into(),
        );
    }
    let evicts = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
    if let Some(policy) = evicts.filter(|_| field("maxmemory").is_some_and(|bytes| bytes != "0")) {
        warnings.push(format!(
            "maxmemory-policy is {policy}: when memory is short the server evicts keys, and each evicted key gets a \
             fresh burst; set noeviction"
        ));
    }
    if field("role") == Some("slave") {
        warnings.push("this is a replica, which refuses writes; use the address of the primary".into());
    }
    Findings { server, warnings }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::{Value, parse, parse_all};

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\nrole:master\r\ncluster_enabled:0\r\n";

    #[test]
    fn a_good_server_is_named_without_warnings() {
        let findings = parse(GOOD, false);
        assert_eq!((findings.server.as_str(), findings.warnings.len()), ("redis 7.0.15", 0));
        let valkey = format!("redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n{GOOD}");
        assert_eq!(parse(&valkey, false).server, "valkey 9.1.2");
        assert_eq!(parse("", false).warnings.len(), 0, "missing fields cause no warnings");
    }

    #[test]
    fn a_warning_about_several_nodes_is_reported_once() {
        let node = |info: &str| (Value::Nil, Value::BulkString(info.as_bytes().to_vec()));
        let evicting = GOOD.replace(
            "maxmemory:0\r\nmaxmemory_policy:noeviction",
            "maxmemory:1\r\nmaxmemory_policy:allkeys-lru",
        );
        let findings = parse_all(&Value::Map(vec![node(GOOD), node(&evicting), node(&evicting)]), true);
        assert_eq!((findings.server.as_str(), findings.warnings.len()), ("redis 7.0.15", 1), "{findings:?}");
    }

    #[test]
    fn each_problem_of_a_server_is_warned_of() {
        let warned = |from: &str, to: &str, cluster| {
            let findings = parse(&GOOD.replace(from, to), cluster);
            findings.warnings.join(" ")
        };
        assert!(warned("7.0.15", "6.0.9", false).contains("redis 6.0.9 is too old; use 6.2 or later"));
        assert!(warned("cluster_enabled:0", "cluster_enabled:1", false).contains("one node of a cluster"));
        assert_eq!(warned("cluster_enabled:0", "cluster_enabled:1", true), "");
        assert!(
            warned(
                "maxmemory:0\r\nmaxmemory_policy:noeviction",
                "maxmemory:1\r\nmaxmemory_policy:allkeys-lru",
                false
            )
            .contains("allkeys-lru")
        );
        assert_eq!(
            warned("maxmemory_policy:noeviction", "maxmemory_policy:allkeys-lru", false),
            "",
            "memory is not bounded"
        );
        assert!(warned("role:master", "role:slave", false).contains("replica"));
    }
}
