//! `plimsoll.v1`: typed calls and the control plane.

use tonic::Code;

use super::fake::{DIMENSIONS, LABELS, vector};
use super::harness::{TestServer, assert_told};
use crate::model::TokenRow;
use crate::scheduler::Priority;
use crate::service::proto::plimsoll::classify_client::ClassifyClient;
use crate::service::proto::plimsoll::embed_client::EmbedClient;
use crate::service::proto::plimsoll::memory_client::MemoryClient;
use crate::service::proto::plimsoll::models_client::ModelsClient;
use crate::service::proto::plimsoll::rerank_client::RerankClient;
use crate::service::proto::plimsoll::*;
use crate::service::results;

fn row(ids: &[u32]) -> TokenRow {
    TokenRow::new(ids.to_vec(), Vec::new())
}

#[tokio::test]
async fn embed_answers_in_order_with_how_it_was_served() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let request = EmbedRequest {
        model: "embed".to_owned(),
        tokens: [&[2, 5, 3][..], &[2, 9, 9, 3]].map(|ids| TokenIds { ids: ids.to_vec() }).to_vec(),
        priority: super::super::proto::plimsoll::Priority::Low.into(),
        request_id: "mine".to_owned(),
        ..EmbedRequest::default()
    };
    let response = client.embed(request).await.unwrap().into_inner();
    let mut expected = vector(&row(&[2, 9, 9, 3]), DIMENSIONS);
    results::normalize(&mut expected);
    assert_eq!(response.embeddings[1].values, expected);
    assert_eq!(response.embeddings.iter().map(|one| one.tokens).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(server.engine.accepted()[0].priority, Priority::Low);
    let told = response.metadata.unwrap();
    assert_eq!((told.request_id.as_str(), told.model.as_str(), told.tokens), ("mine", "embed", 7));
    assert_eq!((told.queue_us, told.compute_us), (200, 700));
    let step = &told.steps[0];
    assert_eq!((step.step_id, step.batch_rows, step.longest), (7, 2, 4));
    assert_eq!(step.reason(), BatchReason::Memory);
    assert_eq!((step.predicted_peak_bytes, step.true_peak_bytes), (100 << 10, 90 << 10));
    assert_eq!((step.lease_ceiling_bytes, step.headroom_bytes), (120 << 10, 130 << 10));
}

#[tokio::test]
async fn embed_cuts_normalizes_truncates_and_prompts_as_asked() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let good = || EmbedRequest { model: "embed".to_owned(), texts: vec!["web".to_owned()], ..EmbedRequest::default() };
    let length = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
    let response = client.embed(EmbedRequest { dimensions: 3, ..good() }).await.unwrap().into_inner();
    assert_eq!(response.embeddings[0].values.len(), 3);
    assert!((length(&response.embeddings[0].values) - 1.0).abs() < 1e-6);
    let response = client.embed(EmbedRequest { normalize: Some(false), ..good() }).await.unwrap().into_inner();
    assert_eq!(response.embeddings[0].values, vector(&server.engine.accepted()[1].rows[0], DIMENSIONS));
    let long = EmbedRequest { texts: vec!["web ".repeat(100)], truncate: Truncate::Start.into(), ..good() };
    assert_eq!(client.embed(long).await.unwrap().into_inner().embeddings[0].tokens, 32);
    // What a request leaves open the model's configuration says.
    let wide = || EmbedRequest { model: "wide".to_owned(), texts: vec!["web ".repeat(100)], ..EmbedRequest::default() };
    assert_eq!(client.embed(wide()).await.unwrap().into_inner().embeddings[0].tokens, 32);
    let refused = client.embed(EmbedRequest { truncate: Truncate::None.into(), ..wide() }).await.unwrap_err();
    assert_told(&refused, Code::InvalidArgument, &["102 tokens", "32"]);
    client.embed(EmbedRequest { prompt_name: "query".to_owned(), ..good() }).await.unwrap();
    client.embed(EmbedRequest { texts: vec!["search: web".to_owned()], ..good() }).await.unwrap();
    let seen = server.engine.accepted();
    assert_eq!(seen[4].rows, seen[5].rows);
}

#[tokio::test]
async fn rerank_ranks_best_first_and_finds_the_only_reranker() {
    let server = TestServer::start().await;
    let mut client = RerankClient::new(server.channel.clone());
    let texts = ["python json", "a small web server", "music player"].map(str::to_owned).to_vec();
    let good = || RerankRequest { query: "web".to_owned(), texts: texts.clone(), ..RerankRequest::default() };
    let all = client.rerank(RerankRequest { raw_scores: true, ..good() }).await.unwrap().into_inner();
    let logits: Vec<f32> = server.engine.accepted()[0].rows.iter().map(|row| vector(row, 1)[0]).collect();
    assert_eq!(all.metadata.unwrap().model, "rank");
    assert_eq!(all.ranks.len(), 3);
    assert!(all.ranks.windows(2).all(|pair| pair[0].score >= pair[1].score));
    assert!(all.ranks.iter().all(|rank| rank.score == logits[rank.index as usize]));
    let best = client.rerank(RerankRequest { top_n: 1, ..good() }).await.unwrap().into_inner().ranks;
    assert_eq!(best.len(), 1);
    assert_eq!((best[0].index, best[0].score), (all.ranks[0].index, results::sigmoid(all.ranks[0].score)));
    // One side of a pair may be empty.
    client.rerank(RerankRequest { query: String::new(), ..good() }).await.unwrap();
    let both = RerankRequest { query: String::new(), texts: vec!["web".to_owned(), String::new()], ..good() };
    assert_told(&client.rerank(both).await.unwrap_err(), Code::InvalidArgument, &["texts[1]", "both", "empty"]);
}

#[tokio::test]
async fn classify_names_labels_best_first() {
    let server = TestServer::start().await;
    let mut client = ClassifyClient::new(server.channel.clone());
    let tokens = vec![TokenIds { ids: vec![9, 4, 8] }];
    let good = || ClassifyRequest { model: "section".to_owned(), tokens: tokens.clone(), ..ClassifyRequest::default() };
    let labels = client.classify(good()).await.unwrap().into_inner().results.remove(0).labels;
    let names: Vec<_> = labels.iter().map(|label| (label.name.as_str(), label.index)).collect();
    assert_eq!(names, [(LABELS[0], 0), (LABELS[2], 2), (LABELS[1], 1)]);
    assert!((labels.iter().map(|label| label.score).sum::<f32>() - 1.0).abs() < 1e-6);
    let raw = ClassifyRequest { raw_scores: true, top_k: 2, ..good() };
    let labels = client.classify(raw).await.unwrap().into_inner().results.remove(0).labels;
    assert_eq!(labels.iter().map(|label| label.score).collect::<Vec<_>>(), [9.0, 6.0]);
}

#[tokio::test]
async fn models_are_listed_loaded_unloaded_and_pinned() {
    let server = TestServer::start().await;
    let mut client = ModelsClient::new(server.channel.clone());
    let models = client.list(ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!(models.len(), 5);
    let embed = &models[0];
    assert_eq!((embed.name.as_str(), embed.task.as_str(), embed.version.as_str()), ("embed", "embed", "1"));
    assert_eq!((embed.state(), embed.profile()), (ModelState::Ready, ProfileState::Complete));
    assert_eq!((embed.length_max, embed.dimensions, embed.batch_rows_max), (32, DIMENSIONS, 32));
    let broken = &models[4];
    assert_eq!((broken.state(), broken.state_reason.as_str()), (ModelState::Broken, "config.json is missing"));

    let named = "embed".to_owned();
    let released = client.unload(UnloadModelRequest { model: named.clone() }).await.unwrap().into_inner();
    assert_eq!((released.released_bytes, released.free_bytes), (3 << 20, 500 << 20));
    let loaded = client.load(LoadModelRequest { model: named.clone() }).await.unwrap().into_inner().model.unwrap();
    assert_eq!(loaded.state(), ModelState::Ready);
    let pinned = client.pin(PinModelRequest { model: named, pinned: true }).await.unwrap().into_inner().model.unwrap();
    assert_eq!((pinned.pinned, pinned.revision), (true, 2));
    let load = |model: &str| LoadModelRequest { model: model.to_owned() };
    assert_told(&client.load(load("none")).await.unwrap_err(), Code::NotFound, &["'none'"]);
    assert_told(&client.load(load("")).await.unwrap_err(), Code::InvalidArgument, &["model"]);
    assert_told(&client.load(load("broken")).await.unwrap_err(), Code::FailedPrecondition, &["'broken'"]);
}

#[tokio::test]
async fn budgets_are_applied_deferred_or_refused() {
    let server = TestServer::start().await;
    let mut client = ModelsClient::new(server.channel.clone());
    let set = |guaranteed_bytes, limit_bytes, expected_revision| SetBudgetRequest {
        model: "embed".to_owned(),
        budget: Some(Budget { guaranteed_bytes, limit_bytes }),
        expected_revision,
    };
    let applied = client.set_budget(set(1 << 20, 0, 1)).await.unwrap().into_inner();
    assert_eq!((applied.applied, applied.overage_bytes), (true, 0));
    assert_eq!(applied.model.unwrap().budget, Some(Budget { guaranteed_bytes: 1 << 20, limit_bytes: 0 }));
    let deferred = client.set_budget(set(0, 2 << 20, 0)).await.unwrap().into_inner();
    assert_eq!((deferred.applied, deferred.overage_bytes), (false, 1 << 20));
    let outdated = client.set_budget(set(0, 0, 1)).await.unwrap_err();
    assert_told(&outdated, Code::Aborted, &["revision 3", "not 1"]);
    let inverted = client.set_budget(set(2 << 20, 1 << 20, 0)).await.unwrap_err();
    assert_told(&inverted, Code::InvalidArgument, &["2.00 MiB", "1.00 MiB"]);
    let none = SetBudgetRequest { budget: None, ..set(0, 0, 0) };
    assert_told(&client.set_budget(none).await.unwrap_err(), Code::InvalidArgument, &["budget"]);
}

#[tokio::test]
async fn memory_shows_the_books_and_plans() {
    let server = TestServer::start().await;
    let mut client = MemoryClient::new(server.channel.clone());
    let books = client.snapshot(MemorySnapshotRequest {}).await.unwrap().into_inner();
    assert_eq!((books.device.as_str(), books.capacity_bytes, books.free_bytes), ("fake", 100 << 20, 700 << 20));
    assert_eq!((books.leased_bytes, books.headroom_bytes), (11 << 20, 60 << 20));
    assert_eq!((books.models[0].model.as_str(), books.models[0].headroom_bytes), ("embed", 55 << 20));
    let json: serde_json::Value = serde_json::from_str(&books.json).unwrap();
    assert_eq!(json["models"][0]["step_peak_bytes"], 9 << 20);
    assert_eq!(json["models"][0]["limit_bytes"], serde_json::Value::Null);

    let ask = |models: &[&str], budget_bytes| MemoryPlanRequest {
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        budget_bytes,
    };
    let plan = client.plan(ask(&["embed", "rank"], 0)).await.unwrap().into_inner();
    assert!(plan.fits);
    assert_eq!((plan.needed_bytes, plan.available_bytes), (21 << 20, 100 << 20));
    assert_eq!(plan.lines.iter().map(|line| line.model.as_str()).collect::<Vec<_>>(), ["embed", "rank"]);
    assert!(plan.text.contains("fits with every model's best batch"), "{}", plan.text);
    let small = client.plan(ask(&["embed", "rank"], 20 << 20)).await.unwrap().into_inner();
    assert!(!small.fits && small.text.contains("does not fit"), "{}", small.text);
    assert_told(&client.plan(ask(&["none"], 0)).await.unwrap_err(), Code::NotFound, &["'none'"]);
}

#[tokio::test]
async fn a_trace_is_told_in_numbers_and_as_a_picture() {
    let server = TestServer::start().await;
    let mut client = MemoryClient::new(server.channel.clone());
    let ask = |model: &str, rows| MemoryTraceRequest { model: model.to_owned(), rows, length: 8 };
    let trace = client.trace(ask("embed", 2)).await.unwrap().into_inner();
    assert_eq!((trace.shape.as_str(), trace.predicted_bytes, trace.peak_bytes), ("2 x 8", 4 << 20, 3 << 20));
    assert_eq!((trace.peak_at_us, trace.time_us, trace.events_missed), (7, 9, 0));
    let holder = &trace.holders[0];
    assert_eq!(
        (holder.layer.as_str(), holder.operation.as_str(), holder.shape.as_str()),
        ("layer 1", "scores", "2 x 8")
    );
    assert_eq!((holder.bytes, holder.blocks), (3 << 20, 2));
    assert_eq!((trace.timeline[0].at_us, trace.timeline[0].live_bytes), (7, 3 << 20));
    assert!(trace.timeline_svg.contains("embed: memory of a step of 2 x 8"), "{}", trace.timeline_svg);
    let outside = client.trace(ask("embed", 0)).await.unwrap_err();
    assert_told(&outside, Code::InvalidArgument, &["0 x 8", "1 to 8 tokens"]);
    assert_told(&client.trace(ask("none", 1)).await.unwrap_err(), Code::NotFound, &["'none'"]);
}
