//! # Where the service listens
//!
//! Nobody but this machine is let in unless somebody says so: a listener that is not named listens on the loopback
//! address. The one for administration changes limits, so it is never open to others without credentials.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::Reading;
use super::decode::{OneOrMany, Text};
use super::fault::Fault;
use super::file::{AuthTable, HeadersWord, ListenerTable, ListenerText, Listeners, TlsTable};
use super::flags::Given;
use super::secret::Secret;
use super::show::Origin;
use super::source::{At, Span};
use crate::grpc::Headers;

/// One place where the service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What is spoken there.
    pub protocol: Protocol,
    /// Where it is.
    pub address: Address,
    /// Encryption.
    pub tls: Option<Tls>,
    /// What callers have to know.
    pub auth: Option<Auth>,
    /// What Envoy's clients are told in headers.
    pub headers: Headers,
    /// Names of this machine that clients may use without a token, beside those of loopback.
    pub hosts: Vec<String>,
}

/// What is spoken at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP with JSON.
    Http,
    /// Envoy's rate limit service.
    Grpc,
    /// The Redis protocol.
    Resp,
    /// Administration, over HTTP.
    Admin,
}

/// Where a listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port. Port 0 is any that is free.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The files for encrypted connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs the certificates of callers, if they need one.
    pub client_ca: Option<PathBuf>,
}

/// What callers have to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Sent with each request, as `Authorization: Bearer …`.
    Token {
        /// The token.
        token: Secret,
        /// Another, which lets callers reset keys, too.
        change: Option<Secret>,
    },
    /// Sent by `AUTH`.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
        /// Another, which lets callers reset keys, too.
        change: Option<Secret>,
    },
}

/// What stands for no listener at all.
const OFF: &str = "off";

// === impl Protocol ===

impl Protocol {
    /// Each of them.
    pub const ALL: [Protocol; 4] = [Protocol::Http, Protocol::Grpc, Protocol::Resp, Protocol::Admin];

    /// Its name in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
            Protocol::Resp => "resp",
            Protocol::Admin => "admin",
        }
    }

    /// The port it has if nobody says otherwise.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Protocol::Http => 8080,
            Protocol::Grpc => 8081,
            Protocol::Resp => 6380,
            Protocol::Admin => 9090,
        }
    }

    fn of(self, listeners: &Listeners) -> Option<&OneOrMany<ListenerText>> {
        match self {
            Protocol::Http => listeners.http.as_ref(),
            Protocol::Grpc => listeners.grpc.as_ref(),
            Protocol::Resp => listeners.resp.as_ref(),
            Protocol::Admin => listeners.admin.as_ref(),
        }
    }

    fn default_address(self) -> Address {
        Address::Tcp((Ipv4Addr::LOCALHOST, self.port()).into())
    }
}

// === impl Address ===

impl Address {
    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
        }
    }

    /// What a text says, or what it should have said.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("name the socket: `unix:/run/tidegate.sock`".into()),
                path => Ok(Address::Unix(path.into())),
            };
        }
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        numeric.parse().map(Address::Tcp).map_err(|_| advice(text))
    }

    /// Whether nobody can listen at both.
    fn collides_with(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Unix(one), Address::Unix(other)) => one == other,
            (Address::Tcp(one), Address::Tcp(other)) => {
                let (ip, other_ip) = (one.ip().to_canonical(), other.ip().to_canonical());
                let same = ip == other_ip || is_everywhere(ip) || is_everywhere(other_ip);
                same && one.port() == other.port() && one.port() != 0
            }
            _ => false,
        }
    }
}

fn is_everywhere(ip: IpAddr) -> bool {
    ip.is_unspecified()
}

fn advice(text: &str) -> String {
    let port = text.trim_start_matches(':').trim_start_matches("*:");
    if port.parse::<u16>().is_ok() {
        return format!("write `127.0.0.1:{port}` for this machine only, `0.0.0.0:{port}` for everybody");
    }
    if text.parse::<IpAddr>().is_ok() {
        return format!("add a port: `{text}:8080`");
    }
    if text.starts_with('/') {
        return format!("write `unix:{text}` for a socket");
    }
    "write an address and a port, as in `127.0.0.1:8080`, or `unix:/run/tidegate.sock`".into()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === what the file says of them ===

/// A listener, and where it was written.
type Placed = (Listener, Option<Span>);

impl Reading<'_> {
    pub(super) fn listeners(&mut self, file: Option<&Listeners>, given: &Given) -> Vec<Listener> {
        let mut all: Vec<Placed> = Vec::new();
        for protocol in Protocol::ALL {
            let texts = file.and_then(|file| protocol.of(file));
            let mut some = match texts {
                Some(OneOrMany(texts)) => self.listed(protocol, texts),
                None => vec![(Listener::plain(protocol, protocol.default_address()), None)],
            };
            let origin = self.given_address(protocol, given, &mut some);
            self.show_listeners(protocol, texts, &some, origin);
            all.extend(some);
        }
        self.check_collisions(&all);
        self.check_admin(&all);
        if all.is_empty() && !given.has_socket {
            let fault = Fault::error("no-listener", "every listener is off, so nobody could ask anything");
            self.fault(fault.help("leave one of them on"));
        }
        all.into_iter().map(|(listener, _)| listener).collect()
    }

    fn listed(&mut self, protocol: Protocol, texts: &[ListenerText]) -> Vec<Placed> {
        if let [ListenerText::Address(text)] = texts
            && text.value == OFF
        {
            return Vec::new();
        }
        texts.iter().filter_map(|text| self.listener(protocol, text)).collect()
    }

    fn listener(&mut self, protocol: Protocol, text: &ListenerText) -> Option<Placed> {
        let (address, tls, auth, headers, hosts) = match text {
            ListenerText::Address(text) => (text, None, None, None, None),
            ListenerText::Table(table) => {
                let ListenerTable { address, tls, auth, headers, hosts } = &**table;
                (address, tls.as_ref(), auth.as_ref(), headers.as_ref(), hosts.as_ref())
            }
        };
        let hosts = hosts.map_or_else(Vec::new, |hosts| self.hosts(protocol, hosts));
        let headers = headers.map_or(Headers::None, |headers| self.headers(protocol, headers));
        let auth = auth.and_then(|auth| self.auth(protocol, auth));
        let tls = tls.map(Tls::of);
        let place = Some(address.span);
        let address = self.address(address)?;
        Some((Listener { protocol, address, tls, auth, headers, hosts }, place))
    }

    fn address(&mut self, text: &Text) -> Option<Address> {
        Address::parse(&text.value)
            .map_err(|help| {
                let help = if text.variables.is_empty() { help } else { advice("") };
                self.fault(
                    Fault::error("address", format!("`{}` is no address to listen at", text.shown()))
                        .at(text.span)
                        .label("expected an address and a port")
                        .help(help),
                );
            })
            .ok()
    }

    fn headers(&mut self, protocol: Protocol, headers: &At<HeadersWord>) -> Headers {
        if protocol != Protocol::Grpc {
            let name = protocol.name();
            let fault = Fault::error("headers", format!("{name} tells nobody in headers what is left"));
            self.fault(fault.at(headers.span).label("only grpc does").help("remove `headers`"));
        }
        headers.value.into()
    }

    fn hosts(&mut self, protocol: Protocol, hosts: &At<Vec<Text>>) -> Vec<String> {
        if !matches!(protocol, Protocol::Http | Protocol::Admin) {
            let fault = Fault::error("hosts", format!("{} does not look at names of hosts", protocol.name()));
            self.fault(fault.at(hosts.span).label("only http and admin do").help("remove `hosts`"));
        }
        for host in hosts.value.iter().filter(|host| !is_host(&host.value)) {
            let fault =
                Fault::error("hosts", format!("`{}` is no name of a host", host.shown())).at(host.span);
            self.fault(
                fault.label("expected a name or an address, without a port").help("write `limits.internal`"),
            );
        }
        hosts.value.iter().map(|host| host.value.clone()).collect()
    }

    fn auth(&mut self, protocol: Protocol, auth: &At<AuthTable>) -> Option<Auth> {
        let AuthTable { token, change_token, password, change_password, user } = &auth.value;
        let secrets = [token, change_token, password, change_password, user].map(Option::as_ref);
        for text in secrets.into_iter().flatten().filter(|text| text.value.is_empty()) {
            self.fault(
                Fault::error("auth", "a secret that is empty keeps nobody out")
                    .at(text.span)
                    .label("expected a text"),
            );
        }
        let secret = |text: &Text| Secret::new(&text.value);
        let change = change_token.as_ref().or(change_password.as_ref()).map(secret);
        match (protocol, token, password) {
            (Protocol::Resp, None, Some(password)) if change_token.is_none() => {
                let user = user.as_ref().map_or("default", |user| &user.value).to_owned();
                Some(Auth::Password { user, password: secret(password), change })
            }
            (Protocol::Http | Protocol::Grpc | Protocol::Admin, Some(token), None)
                if user.is_none()
                    && change_password.is_none()
                    && (change.is_none() || protocol == Protocol::Http) =>
            {
                Some(Auth::Token { token: secret(token), change })
            }
            _ => {
                self.fault(wrong_auth(protocol, auth.span));
                None
            }
        }
    }

    /// What a flag or the environment says, which is stronger than the file.
    fn given_address(&mut self, protocol: Protocol, given: &Given, some: &mut Vec<Placed>) -> Option<Origin> {
        let (text, origin) = given.address(protocol)?;
        if text == OFF {
            some.clear();
            return Some(origin.clone());
        }
        match Address::parse(text) {
            Ok(address) => {
                some.truncate(1);
                match some.first_mut() {
                    Some((first, place)) => (first.address, *place) = (address, None),
                    None => some.push((Listener::plain(protocol, address), None)),
                }
            }
            Err(help) => {
                let message = format!("`{text}` ({origin}) is no address to listen at");
                self.fault(Fault::error("address", message).help(help));
            }
        }
        Some(origin.clone())
    }

    fn check_collisions(&mut self, all: &[Placed]) {
        for (index, (one, place)) in all.iter().enumerate() {
            let Some((other, first)) =
                all[..index].iter().find(|(other, _)| one.address.collides_with(&other.address))
            else {
                continue;
            };
            self.fault(collision((one, *place), (other, *first)));
        }
    }

    fn check_admin(&mut self, all: &[Placed]) {
        let open = |listener: &Listener| {
            let mutual = listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
            listener.protocol == Protocol::Admin
                && !listener.address.is_local()
                && listener.auth.is_none()
                && !mutual
        };
        for (listener, place) in all.iter().filter(|(listener, _)| open(listener)) {
            let fault = Fault::error(
                "admin-open",
                format!("admin at {} would let anybody change the limits", listener.address),
            )
            .label("reachable from other machines, without credentials")
            .help("listen at 127.0.0.1, or add `auth: {token: \"${ADMIN_TOKEN}\"}`");
            self.fault(match place {
                Some(place) => fault.at(*place),
                None => fault,
            });
        }
    }

    fn show_listeners(
        &mut self,
        protocol: Protocol,
        texts: Option<&OneOrMany<ListenerText>>,
        some: &[Placed],
        given: Option<Origin>,
    ) {
        let name = protocol.name();
        let first = texts.and_then(|texts| texts.0.first()).map(ListenerText::address_text);
        let origin = |text: Option<&Text>, reading: &Self| match (&given, text) {
            (Some(origin), _) => origin.clone(),
            (None, Some(text)) => reading.origin(text.span, &text.variables),
            (None, None) => Origin::Default,
        };
        if some.is_empty() {
            let origin = origin(first, self);
            self.show(format!("listeners.{name}"), OFF, origin);
        }
        for (index, (listener, _)) in some.iter().enumerate() {
            let at = if some.len() > 1 { format!("[{index}]") } else { String::new() };
            let text = texts.and_then(|texts| texts.0.get(index));
            let origin = origin(text.map(ListenerText::address_text), self);
            self.show(format!("listeners.{name}{at}.address"), listener.address.to_string(), origin);
            if let Some(ListenerText::Table(table)) = text {
                self.show_safety(&format!("listeners.{name}{at}"), table.tls.as_ref(), table.auth.as_ref());
                if let Some(headers) = &table.headers {
                    let origin = self.origin(headers.span, &[]);
                    self.show(format!("listeners.{name}{at}.headers"), headers.value.word(), origin);
                }
                if let Some(hosts) = &table.hosts {
                    let origin = self.origin(hosts.span, &[]);
                    self.show(format!("listeners.{name}{at}.hosts"), listener.hosts.join(", "), origin);
                }
            }
        }
    }

    fn show_safety(&mut self, path: &str, tls: Option<&TlsTable>, auth: Option<&At<AuthTable>>) {
        if let Some(TlsTable { cert, key, client_ca }) = tls {
            self.show_text(format!("{path}.tls.cert"), &cert.value, cert);
            self.show_text(format!("{path}.tls.key"), &key.value, key);
            if let Some(ca) = client_ca {
                self.show_text(format!("{path}.tls.client_ca"), &ca.value, ca);
            }
        }
        let Some(At { value: AuthTable { token, change_token, password, change_password, user }, .. }) = auth
        else {
            return;
        };
        let secrets = [
            ("token", token),
            ("change_token", change_token),
            ("password", password),
            ("change_password", change_password),
        ];
        for (name, secret) in secrets {
            if let Some(secret) = secret {
                self.show_text(format!("{path}.auth.{name}"), "(secret)", secret);
            }
        }
        if let Some(user) = user {
            self.show_text(format!("{path}.auth.user"), &user.value, user);
        }
    }
}

fn collision((one, place): (&Listener, Option<Span>), (other, first): (&Listener, Option<Span>)) -> Fault {
    let (protocol, earlier) = (one.protocol.name(), other.protocol.name());
    let fault = Fault::error(
        "address-twice",
        format!("{protocol} cannot listen at {}: {earlier} listens at {}", one.address, other.address),
    );
    match (place, first) {
        (Some(place), Some(first)) => fault.at(place).label("already taken").beside(first, "taken here"),
        (Some(place), None) => fault.at(place).label(usual(earlier)).help(switch_off(earlier)),
        (None, Some(first)) => fault.at(first).label(usual(protocol)).help(switch_off(protocol)),
        (None, None) => fault.help("give one of them another port"),
    }
}

fn usual(name: &str) -> String {
    format!("{name} is not named and listens here")
}

fn switch_off(name: &str) -> String {
    format!("take another port, or add `{name}: off`")
}

/// A name or an address as it stands in the header `Host`, without a port.
fn is_host(text: &str) -> bool {
    let is_bracketed = text.starts_with('[') && text.ends_with(']');
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !text.is_empty() && (is_bracketed || text.bytes().all(is_name))
}

fn wrong_auth(protocol: Protocol, span: Span) -> Fault {
    let (expected, help) = match protocol {
        Protocol::Resp => {
            ("`password`, and perhaps `change_password` and `user`", "auth: {password: \"${RESP_PASSWORD}\"}")
        }
        Protocol::Http => ("`token`, and perhaps `change_token`", "auth: {token: \"${TOKEN}\"}"),
        _ => ("`token`", "auth: {token: \"${TOKEN}\"}"),
    };
    let name = protocol.name();
    Fault::error("auth", format!("{name} cannot ask its callers for this"))
        .at(span)
        .label(format!("expected {expected}"))
        .help(format!("write `{help}`"))
}

impl ListenerText {
    fn address_text(&self) -> &Text {
        match self {
            ListenerText::Address(text) => text,
            ListenerText::Table(table) => &table.address,
        }
    }
}

impl From<HeadersWord> for Headers {
    fn from(word: HeadersWord) -> Self {
        match word {
            HeadersWord::None => Headers::None,
            HeadersWord::RateLimit => Headers::RateLimit,
        }
    }
}

impl Listener {
    fn plain(protocol: Protocol, address: Address) -> Self {
        Listener { protocol, address, tls: None, auth: None, headers: Headers::None, hosts: Vec::new() }
    }
}

impl Tls {
    fn of(table: &TlsTable) -> Self {
        let client_ca = table.client_ca.as_ref().map(|ca| ca.value.clone().into());
        Tls { cert: table.cert.value.clone().into(), key: table.key.value.clone().into(), client_ca }
    }
}
