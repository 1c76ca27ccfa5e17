//! A server that is told to go.

use plimsoll::service::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{SMALL, TestServer, embed, row, token_request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_24_health_goes_first_and_accepted_work_finishes() {
    let on_demand = ("later", "tiny-rerank", "load = \"on_demand\"\nlength_max = 64\nstep_tokens_max = 256\n");
    let mut server = TestServer::start(&[SMALL, on_demand]).await;
    let mut watch = HealthClient::new(server.channel.clone())
        .watch(HealthCheckRequest { service: String::new() })
        .await
        .unwrap()
        .into_inner();
    // The watch follows the engine, which the test has seen ready, a moment later.
    while watch.next().await.unwrap().unwrap().status() != ServingStatus::Serving {}
    let mut calls = JoinSet::new();
    for index in 0..10 {
        let rows = (0..50).map(|at| row(index * 50 + at, 60)).collect();
        calls.spawn(embed(server.channel.clone(), "small".to_owned(), rows));
    }
    server.until("small", |status| status.waiting_rows > 200).await;
    server.shut_down();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    for outcome in calls.join_all().await {
        assert_eq!(outcome.expect("what was accepted is finished").embeddings.len(), 50);
    }
    // Whoever comes now gets through, or learns that the server is going: never that the model is unknown.
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
    if let Err(status) = client.model_infer(token_request("small", "1", &[row(1, 5)])).await {
        assert!([Code::Unavailable, Code::Cancelled, Code::Unknown].contains(&status.code()), "{status:?}");
    }
    drop((watch, client));
    let endpoint = server.endpoint.clone();
    let ended = server.end().await;
    assert_eq!(ended.drained.unfinished_calls, 0);
    assert!(!ended.device_lost);
    assert!(endpoint.connect().await.is_err(), "the port is closed");
}
