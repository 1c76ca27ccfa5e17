//! Large messages.

use plimsoll::config::SettingFlags;
use plimsoll::service::proto::plimsoll::embed_client::EmbedClient;
use plimsoll::service::proto::plimsoll::{EmbedRequest, TokenIds, Truncate};
use plimsoll::units::Bytes;
use tonic::Code;

use crate::support::{SMALL, TestServer, row};

const MIB: usize = 1 << 20;

/// A request of about so many bytes: one text, most of which is cut off.
fn of_size(bytes: usize) -> EmbedRequest {
    let texts = vec!["web server ".repeat(bytes / 4 / 11); 4];
    EmbedRequest { model: "small".to_owned(), texts, truncate: Truncate::End.into(), ..EmbedRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_31_messages_pass_up_to_the_limit_and_the_connection_stays_usable() {
    let settings = SettingFlags { message_bytes_max: Some(Bytes::mib(4)), ..SettingFlags::default() };
    let server = TestServer::with(&[SMALL], settings).await;
    let mut client = EmbedClient::new(server.channel.clone());
    let response = client.embed(of_size(39 * MIB / 10)).await.unwrap().into_inner();
    assert_eq!(response.embeddings.len(), 4);
    for bytes in [41 * MIB / 10, 64 * MIB] {
        let status = client.embed(of_size(bytes)).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        assert!(status.message().contains("4.00 MiB"), "the limit is named: {}", status.message());
        server.assert_serves("small").await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_31_an_answer_above_the_limit_is_refused_before_it_costs_a_step() {
    let settings = SettingFlags {
        message_bytes_max: Some(Bytes::kib(64)),
        request_rows_max: Some(1_000),
        ..SettingFlags::default()
    };
    let server = TestServer::with(&[SMALL], settings).await;
    server.until_measured("small").await;
    let before = server.rows_run("small");
    let tokens = (0..1_000).map(|index| TokenIds { ids: row(index, 3) }).collect();
    let request = EmbedRequest { model: "small".to_owned(), tokens, ..EmbedRequest::default() };
    let status = EmbedClient::new(server.channel.clone()).embed(request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert!(status.message().contains("64.0 KiB"), "{}", status.message());
    assert_eq!(server.rows_run("small"), before);
    server.assert_serves("small").await;
    server.end().await;
}
