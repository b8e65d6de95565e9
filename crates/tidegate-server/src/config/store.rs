//! # Where the counts are kept

use std::fmt;
use std::time::Duration;

use super::Reading;
use super::decode::{Number, OneOrMany, Text, Time};
use super::fault::Fault;
use super::file::{MemoryTable, RedisTable, StoreTable, StoreText, WhenLostWord};
use super::flags::Given;
use super::near::did_you_mean;
use super::secret::{Secret, without_password};
use super::show::Origin;
use super::source::{At, Span};
use crate::rules::OnOutage;

/// Where the counts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In this process.
    Memory {
        /// At most so many keys for each rule.
        max_keys: usize,
    },
    /// In a Redis or Valkey.
    Redis(Box<Redis>),
}

/// A Redis or Valkey, and how it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redis {
    /// Which.
    pub servers: Servers,
    /// How long a decision may take.
    pub deadline: Duration,
    /// How long the service waits for the store before it opens its listeners.
    pub connect_timeout: Duration,
    /// How many services share the limits while Redis does not answer.
    pub nodes: u32,
    /// Connections shared by all requests.
    pub connections: usize,
    /// How many requests may wait for an answer at once.
    pub in_flight: usize,
    /// Keeps the keys apart from those of others.
    pub tenant: String,
    /// The file with the certificate to trust.
    pub root_certificate: Option<String>,
    /// What becomes of requests in an outage, by rules that do not say it themselves and by ad-hoc limits.
    pub when_lost: OnOutage,
    /// The longest wait that a decision in an outage tells, before jitter of up to a quarter.
    pub outage_retry_after: Duration,
}

/// One server, or a cluster. Addresses may hold passwords, so they are secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One.
    Single(Secret),
    /// Some nodes of a cluster.
    Cluster(Vec<Secret>),
}

const MAX_KEYS: usize = 1 << 22;
const DEADLINE: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const OUTAGE_RETRY_AFTER: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 2;
const IN_FLIGHT: usize = 1_024;

impl Default for Store {
    fn default() -> Self {
        Store::Memory { max_keys: MAX_KEYS }
    }
}

impl Reading<'_> {
    pub(super) fn store(&mut self, file: Option<&StoreText>, given: &Given) -> Store {
        if let Some((url, origin)) = &given.redis {
            return self.given_redis(file, url, origin);
        }
        match file {
            None => {
                self.show("store", "memory", Origin::Default);
                self.memory(None)
            }
            Some(StoreText::Word(word)) => self.store_word(word),
            Some(StoreText::Table(table)) => self.store_table(table),
        }
    }

    fn store_word(&mut self, word: &Text) -> Store {
        match word.value.as_str() {
            "memory" => self.show_text("store", "memory", word),
            other => {
                let help = match other {
                    "redis" => Some("name the server: `store: {redis: {url: redis://localhost}}`".to_owned()),
                    other => did_you_mean(other, ["memory"]),
                };
                self.fault(
                    Fault::error("store", format!("`{other}` is no store"))
                        .at(word.span)
                        .label("expected `memory`, or a table with `memory` or `redis`")
                        .maybe_help(help),
                );
            }
        }
        self.memory(None)
    }

    fn store_table(&mut self, table: &At<StoreTable>) -> Store {
        match (&table.value.memory, &table.value.redis) {
            (Some(memory), None) => {
                self.show_at("store", "memory", memory.span);
                self.memory(Some(&memory.value))
            }
            (None, Some(redis)) => {
                self.show_at("store", "redis", redis.span);
                self.redis(redis)
            }
            (both, _) => {
                let what = if both.is_some() { "two stores, and counts are kept in one" } else { "no store" };
                self.fault(
                    Fault::error("store", what).at(table.span).label("expected either `memory` or `redis`"),
                );
                Store::default()
            }
        }
    }

    fn memory(&mut self, table: Option<&MemoryTable>) -> Store {
        let max_keys = table.and_then(|table| table.max_keys);
        let max_keys = self.number("store.memory.max_keys", max_keys, MAX_KEYS);
        Store::Memory { max_keys }
    }

    fn redis(&mut self, table: &At<RedisTable>) -> Store {
        let At { value, span } = table;
        let servers = self.servers(value, *span);
        self.redis_at(servers, value)
    }

    fn redis_at(&mut self, servers: Servers, table: &RedisTable) -> Store {
        let deadline = self.time("deadline", table.deadline, DEADLINE);
        let connect_timeout = self.time("connect_timeout", table.connect_timeout, CONNECT_TIMEOUT);
        let nodes = self.number("store.redis.nodes", table.nodes, 1);
        let connections = self.number("store.redis.connections", table.connections, CONNECTIONS);
        let in_flight = self.number("store.redis.in_flight", table.in_flight, IN_FLIGHT);
        for (name, text) in [("tenant", &table.tenant), ("root_certificate", &table.root_certificate)] {
            if let Some(text) = text {
                self.show_text(format!("store.redis.{name}"), &text.value, text);
            }
        }
        let of = |text: &Option<Text>| text.as_ref().map(|text| text.value.clone());
        let tenant = of(&table.tenant).unwrap_or_default();
        let root_certificate = of(&table.root_certificate);
        let when_lost = self.on_outage(table.when_lost);
        let outage_retry_after =
            self.time("outage_retry_after", table.outage_retry_after, OUTAGE_RETRY_AFTER);
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        Store::Redis(Box::new(Redis {
            servers,
            deadline,
            connect_timeout,
            nodes,
            connections,
            in_flight,
            tenant,
            root_certificate,
            when_lost,
            outage_retry_after,
        }))
    }

    /// A flag names the server; the file may say the rest.
    fn given_redis(&mut self, file: Option<&StoreText>, url: &str, origin: &Origin) -> Store {
        self.show("store", "redis", origin.clone());
        self.show("store.redis.url", without_password(url), origin.clone());
        if let Err(what) = server(url) {
            let shown = without_password(url);
            self.fault(
                Fault::error("redis", format!("`{shown}` ({origin}) is no address of a Redis")).help(what),
            );
        }
        let table = match file {
            Some(StoreText::Table(table)) => table.value.redis.as_ref().map(|redis| redis.value.clone()),
            _ => None,
        };
        self.redis_at(Servers::Single(Secret::new(url)), &table.unwrap_or(NOTHING))
    }

    fn servers(&mut self, table: &RedisTable, span: Span) -> Servers {
        match (&table.url, &table.cluster) {
            (Some(url), None) => {
                self.show_text("store.redis.url", without_password(&url.value), url);
                self.check_server(url);
                Servers::Single(Secret::new(&url.value))
            }
            (None, Some(At { value: OneOrMany(urls), .. })) => {
                for (index, url) in urls.iter().enumerate() {
                    self.show_text(
                        format!("store.redis.cluster[{index}]"),
                        without_password(&url.value),
                        url,
                    );
                    self.check_server(url);
                }
                Servers::Cluster(urls.iter().map(|url| Secret::new(&url.value)).collect())
            }
            (both, _) => {
                let what = match both {
                    Some(_) => "`redis` has both `url` and `cluster`",
                    None => "`redis` has neither `url` nor `cluster`",
                };
                let help = "write `url: redis://localhost:6379`, or `cluster:` and a list of such";
                self.fault(Fault::error("redis", what).at(span).label("expected one of the two").help(help));
                Servers::Cluster(Vec::new())
            }
        }
    }

    fn check_server(&mut self, url: &Text) {
        let Err(what) = server(&url.value) else { return };
        let shown = without_password(&url.shown());
        let help = url.variables.is_empty().then_some(what); // what a variable holds is not repeated
        self.fault(
            Fault::error("redis", format!("`{shown}` is no address of a Redis"))
                .at(url.span)
                .label("expected redis://[user:password@]host[:port][/db]")
                .maybe_help(help),
        );
    }

    /// What those do that say nothing of their own.
    fn on_outage(&mut self, given: Option<At<WhenLostWord>>) -> OnOutage {
        self.when_lost = given;
        let word = given.map_or(WhenLostWord::Local, |given| given.value);
        self.show_choice("store.redis.when_lost".to_owned(), word.word(), given.map(|given| given.span));
        word.into()
    }

    /// A length of time among the settings of the store.
    fn time(&mut self, name: &str, given: Option<At<Time>>, otherwise: Duration) -> Duration {
        let path = format!("store.redis.{name}");
        match given {
            Some(At { value: Time(time), span }) => {
                self.show_at(path, format!("{time:?}"), span);
                time
            }
            None => {
                self.show(path, format!("{otherwise:?}"), Origin::Default);
                otherwise
            }
        }
    }

    /// A number of at least 1.
    fn number<N: Copy + Into<u64>>(
        &mut self,
        path: &str,
        given: Option<At<Number<N>>>,
        otherwise: usize,
    ) -> usize {
        let Some(At { value: Number(number), span }) = given else {
            self.show(path, otherwise.to_string(), Origin::Default);
            return otherwise;
        };
        let number: u64 = number.into();
        if number == 0 {
            let name = path.rsplit('.').next().unwrap_or(path);
            self.fault(
                Fault::error("zero", format!("`{name}` is 0, and nothing could be done with that"))
                    .at(span)
                    .label("expected 1 or more"),
            );
        }
        self.show_at(path, number.to_string(), span);
        usize::try_from(number).unwrap_or(usize::MAX)
    }
}

const NOTHING: RedisTable = RedisTable {
    url: None,
    cluster: None,
    deadline: None,
    connect_timeout: None,
    nodes: None,
    connections: None,
    in_flight: None,
    tenant: None,
    root_certificate: None,
    when_lost: None,
    outage_retry_after: None,
};

/// Whether it can be the address of a Redis; else, what to write.
fn server(url: &str) -> Result<(), String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(format!("write `redis://{}`", without_password(url)));
    };
    let is_socket = ["unix", "redis+unix", "valkey+unix"].contains(&scheme);
    if !is_socket && !["redis", "rediss", "valkey", "valkeys"].contains(&scheme) {
        return Err("it begins with `redis://`, `rediss://` or `unix://`".into());
    }
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let host = if is_socket { host } else { host.split(['/', '?']).next().unwrap_or("") };
    if host.is_empty() {
        return Err(format!("name the host: `{scheme}://localhost:6379`"));
    }
    match host.rsplit_once(':') {
        Some((_, port)) if !is_socket && !host.ends_with(']') && port.parse::<u16>().is_err() => {
            Err(format!("`{port}` is no port; write a number from 1 to 65535"))
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Memory { max_keys } => write!(f, "memory, at most {max_keys} keys for each rule"),
            Store::Redis(redis) => match &redis.servers {
                Servers::Single(url) => f.write_str(&without_password(url.reveal())),
                Servers::Cluster(nodes) => write!(f, "a Redis cluster, {} nodes named", nodes.len()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Format};

    /// What the store says of a loss, and what two rules do, of which the second says it itself.
    fn on_outage(store: &str) -> (OnOutage, [OnOutage; 2], Vec<String>) {
        let rules = "[{name: a, quota: 1/s}, {name: b, quota: 1/s, when_lost: closed}]";
        let file = format!("store:\n  redis:\n    {store}\nrules: {rules}\n");
        let config = Config::load("x", file.as_bytes(), Format::Yaml, &|_| None).config.expect("a file");
        let Store::Redis(redis) = config.store else { panic!("a Redis") };
        let rules = [0, 1].map(|index: usize| config.rules.rules[index].when_lost);
        let shown = config.shown.iter().filter(|shown| shown.path.ends_with("when_lost"));
        (redis.when_lost, rules, shown.map(|shown| format!("{}: {}", shown.value, shown.origin)).collect())
    }

    #[test]
    fn rules_do_what_the_store_says_unless_they_say_it_themselves() {
        let (store, rules, shown) = on_outage("{url: \"redis://h\", when_lost: open}");
        assert_eq!((store, rules), (OnOutage::Open, [OnOutage::Open, OnOutage::Closed]));
        assert_eq!(shown, ["open: x:3", "open: x:3", "closed: x:4"]);
        let (store, rules, shown) = on_outage("url: redis://h");
        assert_eq!((store, rules), (OnOutage::Local, [OnOutage::Local, OnOutage::Closed]));
        assert_eq!(shown, ["local: default", "local: default", "closed: x:4"]);
    }

    #[test]
    fn times_of_the_store_are_read_and_shown() {
        let times = |store: &str| {
            let file = format!("store: {{redis: {{url: \"redis://h\"{store}}}}}\nrules: []\n");
            let config = Config::load("x", file.as_bytes(), Format::Yaml, &|_| None).config.expect("a file");
            let Store::Redis(redis) = config.store else { panic!("a Redis") };
            let names = ["deadline", "connect_timeout", "outage_retry_after"];
            let shown = names.map(|name| {
                let of = |shown: &&crate::config::Shown| shown.path == format!("store.redis.{name}");
                config.shown.iter().find(of).map(|shown| shown.value.clone()).expect("it is shown")
            });
            ([redis.deadline, redis.connect_timeout, redis.outage_retry_after], shown)
        };
        let ms = |times: [u64; 3]| times.map(Duration::from_millis);
        assert_eq!(times(""), (ms([20, 2_000, 1_000]), ["20ms", "2s", "1s"].map(str::to_owned)));
        let given = ", deadline: 5ms, connect_timeout: 300ms, outage_retry_after: 4s";
        assert_eq!(times(given), (ms([5, 300, 4_000]), ["5ms", "300ms", "4s"].map(str::to_owned)));
    }

    #[test]
    fn addresses_of_a_redis_are_told_from_others() {
        for good in [
            "redis://localhost",
            "redis://me:p%40ss@h:6380/2",
            "rediss://h/",
            "redis://[::1]:6379",
            "redis://[::1]",
            "unix:///run/redis.sock",
        ] {
            assert_eq!(server(good), Ok(()), "{good}");
        }
        for bad in
            ["localhost:6379", "http://h", "redis://", "redis://u:p@", "redis://h:port", "redis://h:99999"]
        {
            assert!(server(bad).is_err(), "{bad}");
        }
    }
}
