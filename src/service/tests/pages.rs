//! Web pages that call a server on the machine of whoever looks at them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::TestServer;

const INFO: &str = "/models/embed/info";
const UNLOAD: &str = "/v2/repository/models/embed/unload";

/// The first line of the answer to a call with these headers, and what follows.
async fn ask(server: &TestServer, method: &str, path: &str, headers: &[&str]) -> String {
    let mut stream = TcpStream::connect(server.http).await.unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn programs_call_and_pages_of_elsewhere_do_not() {
    let server = TestServer::start().await;
    let here = format!("host: {}", server.http);
    let own = format!("origin: http://{}", server.http);
    for (method, path) in [("GET", INFO), ("POST", UNLOAD)] {
        for headers in [&[here.as_str()][..], &[&here, &own], &["host: localhost"]] {
            let answer = ask(&server, method, path, headers).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path} {headers:?}: {answer}");
        }
        for origin in ["origin: http://evil.invalid", "origin: null", "origin: http://127.0.0.1:1"] {
            let answer = ask(&server, method, path, &[&here, origin, "content-type: text/plain"]).await;
            assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("--cors-origins"), "{path}: {answer}");
        }
    }
    // A name of elsewhere that leads here.
    let rebound = ["host: evil.invalid:8000", "origin: http://evil.invalid:8000"];
    let answer = ask(&server, "POST", UNLOAD, &rebound).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("localhost"), "{answer}");
    let answer = ask(&server, "POST", UNLOAD, &[&here, "sec-fetch-site: cross-site"]).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}
