//! The questions of the demo and their answers.

use std::io::Write;

use tonic::transport::Channel;

use super::texts;
use crate::service::proto::plimsoll::classify_client::ClassifyClient;
use crate::service::proto::plimsoll::embed_client::EmbedClient;
use crate::service::proto::plimsoll::rerank_client::RerankClient;
use crate::service::proto::plimsoll::{ClassifyRequest, EmbedRequest, RerankRequest};

/// Nearest texts that are shown and reranked for each query.
const NEAREST: usize = 3;
/// Every so many descriptions one is classified.
const CLASSIFIED_EVERY: usize = 7;

/// The normalized vectors of texts, in their order.
pub(super) async fn embed(channel: &Channel, model: &str, texts: &[&str]) -> anyhow::Result<Vec<Vec<f32>>> {
    let request = EmbedRequest {
        model: model.to_owned(),
        texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        ..EmbedRequest::default()
    };
    let response = EmbedClient::new(channel.clone()).embed(request).await?.into_inner();
    Ok(response.embeddings.into_iter().map(|embedding| embedding.values).collect())
}

/// Prints the nearest descriptions of a query by both embedders, and the order in which the reranker puts them.
pub(super) async fn show_query(
    out: &mut impl Write,
    channel: &Channel,
    query: &str,
    vectors: &[Vec<f32>],
    vectors_int8: &[Vec<f32>],
) -> anyhow::Result<()> {
    let by_f32 = nearest(&embed(channel, "tiny-embed", &[query]).await?[0], vectors);
    let by_int8 = nearest(&embed(channel, "tiny-embed-int8", &[query]).await?[0], vectors_int8);
    writeln!(out, "  {query}")?;
    for ((index, cosine), (other, other_cosine)) in by_f32.iter().zip(&by_int8) {
        let same = if index == other { "same" } else { texts::DESCRIPTIONS[*other] };
        writeln!(out, "    {cosine:.3}  {:<62} | {other_cosine:.3} {same}", texts::DESCRIPTIONS[*index])?;
    }
    let request = RerankRequest {
        model: "tiny-rerank".to_owned(),
        query: query.to_owned(),
        texts: by_f32.iter().map(|(index, _)| texts::DESCRIPTIONS[*index].to_owned()).collect(),
        ..RerankRequest::default()
    };
    let ranks = RerankClient::new(channel.clone()).rerank(request).await?.into_inner().ranks;
    let best = ranks.first().map(|rank| (texts::DESCRIPTIONS[by_f32[rank.index as usize].0], rank.score));
    let (text, score) = best.unwrap_or_default();
    writeln!(out, "    reranker's choice: {text} ({score:.3})")?;
    Ok(())
}

/// Prints what the classifier makes of some descriptions.
pub(super) async fn show_sections(out: &mut impl Write, channel: &Channel) -> anyhow::Result<()> {
    let chosen: Vec<&str> = texts::DESCRIPTIONS.iter().copied().step_by(CLASSIFIED_EVERY).collect();
    let request = ClassifyRequest {
        model: "tiny-section".to_owned(),
        texts: chosen.iter().map(|text| (*text).to_owned()).collect(),
        top_k: 1,
        ..ClassifyRequest::default()
    };
    let response = ClassifyClient::new(channel.clone()).classify(request).await?.into_inner();
    for (text, result) in chosen.iter().zip(&response.results) {
        if let Some(label) = result.labels.first() {
            writeln!(out, "    {:<62} {} ({:.2})", text, label.name, label.score)?;
        }
    }
    Ok(())
}

/// The nearest of normalized `vectors` to a normalized `query`: index and cosine, best first.
fn nearest(query: &[f32], vectors: &[Vec<f32>]) -> Vec<(usize, f32)> {
    let cosine = |vector: &Vec<f32>| query.iter().zip(vector).map(|(a, b)| a * b).sum::<f32>();
    let mut all: Vec<(usize, f32)> = vectors.iter().map(cosine).enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(NEAREST);
    all
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_nearest_come_best_first() {
        let vectors = vec![vec![1.0, 0.0], vec![0.0, 1.0], vec![0.6, 0.8], vec![-1.0, 0.0]];
        let found: Vec<usize> = nearest(&[0.8, 0.6], &vectors).into_iter().map(|(index, _)| index).collect();
        assert_eq!(found, [2, 0, 1]);
    }
}
