//! # A connection that is encrypted, to a service whose root is known

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::{NO_ADDRESS, NoAnswer};

/// Nothing is sent before the other side has shown a certificate of this root, for this host.
pub(super) fn encrypted(
    stream: TcpStream,
    host: &str,
    ca: &Path,
) -> Result<StreamOwned<ClientConnection, TcpStream>, NoAnswer> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let name = ServerName::try_from(name.to_owned()).map_err(|_| NoAnswer::Address(NO_ADDRESS))?;
    let mut connection = ClientConnection::new(Arc::new(trusting(ca)?), name)
        .map_err(|error| NoAnswer::Certificate(error.to_string()))?;
    let mut stream = stream;
    let shaken = connection.complete_io(&mut stream);
    shaken.map_err(|error| {
        let advice = "give the address of tidegate's HTTP with tls, and its root by --ca";
        NoAnswer::Certificate(format!("no encrypted connection ({error}); {advice}"))
    })?;
    Ok(StreamOwned::new(connection, stream))
}

fn trusting(ca: &Path) -> Result<ClientConfig, NoAnswer> {
    let unusable = |why: String| {
        NoAnswer::Certificate(format!("{} cannot be used: {why}; name a root in PEM by --ca", ca.display()))
    };
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(ca).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for root in read.map_err(|error| unusable(error.to_string()))? {
        roots.add(root).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("there is no certificate in it".to_owned()));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder =
        builder.with_safe_default_protocol_versions().map_err(|error| unusable(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
