//! TLS: the server's certificate, and the authorities of its clients' where they have to have one.

use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};
use x509_parser::parse_x509_certificate;

use crate::service::kept::Kept;

/// What is spoken on a port, for the agreement on protocols within the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    Http,
}

/// The files, in PEM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsFiles<'a> {
    /// The server's certificate, and those between it and an authority.
    pub(crate) certificate: &'a Path,
    pub(crate) key: &'a Path,
    /// Authorities of clients: those without a certificate of theirs are turned away.
    pub(crate) client_authorities: Option<&'a Path>,
}

/// TLS 1.2 and 1.3 as the files say. A connection keeps what it was begun with; the next has what they say then.
#[derive(Debug)]
pub(crate) struct Tls(Kept<Acceptors>);

struct Acceptors {
    grpc: TlsAcceptor,
    http: TlsAcceptor,
    /// When the server's own certificate ends, in seconds since 1970, where that can be read.
    end: Option<i64>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file cannot be read, or is not what it should be.
    pub(crate) fn open(files: TlsFiles<'_>) -> Result<Tls, String> {
        let TlsFiles { certificate, key, client_authorities } = files;
        let all: Vec<&Path> = [certificate, key].into_iter().chain(client_authorities).collect();
        Ok(Tls(Kept::open(&all, |contents| {
            let chain = certificates(&contents[0], "the certificate")?;
            let end = chain.first().and_then(end);
            let config = config(chain, &contents[1], contents.get(2).map(Vec::as_slice))?;
            let acceptor = |protocols: &[&[u8]]| {
                let mut config = config.clone();
                config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
                TlsAcceptor::from(Arc::new(config))
            };
            Ok(Acceptors { grpc: acceptor(&[b"h2"]), http: acceptor(&[b"http/1.1"]), end })
        })?))
    }

    /// When the server's certificate ends, in seconds since 1970; `None` where it does not say so legibly.
    pub(crate) fn certificate_end(&self) -> Option<i64> {
        self.0.get().end
    }

    /// Reads the files again, if they have changed.
    pub(crate) fn refresh(&self) {
        self.0.refresh("certificates");
    }

    /// For the handshake of a new connection.
    pub(super) fn acceptor(&self, protocol: Protocol) -> TlsAcceptor {
        let acceptors = self.0.get();
        match protocol {
            Protocol::Grpc => acceptors.grpc.clone(),
            Protocol::Http => acceptors.http.clone(),
        }
    }
}

/// Nothing of the contents is told: one of them is a secret.
fn config(
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
    client_authorities: Option<&[u8]>,
) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|_| "there is no private key in PEM in the file of the key")?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(pem, "the clients' authorities")? {
                roots.add(authority).map_err(|error| format!("an authority of clients cannot be used: {error}"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
        }
    };
    builder.with_single_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(_) => "the certificate and the key do not belong together".to_owned(),
        other => format!("the certificate or the key cannot be used: {other}"),
    })
}

fn end(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("the file of {what} is not PEM, or is cut off"))?;
    if found.is_empty() { Err(format!("there is no certificate in PEM in the file of {what}")) } else { Ok(found) }
}
