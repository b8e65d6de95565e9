//! # The file, as it is written
//!
//! One type for each table of the file. What stands in them are texts and numbers with their places; what they mean
//! is found out in [`listeners`](super::listeners), [`store`](super::store) and [`rules`](super::rules). The comments
//! on the fields are what the schema says about them, and so what an editor shows.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::decode::{Decode, Entries, Needed, Number, OneOrMany, Text, Time, choice, mismatch, table};
use super::fault::{Fault, Faults};
use super::node::{Kind, Node};
use super::source::{At, Span};

table! {
    /// The configuration of a Tidegate service.
    "the configuration" File {
        /// The domain of the rules that do not name one. Without it they apply in every domain.
        domain: Option<Text>,
        /// Where the service listens, and who may speak to it there.
        listeners: Option<Listeners>,
        /// Where the counts are kept: `memory`, or a Redis.
        store: Option<StoreText>,
        /// Who passes every rule without being counted: a list of conditions.
        allow: Option<OneOrMany<Match>>,
        /// Who is refused whatever the rules say: a list of conditions. Stronger than `allow`.
        deny: Option<OneOrMany<Match>>,
        /// The limits. All that match a request are decided on together: it passes all of them, or none is charged.
        rules: Option<At<Vec<At<RuleTable>>>>,
    }
}

table! {
    /// Where the service listens. What is not named listens on its usual port on this machine only; `off` does not
    /// listen.
    "`listeners`" Listeners {
        /// Decisions over HTTP with JSON. Usually 127.0.0.1:8080.
        http: Option<OneOrMany<ListenerText>>,
        /// Envoy's rate limit service, over gRPC. Usually 127.0.0.1:8081.
        grpc: Option<OneOrMany<ListenerText>>,
        /// The Redis protocol. Usually 127.0.0.1:6380.
        resp: Option<OneOrMany<ListenerText>>,
        /// Metrics, explanations and changes while running. Usually 127.0.0.1:9090.
        admin: Option<OneOrMany<ListenerText>>,
    }
}

table! {
    /// One listener.
    "a listener" ListenerTable {
        /// An address and a port, as in 0.0.0.0:8080, or a socket, as in unix:/run/tidegate.sock.
        address: Text,
        /// Encryption.
        tls: Option<TlsTable>,
        /// What callers have to know.
        auth: Option<At<AuthTable>>,
        /// For grpc: whether Envoy's clients are told in headers what is left.
        headers: Option<At<HeadersWord>>,
        /// For http and admin without a token: names of this machine that clients may use, beside those of loopback.
        hosts: Option<At<Vec<Text>>>,
    }
}

table! {
    /// The files for encrypted connections, in PEM.
    "`tls`" TlsTable {
        /// The certificate, and those it depends on.
        cert: Text,
        /// Its private key.
        key: Text,
        /// Callers need a certificate signed by one of these.
        client_ca: Option<Text>,
    }
}

table! {
    /// What callers have to know. Better in the environment: `${NAME}`.
    "`auth`" AuthTable {
        /// For http, grpc and admin: sent as `Authorization: Bearer …`.
        token: Option<Text>,
        /// For http: another token, which allows resets, too. Without it no token allows them.
        change_token: Option<Text>,
        /// For resp: sent by `AUTH`.
        password: Option<Text>,
        /// For resp: another password, which allows resets, too. Without it no password allows them.
        change_password: Option<Text>,
        /// For resp: the user's name, if not `default`.
        user: Option<Text>,
    }
}

table! {
    /// Where the counts are kept.
    "`store`" StoreTable {
        /// In this process.
        memory: Option<At<MemoryTable>>,
        /// In a Redis or Valkey, shared by all who use it.
        redis: Option<At<RedisTable>>,
    }
}

table! {
    /// Counts in this process.
    "`memory`" MemoryTable {
        /// At most so many keys for each rule. Usually 4194304.
        max_keys: Option<At<Number<u64>>>,
    }
}

table! {
    /// Counts in a Redis or Valkey.
    "`redis`" RedisTable {
        /// The server: `redis://[user:password@]host[:port][/db]`, or `rediss://` for an encrypted connection.
        url: Option<Text>,
        /// Instead of `url`, some nodes of a cluster.
        cluster: Option<At<OneOrMany<Text>>>,
        /// How long a decision may take, all in all. Usually 20ms.
        deadline: Option<At<Time>>,
        /// How long the service waits for Redis before it opens its listeners. Usually 2s.
        connect_timeout: Option<At<Time>>,
        /// How many Tidegate services share the limits: by leases, and while Redis does not answer. Usually 1.
        nodes: Option<At<Number<u32>>>,
        /// Connections shared by all requests. Usually 2.
        connections: Option<At<Number<u32>>>,
        /// How many requests may wait for an answer at once. Usually 1024.
        in_flight: Option<At<Number<u32>>>,
        /// Keeps the keys apart from those of others in the same Redis.
        tenant: Option<Text>,
        /// A certificate in PEM: servers signed by it are trusted, and no others.
        root_certificate: Option<Text>,
        /// What is done while it does not answer, by rules that say nothing else and by limits that come with the call.
        /// Usually `local`.
        when_lost: Option<At<WhenLostWord>>,
        /// The longest wait that a decision without Redis tells, before jitter of up to a quarter. Usually 1s.
        outage_retry_after: Option<At<Time>>,
    }
}

table! {
    /// One limit on one key, and when it applies.
    "a rule" RuleTable {
        /// What it is called in answers and metrics. Letters, digits, spaces and `_.:-`, at most 64.
        name: Needed,
        /// The domain it is for.
        domain: Option<Text>,
        /// It applies to requests whose descriptors meet all of these. Without it, to all.
        r#match: Option<Match>,
        /// Whose limit it is: the descriptors that make the key. Without it, everybody's together.
        key: Option<At<OneOrMany<KeyText>>>,
        /// What becomes of requests that lack a part of the key. Usually `shared`.
        missing: Option<At<MissingWord>>,
        /// What may pass: one text or several, all of which must agree.
        quota: OneOrMany<Quota>,
        /// What a request takes: a number, or the number in a descriptor. Without it, what the caller says, or 1.
        cost: Option<At<CostText>>,
        /// Other quotas for some. The first that fits counts.
        overrides: Option<Vec<At<OverrideTable>>>,
        /// Who is not counted by this rule: a list of conditions.
        allow: Option<OneOrMany<Match>>,
        /// Who is refused by this rule: a list of conditions. Stronger than `allow`.
        deny: Option<OneOrMany<Match>>,
        /// Only watches: it is decided and counted, and refuses nobody.
        shadow: Option<At<bool>>,
        /// What it does while Redis does not answer. Usually what the store says.
        when_lost: Option<At<WhenLostWord>>,
        /// Whether tokens are taken from Redis in lots and spent without asking: `on`, `off`, or a table. Usually `off`.
        lease: Option<At<LeaseText>>,
    }
}

table! {
    /// How a rule is leased.
    "`lease`" LeaseTable {
        /// How much may be out at a time, to all services together. Usually all of the burst.
        stock: Option<At<Number<u32>>>,
        /// How long a lot may be spent, from 20ms to 1h. Usually 2s.
        ttl: Option<At<Time>>,
    }
}

table! {
    /// Another quota for some.
    "an override" OverrideTable {
        /// For requests whose descriptors meet all of these.
        r#match: Option<Match>,
        /// For this key: one value for each part, `*` for any.
        key: Option<At<OneOrMany<Text>>>,
        /// What may pass instead.
        quota: OneOrMany<Quota>,
        /// What it is called. Without it, what it matches.
        name: Option<Text>,
    }
}

table! {
    /// A part of a key that is an address: all addresses of one network are one key.
    "an address in a key" AddressTable {
        /// The descriptor that holds the address.
        address: Text,
        /// How many bits of an IPv4 address count. Usually 32.
        v4: Option<At<u8>>,
        /// How many bits of an IPv6 address count. Usually 64, for who has one address has all of those.
        v6: Option<At<u8>>,
    }
}

table! {
    /// The number in a descriptor.
    "a cost" CostTable {
        /// The descriptor.
        from: Text,
        /// One unit for so many, begun ones counted: 1024 makes bytes into kibibytes. Usually 1.
        per: Option<At<u32>>,
        /// What it is if there is no such number. Without it, the request is refused.
        missing: Option<At<u32>>,
    }
}

table! {
    /// A test of a descriptor. Several of these must all hold.
    "a condition" ConditionTable {
        /// Exactly this, or one of these. A `*` is only a `*`.
        exact: Option<OneOrMany<Text>>,
        /// Begins with this, or with one of these.
        prefix: Option<OneOrMany<Text>>,
        /// An address in this network, or in one of these.
        cidr: Option<OneOrMany<Text>>,
        /// Not this. Holds also if there is no such descriptor.
        not: Option<Box<ConditionText>>,
    }
}

choice! {
    /// What becomes of a request that lacks a part of the key.
    "a choice for `missing`" MissingWord {
        /// All that lack it share one key.
        Shared = "shared",
        /// The rule does not apply.
        Skip = "skip",
        /// The request is refused.
        Reject = "reject",
    }
}

choice! {
    /// What a rule does while the store does not answer.
    "a choice for `when_lost`" WhenLostWord {
        /// Everything passes, uncounted.
        Open = "open",
        /// Everything is refused.
        Closed = "closed",
        /// This node's share of the limit.
        Local = "local",
    }
}

choice! {
    /// Whether Envoy's clients are told in headers what is left.
    "a choice for `headers`" HeadersWord {
        /// They are not, unless Envoy does it by itself.
        None = "none",
        /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`; if refused, `Retry-After` too.
        RateLimit = "ratelimit",
    }
}

/// Conditions on descriptors, all of which must hold.
#[derive(Clone, Debug)]
pub(crate) struct Match {
    pub(crate) conditions: Vec<(At<String>, ConditionText)>,
    pub(crate) span: Span,
}

/// A listener, in short or in full.
#[derive(Clone, Debug)]
pub(crate) enum ListenerText {
    Address(Text),
    Table(Box<ListenerTable>),
}

/// `memory`, or a table.
#[derive(Clone, Debug)]
pub(crate) enum StoreText {
    Word(Text),
    Table(Box<At<StoreTable>>),
}

/// `on`, `off`, or how.
#[derive(Clone, Debug)]
pub(crate) enum LeaseText {
    Word(Text),
    Table(Box<LeaseTable>),
}

/// A name, or an address.
#[derive(Clone, Debug)]
pub(crate) enum KeyText {
    Name(Text),
    Address(Box<At<AddressTable>>),
}

/// A number, or where to find one.
#[derive(Clone, Debug)]
pub(crate) enum CostText {
    Fixed(u32),
    From(Box<CostTable>),
}

/// A text, several of them, or a table.
#[derive(Clone, Debug)]
pub(crate) enum ConditionText {
    Text(Text),
    List(Vec<ConditionText>),
    Table(Box<ConditionTable>),
}

/// The text of a limit.
#[derive(Clone, Debug)]
pub(crate) struct Quota(pub(crate) Text);

// === readers ===

impl Decode for Match {
    fn expected() -> Cow<'static, str> {
        "a table of descriptors, as in {path: /login}".into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        if !matches!(node.kind, Kind::Table(_)) {
            faults.push(mismatch(node, &Self::expected()));
            return None;
        }
        let Entries(conditions) = Entries::decode(node, faults)?;
        if node.is_empty() {
            faults.push(
                Fault::error("empty", "no conditions, and everything would match")
                    .at(node.span)
                    .label("expected a descriptor, as in {path: /login}")
                    .help("leave it out if everything is meant"),
            );
        }
        Some(Match { conditions, span: node.span })
    }
}

impl Decode for Quota {
    fn expected() -> Cow<'static, str> {
        "a quota, as in 100/s burst 200".into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        match node.kind {
            Kind::Scalar(_) => Text::decode(node, faults).map(Quota),
            _ => {
                faults.push(mismatch(node, &Self::expected()));
                None
            }
        }
    }
}

/// Reads a table where there is one, and something short where there is not.
macro_rules! short_or_table {
    ($name:ident, $expected:literal, $short:ident($text:ty) as $schema:ty, $long:ident($table:ty)) => {
        impl Decode for $name {
            fn expected() -> Cow<'static, str> {
                $expected.into()
            }

            fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
                match node.kind {
                    Kind::Table(_) => Decode::decode(node, faults).map(|table| $name::$long(Box::new(table))),
                    Kind::Scalar(_) => <$text>::decode(node, faults).map($name::$short),
                    _ => {
                        faults.push(mismatch(node, $expected));
                        None
                    }
                }
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let (short, long) = (generator.subschema_for::<$schema>(), generator.subschema_for::<$table>());
                json_schema!({ "anyOf": [short, long] })
            }
        }
    };
}

short_or_table!(
    ListenerText,
    "an address, as in 127.0.0.1:8080, or a table with `address`",
    Address(Text) as String,
    Table(ListenerTable)
);
short_or_table!(
    StoreText,
    "`memory`, or a table with `memory` or `redis`",
    Word(Text) as StoreWord,
    Table(StoreTable)
);
short_or_table!(
    KeyText,
    "the name of a descriptor, or a table with `address`",
    Name(Text) as String,
    Address(AddressTable)
);
short_or_table!(
    LeaseText,
    "`on`, `off`, or a table with `stock` or `ttl`",
    Word(Text) as LeaseWord,
    Table(LeaseTable)
);
short_or_table!(CostText, "a whole number, or a table with `from`", Fixed(u32) as u32, From(CostTable));

impl Decode for ConditionText {
    fn expected() -> Cow<'static, str> {
        "a value, a list of values, or a table with `exact`, `prefix`, `cidr` or `not`".into()
    }

    fn decode(node: &Node, faults: &mut Faults) -> Option<Self> {
        match &node.kind {
            Kind::Scalar(_) => Text::decode(node, faults).map(ConditionText::Text),
            Kind::Table(entries) if !entries.is_empty() => {
                Decode::decode(node, faults).map(|table| ConditionText::Table(Box::new(table)))
            }
            Kind::List(items) if !items.is_empty() => Vec::decode(node, faults).map(ConditionText::List),
            _ if node.is_empty() => {
                faults.push(
                    Fault::error("empty", "a condition that asks for nothing")
                        .at(node.span)
                        .label(format!("expected {}", Self::expected())),
                );
                None
            }
            _ => {
                faults.push(mismatch(node, &Self::expected()));
                None
            }
        }
    }
}

// === the schema ===

/// The one store that is said by a word.
#[derive(JsonSchema)]
#[schemars(inline)]
enum StoreWord {
    #[schemars(rename = "memory")]
    #[expect(dead_code, reason = "for the schema only")]
    Memory,
}

/// What is said of leases by a word.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "for the schema only")]
enum LeaseWord {
    #[schemars(rename = "on")]
    On,
    #[schemars(rename = "off")]
    Off,
}

impl JsonSchema for Match {
    fn schema_name() -> Cow<'static, str> {
        "Match".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Entries::<ConditionText>::json_schema(generator);
        schema.insert("description".into(), "Conditions on descriptors, all of which must hold.".into());
        schema
    }
}

impl JsonSchema for Quota {
    fn schema_name() -> Cow<'static, str> {
        "Quota".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "What may pass: an algorithm (a token bucket if none is named), a quota, and what else there is to choose.",
            "type": "string",
            "examples": [
                "100/s burst 200",
                "fixed_window 1000/day",
                "fixed_window 5/min from first hit",
                "sliding_window 100/min cells 10",
                "sliding_log 5/min",
                "stepped_bucket 20/min burst 50",
                "leaky_queue 10/s queue 5 max_wait 300ms",
                "20 at once lease 10s",
            ],
        })
    }
}

impl JsonSchema for ConditionText {
    fn schema_name() -> Cow<'static, str> {
        "Condition".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = generator.subschema_for::<Text>();
        let one = generator.subschema_for::<ConditionText>();
        let table = generator.subschema_for::<ConditionTable>();
        json_schema!({
            "description": "A value (`*` stands for any characters), a list of which one has to fit, or a table.",
            "anyOf": [text, { "type": "array", "items": one, "minItems": 1 }, table],
        })
    }
}
