//! Certificates of servers and clients, over real connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::secured::{Files, Secured, call_over};
use crate::service::{Security, SecurityFiles};
use crate::telemetry::Metrics;

const LIVE: &str = "/inference.GRPCInferenceService/ServerLive";

/// One that signs certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for localhost and its key, good to the end of the year `until`.
    fn sign(&self, until: i32) -> (String, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 12, 31);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn trusted(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.pem)).domain_name("localhost")
    }
}

async fn connect(address: SocketAddr, tls: ClientTlsConfig) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?.connect().await
}

/// Whether a call is answered.
async fn is_served(address: SocketAddr, tls: ClientTlsConfig) -> bool {
    match connect(address, tls).await {
        Ok(channel) => call_over(channel, LIVE, None).await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn calls_are_encrypted_and_certificates_can_be_replaced() {
    let (files, authority, next) = (Files::new(), Authority::new(), Authority::new());
    let (certificate, key) = authority.sign(4000);
    let certificate = files.write("certificate", &certificate);
    let key = files.write("key", &key);
    let files_of = || SecurityFiles { certificate: Some((&certificate, &key)), ..SecurityFiles::default() };
    let server = Secured::start(files_of()).await;
    for address in [server.grpc, server.admin] {
        assert!(is_served(address, authority.trusted()).await);
        assert!(!is_served(address, next.trusted()).await, "its authority is another one");
        let plain = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let answered = match plain.connect().await {
            Ok(channel) => call_over(channel, LIVE, None).await.is_ok(),
            Err(_) => false,
        };
        assert!(!answered, "nothing is answered in the clear");
    }
    let kept = connect(server.grpc, authority.trusted()).await.unwrap();

    let (new_certificate, new_key) = next.sign(4000);
    // Between the two the files do not belong together.
    files.write("key", &new_key);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(is_served(server.grpc, authority.trusted()).await);
    files.write("certificate", &new_certificate);
    for _ in 0..200 {
        if is_served(server.grpc, next.trusted()).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_served(server.grpc, next.trusted()).await);
    assert!(!is_served(server.grpc, authority.trusted()).await);
    assert!(call_over(kept, LIVE, None).await.is_ok(), "an open connection stays");
}

#[test]
fn the_end_of_the_certificate_is_told() {
    let (files, authority, metrics) = (Files::new(), Authority::new(), Metrics::new());
    let write = |until| {
        let (certificate, key) = authority.sign(until);
        (files.write("certificate", &certificate), files.write("key", &key))
    };
    let told = || metrics.encode().lines().find_map(|line| line.strip_prefix(SERIES)?.parse::<f64>().ok());
    const SERIES: &str = "plimsoll_tls_certificate_end_seconds ";
    let address = [127, 0, 0, 1].into();
    let _ = Security::open(address, SecurityFiles::default()).unwrap().with_metrics(&metrics);
    assert_eq!(told(), None, "there is none");
    // Seconds of `date --utc --date 2040-12-31 +%s`, and of 2060.
    let (certificate, key) = write(2040);
    let files_of = SecurityFiles { certificate: Some((&certificate, &key)), ..SecurityFiles::default() };
    let security = Security::open(address, files_of).unwrap().with_metrics(&metrics);
    assert_eq!(told(), Some(2_240_524_800.0));
    write(2060);
    security.look();
    assert_eq!(told(), Some(2_871_676_800.0));
    files.write("certificate", "none");
    security.look();
    assert_eq!(told(), Some(2_871_676_800.0), "it is still the one that is shown");
}

#[tokio::test]
async fn a_client_without_a_good_certificate_is_turned_away() {
    let (files, authority, clients) = (Files::new(), Authority::new(), Authority::new());
    let (certificate, key) = authority.sign(4000);
    let certificate = files.write("certificate", &certificate);
    let key = files.write("key", &key);
    let client_authorities = files.write("clients", &clients.pem);
    let server = Secured::start(SecurityFiles {
        certificate: Some((&certificate, &key)),
        client_authorities: Some(&client_authorities),
        ..SecurityFiles::default()
    })
    .await;
    let with =
        |(certificate, key): (String, String)| authority.trusted().identity(Identity::from_pem(certificate, key));
    assert!(is_served(server.grpc, with(clients.sign(4000))).await);
    assert!(!is_served(server.grpc, authority.trusted()).await, "it has none");
    assert!(!is_served(server.grpc, with(Authority::new().sign(4000))).await, "it is somebody else's");
    assert!(!is_served(server.grpc, with(clients.sign(2001))).await, "its time is over");
    assert!(is_served(server.grpc, with(clients.sign(4000))).await, "and others are served on");
}

/// The answer to a call over HTTP, with these versions of TLS.
async fn get(address: SocketAddr, authority: &Authority, versions: &[&'static SupportedProtocolVersion]) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // Not everybody says goodbye.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn http_is_encrypted_too_and_silent_connections_are_in_nobodys_way() {
    let (files, authority) = (Files::new(), Authority::new());
    let (certificate, key) = authority.sign(4000);
    let certificate = files.write("certificate", &certificate);
    let key = files.write("key", &key);
    let server =
        Secured::start(SecurityFiles { certificate: Some((&certificate, &key)), ..SecurityFiles::default() }).await;
    let mut silent = Vec::new();
    for address in [server.grpc, server.http] {
        for _ in 0..100 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
    }
    // One that says something else than hello.
    let mut confused = TcpStream::connect(server.http).await.unwrap();
    confused.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    for version in [&version::TLS12, &version::TLS13] {
        let answer = get(server.http, &authority, &[version]).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{version:?}: {answer}");
    }
    assert!(is_served(server.grpc, authority.trusted()).await);
    drop(silent);
}

#[test]
fn files_that_are_not_what_they_should_be_are_named_and_not_quoted() {
    let (files, authority) = (Files::new(), Authority::new());
    let ((certificate, key), (_, another_key)) = (authority.sign(4000), authority.sign(4000));
    let good = (files.write("certificate", &certificate), files.write("key", &key));
    let check = |name: &str, certificate: &str, key: &str, client_authorities: Option<&str>, expected: &str| {
        let certificate_text = certificate.to_owned();
        let certificate = files.write(&format!("{name}.certificate"), certificate);
        let key_file = files.write(&format!("{name}.key"), key);
        let clients = client_authorities.map(|text| files.write(&format!("{name}.clients"), text));
        let opened = Security::open(
            [127, 0, 0, 1].into(),
            SecurityFiles {
                certificate: Some((&certificate, &key_file)),
                client_authorities: clients.as_deref(),
                ..SecurityFiles::default()
            },
        );
        let problem = opened.expect_err(name).to_string();
        assert!(problem.contains(expected) && problem.contains(name), "{name}: {problem}");
        let secrets = [&certificate_text, key].into_iter().flat_map(|text| text.lines().filter(|line| line.len() > 20));
        assert!(!secrets.into_iter().any(|line| problem.contains(line)), "{name}: {problem}");
    };
    check("empty", "", &key, None, "no certificate in PEM");
    check("swapped", &key, &certificate, None, "no certificate in PEM");
    check("no-key", &certificate, &certificate, None, "no private key");
    check("another-key", &certificate, &another_key, None, "do not belong together");
    check("cut", &certificate[..certificate.len() / 2], &key, None, "not PEM, or is cut off");
    check("cut-key", &certificate, &key[..key.len() / 2], None, "no private key");
    check("clients", &certificate, &key, Some("-----"), "the clients' authorities");
    let files_of = SecurityFiles { certificate: Some((&good.0, &good.1)), ..SecurityFiles::default() };
    assert!(Security::open([127, 0, 0, 1].into(), files_of).is_ok());
}
