//! # Encrypted connections
//!
//! Certificates live for weeks, and services for months. So the files are read again when they change, as the rules
//! are: who connects from then on sees the new certificate, and who is there stays. Files that cannot be used change
//! nothing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use super::reload::{Look, look};
use crate::config::command::in_time;
use crate::config::{Protocol, Tls};
use crate::log::Log;

/// What a door shows to those who come in, read again when it changes.
#[derive(Debug)]
pub struct Certificates {
    files: Tls,
    protocol: Protocol,
    config: ArcSwap<ServerConfig>,
    /// What the files looked like when they were last read, and at the last look.
    looks: Mutex<[Vec<Look>; 2]>,
}

/// Why certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    protocol: Protocol,
    path: PathBuf,
    why: String,
}

impl Certificates {
    /// Reads them, for a listener of this protocol.
    ///
    /// # Errors
    ///
    /// [`Unusable`] if a file cannot be read, holds something else, or the key is not that of the certificate.
    pub fn read(files: &Tls, protocol: Protocol) -> Result<Self, Unusable> {
        let seen = looks(files);
        let config = ArcSwap::from_pointee(config_in_time(files, protocol)?);
        Ok(Certificates { files: files.clone(), protocol, config, looks: Mutex::new([seen.clone(), seen]) })
    }

    /// Reads them again if they have changed and stayed so since the last look, or if somebody says so, and says what
    /// came of it.
    pub(crate) fn refresh(&self, is_told: bool, log: Log) {
        if !self.is_due(is_told) {
            return;
        }
        match self.anew() {
            Ok(anew) => self.put_in_force(anew, log),
            Err(unusable) => log.warn(format!("{unusable}; the certificate before it is in force")).say(),
        }
    }

    fn is_due(&self, is_told: bool) -> bool {
        let mut looks_before = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let [read, last] = &mut *looks_before;
        let seen = looks(&self.files);
        let is_due = is_told || (seen != *read && seen == *last);
        last.clone_from(&seen);
        if is_due {
            *read = seen;
        }
        is_due
    }

    /// Reads them again, and changes nothing yet.
    pub(super) fn anew(&self) -> Result<ServerConfig, Unusable> {
        let _ = self.is_due(true); // whatever comes of it, what is there now has been read
        config_in_time(&self.files, self.protocol)
    }

    /// Shows them to everybody who connects from now on.
    pub(super) fn put_in_force(&self, anew: ServerConfig, log: Log) {
        self.config.store(Arc::new(anew));
        let (path, protocol) = (self.files.cert.display().to_string(), self.protocol.name());
        let message = format!("the certificate {path} is in force");
        log.info(message).with("file", path).with("protocol", protocol).say();
    }

    /// Whether callers need a certificate, too.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

fn looks(files: &Tls) -> Vec<Look> {
    [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()]
        .into_iter()
        .flatten()
        .map(|path| look(path))
        .collect()
}

/// A path may lead to something that blocks whoever opens it.
fn config_in_time(files: &Tls, protocol: Protocol) -> Result<ServerConfig, Unusable> {
    let its = files.clone();
    in_time(move || Ok(config(&its, protocol))).unwrap_or_else(|error| {
        Err(Unusable {
            protocol,
            path: files.cert.clone(),
            why: format!("it, or a file beside it, cannot be read: {error}"),
        })
    })
}

fn config(files: &Tls, protocol: Protocol) -> Result<ServerConfig, Unusable> {
    let unusable = |path: &Path, why: String| Unusable { protocol, path: path.to_owned(), why };
    let certificates = certificates(&files.cert).map_err(|why| unusable(&files.cert, why))?;
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(|error| unusable(&files.key, reason(&error, "a private key")))?;
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable(&files.cert, error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for root in self::certificates(path).map_err(|why| unusable(path, why))? {
                roots.add(root).map_err(|error| unusable(path, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, error.to_string()))?)
        }
    };
    let config = builder.with_single_cert(certificates, key);
    let mut config = config.map_err(|error| unusable(&files.key, no_pair(&error, &files.cert)))?;
    config.alpn_protocols = match protocol {
        Protocol::Http | Protocol::Admin => vec![b"http/1.1".to_vec()],
        Protocol::Grpc => vec![b"h2".to_vec()],
        Protocol::Resp => Vec::new(),
    };
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err("there is no certificate in it".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(reason(&error, "a certificate")),
    }
}

fn no_pair(error: &rustls::Error, cert: &Path) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => format!("it is not the key of {}", cert.display()),
        _ => format!("it does not fit {}: {error}", cert.display()),
    }
}

fn reason(error: &pem::Error, wanted: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("there is not {wanted} in it"),
        pem::Error::Io(error) => error.to_string(),
        _ => format!("it is not {wanted} in PEM"),
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unusable { protocol, path, why } = self;
        let (protocol, path) = (protocol.name(), path.display());
        write!(
            f,
            "listeners.{protocol}.tls: {path} cannot be used: {why}; name files in PEM that can be read and belong together"
        )
    }
}

impl std::error::Error for Unusable {}
