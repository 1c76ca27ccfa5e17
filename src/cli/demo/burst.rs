//! More calls at once than fit: which batches are made of them, why, and what they cost against what was predicted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::texts;
use crate::cli::deadline;
use crate::engine::EngineHandle;
use crate::service::proto::plimsoll::classify_client::ClassifyClient;
use crate::service::proto::plimsoll::embed_client::EmbedClient;
use crate::service::proto::plimsoll::rerank_client::RerankClient;
use crate::service::proto::plimsoll::{BatchReason, ClassifyRequest, EmbedRequest, Metadata, RerankRequest, StepFacts};
use crate::units::Bytes;

/// Rows that may wait for one model: fewer than the burst has for each.
pub(super) const QUEUE_ROWS: u32 = 256;
/// Calls for each model, all sent at once.
const CALLS: usize = 60;
/// Rows of a call.
const ROWS: usize = 6;
/// Calls whose deadline is too short to be kept behind the others.
const HURRIED_EVERY: usize = 20;
const HURRY: Duration = Duration::from_millis(20);

/// What came of one call.
struct Outcome {
    model: &'static str,
    result: Result<Metadata, Status>,
}

/// Sends the burst and prints what came of it.
pub(super) async fn run(out: &mut impl Write, channel: &Channel, engine: &EngineHandle) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut calls = JoinSet::new();
    for index in 0..CALLS {
        for model in ["tiny-embed", "tiny-embed-int8", "tiny-rerank", "tiny-section"] {
            calls.spawn(call(channel.clone(), model, index));
        }
    }
    let outcomes = calls.join_all().await;
    let seconds = started.elapsed().as_secs_f64();

    let mut rows = vec![["model", "calls", "answered", "refused", "late", "steps", "device time"].map(str::to_owned)];
    for status in engine.models() {
        let of_model: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.model == status.name).collect();
        let with_code = |code: Code| {
            of_model.iter().filter(|outcome| outcome.result.as_ref().is_err_and(|status| status.code() == code)).count()
        };
        let steps = distinct_steps(of_model.iter().copied());
        let time: u64 = steps.values().map(|step| step.compute_us).sum();
        rows.push([
            status.name.clone(),
            of_model.len().to_string(),
            of_model.iter().filter(|outcome| outcome.result.is_ok()).count().to_string(),
            with_code(Code::ResourceExhausted).to_string(),
            with_code(Code::DeadlineExceeded).to_string(),
            steps.len().to_string(),
            format!("{:.2} s", time as f64 / 1e6),
        ]);
    }
    crate::cli::table::write(out, &rows)?;
    write_steps(out, &outcomes, seconds)?;
    let refusal = outcomes.iter().filter_map(|outcome| outcome.result.as_ref().err()).find(is_exhausted);
    if let Some(status) = refusal {
        writeln!(out, "a refusal says: {}", status.message())?;
    }
    Ok(())
}

fn is_exhausted(status: &&Status) -> bool {
    status.code() == Code::ResourceExhausted
}

fn write_steps(out: &mut impl Write, outcomes: &[Outcome], seconds: f64) -> anyhow::Result<()> {
    let steps = distinct_steps(outcomes.iter());
    let mut reasons: BTreeMap<&str, (usize, u32)> = BTreeMap::new();
    for step in steps.values() {
        let entry = reasons.entry(word(step.reason())).or_default();
        entry.0 += 1;
        entry.1 += step.batch_rows;
    }
    let words: Vec<String> = reasons
        .iter()
        .map(|(reason, (count, rows))| {
            format!("{count} by {reason} (mean {:.0} rows)", f64::from(*rows) / *count as f64)
        })
        .collect();
    writeln!(out, "batches: {}", words.join(", "))?;
    let ratios = steps.values().map(|step| step.true_peak_bytes as f64 / step.predicted_peak_bytes.max(1) as f64);
    let (lowest, highest) = ratios.fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
    let peak = steps.values().map(|step| step.true_peak_bytes).max().unwrap_or_default();
    let ceiling = steps.values().map(|step| step.lease_ceiling_bytes).max().unwrap_or_default();
    writeln!(
        out,
        "true peak / predicted: {lowest:.2} to {highest:.2}; largest true peak {} of {} that steps could have had",
        Bytes::new(peak),
        Bytes::new(ceiling)
    )?;
    let answered = outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok());
    let tokens: u64 = answered.clone().map(|metadata| u64::from(metadata.tokens)).sum();
    let count = answered.count();
    writeln!(
        out,
        "{count} calls and {tokens} tokens answered in {seconds:.1} s: {:.0} tokens/s",
        tokens as f64 / seconds
    )?;
    Ok(())
}

/// The steps that the answered calls took part in, each once.
fn distinct_steps<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> BTreeMap<u64, StepFacts> {
    let answered = outcomes.filter_map(|outcome| outcome.result.as_ref().ok());
    answered.flat_map(|metadata| metadata.steps.iter().map(|step| (step.step_id, *step))).collect()
}

fn word(reason: BatchReason) -> &'static str {
    match reason {
        BatchReason::Memory => "memory",
        BatchReason::Latency => "latency",
        BatchReason::Knee => "knee",
        BatchReason::Queue => "queue",
        BatchReason::Limit => "limit",
        BatchReason::Unspecified => "no reason given",
    }
}

/// The rows of a call: single descriptions and several in a row, so that lengths differ.
fn rows(index: usize) -> Vec<String> {
    let count = texts::DESCRIPTIONS.len();
    let row = |row: usize| {
        let first = (index * 7 + row * 3) % count;
        let words = 1 + (index + row) % 5;
        let parts: BTreeSet<usize> = (0..words).map(|step| (first + step) % count).collect();
        parts.into_iter().map(|part| texts::DESCRIPTIONS[part]).collect::<Vec<_>>().join("; ")
    };
    (0..ROWS).map(row).collect()
}

async fn call(channel: Channel, model: &'static str, index: usize) -> Outcome {
    let texts = rows(index);
    let hurry = (index % HURRIED_EVERY == HURRIED_EVERY - 1).then_some(HURRY);
    let model_name = model.to_owned();
    let result = match model {
        "tiny-rerank" => {
            let query = texts::QUERIES[index % texts::QUERIES.len()].to_owned();
            let request = RerankRequest { model: model_name, query, texts, ..RerankRequest::default() };
            let response = RerankClient::new(channel).rerank(deadline::request(request, hurry)).await;
            response.map(|response| response.into_inner().metadata)
        }
        "tiny-section" => {
            let request = ClassifyRequest { model: model_name, texts, ..ClassifyRequest::default() };
            let response = ClassifyClient::new(channel).classify(deadline::request(request, hurry)).await;
            response.map(|response| response.into_inner().metadata)
        }
        _ => {
            let request = EmbedRequest { model: model_name, texts, ..EmbedRequest::default() };
            let response = EmbedClient::new(channel).embed(deadline::request(request, hurry)).await;
            response.map(|response| response.into_inner().metadata)
        }
    };
    let result = result.map(Option::unwrap_or_default).map_err(|status| deadline::named(status, hurry));
    Outcome { model, result }
}
