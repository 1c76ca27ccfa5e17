//! Connections to a server, encrypted and with a token where it asks for them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

/// How long a server may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a server asks of who calls it.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CredentialArgs {
    /// File of the bearer token that every call has.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File of certificates in PEM of those who sign the server's: calls are encrypted.
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// File of the caller's own certificate in PEM.
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// File of its private key in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// A connection whose calls carry the token.
pub(in crate::cli) type Connection = InterceptedService<Channel, Token>;

/// The header of every call, if it has one.
#[derive(Clone)]
pub(in crate::cli) struct Token(Option<MetadataValue<Ascii>>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

impl CredentialArgs {
    /// Connects to `address` (`host:port`).
    ///
    /// # Errors
    /// An address that cannot be parsed, a file that is not what it should be, or a server that does not accept.
    pub(in crate::cli) async fn connect(&self, address: &str) -> anyhow::Result<Connection> {
        let scheme = if self.tls_ca.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .with_context(|| format!("--address '{address}' is not HOST:PORT"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        if let Some(authorities) = &self.tls_ca {
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(authorities)?));
            if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
                tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            endpoint = endpoint.tls_config(tls).context("the certificates cannot be used")?;
        }
        let token = match self.bearer()? {
            Some(header) => Some(header.parse().context("the token cannot be sent in a header")?),
            None => None,
        };
        let channel = endpoint.connect().await.with_context(|| format!("no gRPC server answers at {address}"))?;
        Ok(InterceptedService::new(channel, Token(token)))
    }

    /// The header `authorization`, where there is a token.
    ///
    /// # Errors
    /// A file that has none.
    pub(in crate::cli) fn bearer(&self) -> anyhow::Result<Option<String>> {
        self.token_file.as_deref().map(bearer).transpose()
    }
}

/// The first token of a file, which may be the server's own.
fn bearer(path: &Path) -> anyhow::Result<String> {
    let text = String::from_utf8(read(path)?).with_context(|| format!("{} is not text", path.display()))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(token) = lines.next().and_then(|line| line.split_ascii_whitespace().next()) else {
        bail!("{} has no token", path.display());
    };
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("the token in {} cannot be sent in a header", path.display());
    }
    Ok(format!("Bearer {token}"))
}

/// Reads a file, whose name is in the error.
pub(in crate::cli) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
}
