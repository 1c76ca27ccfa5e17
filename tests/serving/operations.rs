//! What operators do to a server at work.

use plimsoll::engine::ModelState;
use plimsoll::service::proto::plimsoll::{
    Budget, LoadModelRequest, PinModelRequest, SetBudgetRequest, UnloadModelRequest,
};
use plimsoll::units::Bytes;
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::{Model, SMALL, TestServer, eager, embed, row, vectors};

const LONG: Model<'static> = ("long", "tiny-embed", "length_max = 256\nstep_tokens_max = 1024\n");

fn set_limit(model: &str, limit_bytes: u64, expected_revision: u64) -> SetBudgetRequest {
    let budget = Some(Budget { guaranteed_bytes: 0, limit_bytes });
    SetBudgetRequest { model: model.to_owned(), budget, expected_revision }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_22_a_budget_that_falls_leaves_nobody_waiting_for_ever() {
    let server = TestServer::start(&[LONG]).await;
    server.until_measured("long").await;
    let mut calls = JoinSet::new();
    for index in 0..8 {
        let rows = (0..16).map(|at| row(index * 16 + at, 250)).collect();
        calls.spawn(embed(server.channel.clone(), "long".to_owned(), rows));
    }
    server.until("long", |status| status.waiting_rows > 0).await;
    let limit = server.status("long").resident + Bytes::kib(400);
    let revision = server.status("long").revision;
    let changed = server.models().set_budget(set_limit("long", limit.get(), revision)).await.unwrap().into_inner();
    assert_eq!(changed.model.unwrap().revision, revision + 1);
    // Those that no longer fit are told so; those that do pass them.
    server.assert_serves("long").await;
    let mut refused = 0;
    for outcome in calls.join_all().await {
        match outcome {
            Ok(response) => assert_eq!(response.embeddings.len(), 16),
            Err(status) => {
                // Those that came after the change are told that they can never fit.
                let codes = [Code::ResourceExhausted, Code::InvalidArgument];
                assert!(codes.contains(&status.code()), "{status:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "the budget fell while they waited");
    let outdated = server.models().set_budget(set_limit("long", 0, revision)).await.unwrap_err();
    assert_eq!(outdated.code(), Code::Aborted, "{outdated:?}");
    let below = server.models().set_budget(set_limit("long", 4 << 20, 0)).await.unwrap().into_inner();
    assert!(!below.applied && below.overage_bytes > 0, "what it holds is above that: {below:?}");
    let freed = server.models().set_budget(set_limit("long", 0, 0)).await.unwrap().into_inner();
    assert!(freed.applied, "no limit");
    server.embed("long", &[row(0, 250)]).await.unwrap();
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_23_an_unload_under_load_crosses_nobody() {
    let server = TestServer::start(&[
        SMALL,
        ("other", "tiny-embed", "dtype = \"int8\"\nlength_max = 64\nstep_tokens_max = 256\n"),
    ])
    .await;
    let expected = vectors(server.embed("small", &[row(7, 40)]).await.unwrap());
    let mut calls = JoinSet::new();
    for _ in 0..60 {
        calls.spawn(embed(server.channel.clone(), "small".to_owned(), vec![row(7, 40); 4]));
    }
    server.until("small", |status| status.waiting_rows > 0).await;
    let unload = UnloadModelRequest { model: "small".to_owned() };
    let mut models = server.models();
    let unloading = tokio::spawn(async move { models.unload(unload).await });
    let mut served = 0;
    for outcome in calls.join_all().await {
        match outcome {
            Ok(response) => {
                let found = vectors(response);
                assert!(found.iter().all(|vector| crate::support::cosine(vector, &expected[0]) > 0.999_999));
                served += 1;
            }
            // Those that came after the unload had begun.
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
    }
    assert!(served > 0, "what was accepted is finished");
    let released = unloading.await.unwrap().unwrap().into_inner();
    assert!(released.released_bytes > 1 << 20, "{released:?}");
    assert_eq!(server.status("small").state, ModelState::NotLoaded);
    let refused = server.embed("small", &[row(7, 40)]).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    server.assert_serves("other").await;
    server.models().load(LoadModelRequest { model: "small".to_owned() }).await.unwrap();
    let again = vectors(server.embed("small", &[row(7, 40)]).await.unwrap());
    assert!(crate::support::cosine(&again[0], &expected[0]) > 0.999_999);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_9_models_make_room_for_one_another_and_pinned_ones_do_not() {
    let on_demand = "length_max = 64\nstep_tokens_max = 256\nload = \"on_demand\"\n";
    let models =
        [("one", "tiny-embed", on_demand), ("two", "tiny-embed", on_demand), ("three", "tiny-embed", on_demand)];
    // Each takes 13 to 14 MiB, so there is room for the weights of two.
    let server = TestServer::with(&models, eager(Bytes::mib(32))).await;
    for model in ["one", "two"] {
        server.assert_serves(model).await;
        server.until_measured(model).await;
    }
    server.models().pin(PinModelRequest { model: "one".to_owned(), pinned: true }).await.unwrap();
    server.assert_serves("three").await;
    assert_eq!(server.status("one").state, ModelState::Ready, "it was used longer ago, and is pinned");
    assert_eq!(server.status("two").state, ModelState::NotLoaded);
    server.until_measured("three").await;
    server.models().pin(PinModelRequest { model: "three".to_owned(), pinned: true }).await.unwrap();
    let full = server.embed("two", &[row(1, 5)]).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted, "{full:?}");
    assert!(full.message().contains("MiB"), "it says what is needed: {}", full.message());
    server.end().await;
}
