//! Asking a server for its metrics and whether it is ready.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use ureq::Agent;
use ureq::http::header::AUTHORIZATION;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::names;
use super::samples::Samples;
use super::view::Condition;
use crate::cli::bench::connect::{CredentialArgs, read};

/// A server that accepts and says nothing is not well.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer that is read; a model's series take some 20 KiB.
const ANSWER_MAX: u64 = 64 << 20;

/// A way to one server. Connections are kept between answers.
pub(super) struct Target {
    agent: Agent,
    root: String,
    authorization: Option<String>,
}

/// What a server said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) samples: Samples,
    /// Ready or not, as the server sees it.
    pub(super) condition: Condition,
}

impl Target {
    /// The way to `address` (`host:port`), by what it asks of its callers. Nobody is called yet.
    ///
    /// # Errors
    /// A file that is not what it should be.
    pub(super) fn new(address: &str, credentials: &CredentialArgs) -> anyhow::Result<Target> {
        let mut config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            // Like the other commands: what is asked is near, whatever the environment says of the world outside.
            .proxy(None);
        if let Some(authorities) = &credentials.tls_ca {
            let roots = RootCerts::from(certificates(authorities)?);
            let mut tls = TlsConfig::builder().root_certs(roots);
            if let (Some(chain), Some(key)) = (&credentials.tls_cert, &credentials.tls_key) {
                let chain = certificates(chain)?;
                let key = PrivateKey::from_pem(&read(key)?).with_context(|| format!("{} has no key", key.display()))?;
                tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
            }
            config = config.tls_config(tls.build());
        }
        let scheme = if credentials.tls_ca.is_some() { "https" } else { "http" };
        Ok(Target {
            agent: config.build().new_agent(),
            root: format!("{scheme}://{address}"),
            authorization: credentials.bearer()?,
        })
    }

    /// Asks once.
    ///
    /// # Errors
    /// It does not answer within 5 s, does not let us in, or is something else.
    pub(super) fn ask(&self) -> anyhow::Result<Answer> {
        let (status, text) = self.get("/metrics")?;
        if status != 200 {
            bail!("its metrics answer {status}: {}", text.lines().next().unwrap_or_default());
        }
        let samples = Samples::parse(&text, names::is_read);
        if samples.of(names::BUILD_INFO, &[]).next().is_none() {
            bail!("what answers there is not Plimsoll");
        }
        let (status, reason) = self.get("/health/ready")?;
        let condition = match status {
            200 => Condition::Ready,
            _ => Condition::NotReady(reason.trim().to_owned()),
        };
        Ok(Answer { samples, condition })
    }

    fn get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let mut request = self.agent.get(format!("{}{path}", self.root));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let mut answer = request.call()?;
        let body = answer.body_mut().with_config().limit(ANSWER_MAX).lossy_utf8(true).read_to_string()?;
        Ok((answer.status().as_u16(), body))
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let pem = read(path)?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| format!("{} is not PEM", path.display()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        bail!("{} has no certificate", path.display());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// What comes of asking somebody who gives these answers, one a connection.
    fn asked(answers: &'static [&'static str]) -> anyhow::Result<Answer> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let target = Target::new(&listener.local_addr()?.to_string(), &CredentialArgs::default())?;
        let answering = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("somebody asks");
                let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
                assert!(head.count() > 0);
                stream.write_all(answer.as_bytes()).expect("somebody listens");
            }
        });
        let found = target.ask();
        answering.join().expect("it answers");
        found
    }

    const METRICS: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nplimsoll_build_info{version=\"1\"} 1\nother 2\n";

    #[test]
    fn an_answer_is_the_metrics_that_are_read_and_the_servers_word() {
        let found = asked(&[METRICS, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok\n"]).expect("it answers");
        assert_eq!(found.condition, Condition::Ready);
        assert_eq!(found.samples.iter().count(), 1);
        let found = asked(&[METRICS, "HTTP/1.1 503 Busy\r\nconnection: close\r\n\r\na is being loaded\n"]);
        assert_eq!(found.expect("it answers").condition, Condition::NotReady("a is being loaded".to_owned()));
    }

    #[test]
    fn what_is_no_answer_says_why() {
        let check = |answer: &'static [&'static str], part: &str| {
            let error = format!("{:#}", asked(answer).expect_err("it is no answer"));
            assert!(error.contains(part), "{error}");
        };
        check(&["HTTP/1.1 401 No\r\ncontent-length: 8\r\n\r\na token?"], "answer 401: a token?");
        check(&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nup 1\n"], "not Plimsoll");
        check(&["SSH-2.0-OpenSSH\r\n"], "");
        let nobody = Target::new("127.0.0.1:1", &CredentialArgs::default()).expect("an address");
        assert!(nobody.ask().is_err());
    }
}
