//! Who may call, and how calls are encrypted: what the services are given to keep.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::access::Access;
use super::transport::{Tls, TlsFiles};
use crate::config::Origins;
use crate::telemetry::Metrics;

/// How often the files are looked at. They are small, and whoever replaces one keeps the old one good for longer.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A file of certificates, keys or tokens cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecurityError(String);

/// The files that say who may call. None of them: anybody who reaches the server, as far as [`Security`] allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct SecurityFiles<'a> {
    /// Bearer tokens of callers, one a line.
    pub tokens: Option<&'a Path>,
    /// Bearer tokens of administrators.
    pub admin_tokens: Option<&'a Path>,
    /// The server's certificate and its private key, in PEM.
    pub certificate: Option<(&'a Path, &'a Path)>,
    /// Certificates in PEM of those who sign clients' ones.
    pub client_authorities: Option<&'a Path>,
}

/// Who may call, and how calls are encrypted. Without tokens of administration, calls of administration are refused unless
/// the server is reached from its own machine alone, or they come in at their own address.
#[derive(Clone, Debug)]
pub struct Security {
    pub(super) access: Arc<Access>,
    pub(super) tls: Option<Arc<Tls>>,
    /// Whether clients need a certificate.
    knows_clients: bool,
    /// Pages that may call over HTTP.
    pub(super) origins: Origins,
    /// Where the end of the certificate is told.
    metrics: Option<Metrics>,
}

impl Security {
    /// Reads the files. `address` is where the server listens.
    ///
    /// # Errors
    /// Which file cannot be used, and why; nothing secret.
    pub fn open(address: IpAddr, files: SecurityFiles<'_>) -> Result<Security, SecurityError> {
        let SecurityFiles { tokens, admin_tokens, certificate, client_authorities } = files;
        let access = Access::open(address, tokens, admin_tokens).map_err(SecurityError)?;
        let open = |(certificate, key)| Tls::open(TlsFiles { certificate, key, client_authorities });
        let tls = certificate.map(open).transpose().map_err(SecurityError)?;
        Ok(Security {
            access: Arc::new(access),
            tls: tls.map(Arc::new),
            knows_clients: client_authorities.is_some(),
            origins: Origins::None,
            metrics: None,
        })
    }

    /// The same with pages of these origins allowed to call over HTTP.
    #[must_use]
    pub fn with_origins(self, origins: Origins) -> Security {
        Security { origins, ..self }
    }

    /// The same, which tells in these metrics when its certificate ends.
    #[must_use]
    pub fn with_metrics(self, metrics: &Metrics) -> Security {
        let told = Security { metrics: Some(metrics.clone()), ..self };
        told.tell();
        told
    }

    fn tell(&self) {
        let end = self.tls.as_ref().and_then(|tls| tls.certificate_end());
        if let (Some(metrics), Some(end)) = (&self.metrics, end) {
            metrics.certificate_end(end);
        }
    }

    /// What an operator should know about a server that listens at `address`, and at `admin` for administration.
    pub fn warnings(&self, address: IpAddr, admin: Option<IpAddr>) -> Vec<&'static str> {
        let (asks, encrypts) = (self.access.asks_for_tokens(), self.tls.is_some());
        let has_admin_tokens = self.access.asks_for_admin_tokens();
        let mut warnings = Vec::new();
        if !address.is_loopback() && !asks && !self.knows_clients {
            warnings.push("anybody who reaches the address may call: name a file of tokens (--token-file)");
        }
        if !address.is_loopback() && asks && !encrypts {
            warnings.push("tokens and texts cross the network as they are: name a certificate (--tls-cert, --tls-key)");
        }
        if !address.is_loopback() && !has_admin_tokens && admin.is_none() {
            warnings.push(
                "calls of administration are refused: to allow them name a file of tokens for them (--admin-token-file) \
                 or an address of their own (--admin-address)",
            );
        }
        if address.is_loopback() && asks && !has_admin_tokens {
            warnings.push(
                "every token is good for administration, also where a proxy lets others in: name a file of tokens for \
                 that (--admin-token-file)",
            );
        }
        if admin.is_some_and(|admin| !admin.is_loopback()) && !has_admin_tokens && !self.knows_clients {
            warnings.push(
                "anybody who reaches the address of administration may load, unload and look: name a file of tokens for \
                 that (--admin-token-file)",
            );
        }
        warnings
    }

    /// Reads the files again that have changed. Blocks.
    pub(super) fn look(&self) {
        self.access.refresh();
        if let Some(tls) = &self.tls {
            tls.refresh();
        }
        self.tell();
    }

    /// Reads files again when they change, for ever.
    pub(super) async fn follow(self) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let looking = self.clone();
            let looked = tokio::task::spawn_blocking(move || looking.look());
            // It does not panic; and if it did, the next look may be better.
            let _ = looked.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "abcdefghijklmnop").unwrap();
        let (here, anywhere) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0]));
        let check = |address, admin, tokens: bool, admin_tokens: bool, expected: &[&str]| {
            let files = SecurityFiles {
                tokens: tokens.then_some(file.as_path()),
                admin_tokens: admin_tokens.then_some(file.as_path()),
                ..SecurityFiles::default()
            };
            let warnings = Security::open(address, files).unwrap().warnings(address, admin);
            assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
            for (warning, part) in warnings.iter().zip(expected) {
                assert!(warning.contains(part), "{warning}");
            }
        };
        check(here, None, false, false, &[]);
        check(here, Some(here), false, true, &[]);
        check(here, None, true, false, &["every token is good"]);
        check(here, Some(anywhere), false, false, &["the address of administration"]);
        check(anywhere, None, false, false, &["anybody who reaches the address may call", "are refused"]);
        check(anywhere, Some(here), true, false, &["as they are"]);
        check(anywhere, Some(anywhere), false, true, &["anybody who reaches the address may call"]);
    }
}
