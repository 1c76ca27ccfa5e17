//! The routes of text-embeddings-inference.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::answer::{TeiProblem, json};
use super::inputs::{WrittenInputs, WrittenRows};
use super::tei_messages::{
    DecodeMessage, Direction, EmbedAllMessage, EmbedMessage, Info, Labelled, ModelType, OfSentences, PredictMessage,
    PredictParameters, Ranked, RerankMessage, Scored, SimilarityMessage, Token, TokenizeMessage,
};
use super::times::with_times;
use super::{Caller, Message, Sent, read_json};
use crate::config::Task;
use crate::service::aside::{VALUES_IN_PASSING, aside};
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::spans::{Aggregation, Span};
use crate::service::tasks::{Labelling, Scores};
use crate::service::tei::answered::Answered;
use crate::service::tei::ask::{self, Asked, Prediction, Rank};
use crate::service::tei::cut::Cut;
use crate::service::tei::similarity::Similarity;
use crate::tokenize::{Piece, Truncate};
use crate::units::Bytes;

type Shared<E> = State<Arc<Context<E>>>;

pub(super) async fn embed<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<EmbedMessage>,
) -> Result<Response, TeiProblem> {
    Ok(answer_embed(&context, asked?, message?).await?)
}

fn cut(truncate: Option<bool>, direction: Direction) -> Cut {
    Cut { truncate, left: direction == Direction::Left }
}

fn written(inputs: WrittenInputs, cut: Cut, prompt_name: Option<String>) -> ask::Written {
    ask::Written { inputs: inputs.0, field: "inputs", cut, prompt_name }
}

async fn answer_embed<E: Inference>(
    context: &Context<E>,
    asked: Asked,
    message: EmbedMessage,
) -> Result<Response, Problem> {
    let cut = cut(message.truncate, message.truncation_direction);
    let written = written(message.inputs, cut, message.prompt_name);
    let ask = ask::Embed { written, normalize: message.normalize, dimensions: message.dimensions };
    let Answered { result, spent, .. } = context.tei_embed(&asked, ask).await?;
    Ok(with_times(spent, json(StatusCode::OK, &result)))
}

/// What a client sends to the root: by the task of the model it is one of the others.
pub(super) async fn any<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Sent(sent): Sent,
) -> Result<Response, TeiProblem> {
    let (asked, sent) = (asked?, sent?);
    Ok(match context.any_target(&asked.model)?.definition.card.task {
        Task::Embed if read_json::<OfSentences>(sent.clone()).await.is_ok() => {
            answer_similarity(&context, asked, read_json(sent).await?).await?
        }
        Task::Embed => answer_embed(&context, asked, read_json(sent).await?).await?,
        Task::Classify | Task::TokenClassify => answer_predict(&context, asked, read_json(sent).await?).await?,
        Task::Rerank => answer_rerank(&context, asked, read_json(sent).await?).await?,
    })
}

pub(super) async fn embed_all<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<EmbedAllMessage>,
) -> Result<Response, TeiProblem> {
    let (asked, message) = (asked?, message?);
    let cut = cut(message.truncate, message.truncation_direction);
    let written = written(message.inputs, cut, message.prompt_name);
    let Answered { result, spent, .. } = context.tei_embed_all(&asked, written).await?;
    let values: usize = result.iter().flatten().map(Vec::len).sum();
    let written = aside(values > VALUES_IN_PASSING, move || json(StatusCode::OK, &result)).await?;
    Ok(with_times(spent, written))
}

pub(super) async fn similarity<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<SimilarityMessage>,
) -> Result<Response, TeiProblem> {
    Ok(answer_similarity(&context, asked?, message?).await?)
}

async fn answer_similarity<E: Inference>(
    context: &Context<E>,
    asked: Asked,
    message: SimilarityMessage,
) -> Result<Response, Problem> {
    let SimilarityMessage { inputs, parameters, .. } = message;
    let parameters = parameters.unwrap_or_default();
    let ask = Similarity {
        source: inputs.source_sentence,
        sentences: inputs.sentences.0,
        cut: cut(parameters.truncate, parameters.truncation_direction),
        prompt_name: parameters.prompt_name,
    };
    let Answered { result, spent, .. } = context.tei_similarity(&asked, ask).await?;
    Ok(with_times(spent, json(StatusCode::OK, &result)))
}

pub(super) async fn embed_sparse() -> TeiProblem {
    TeiProblem(Problem::NotOffered("no model of this server has sparse embeddings: ask /embed for dense ones"))
}

/// One text's labels, or those of its parts, for one text; a list of them for a list.
pub(super) async fn predict<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<PredictMessage>,
) -> Result<Response, TeiProblem> {
    Ok(answer_predict(&context, asked?, message?).await?)
}

async fn answer_predict<E: Inference>(
    context: &Context<E>,
    asked: Asked,
    message: PredictMessage,
) -> Result<Response, Problem> {
    let (inputs, is_one) = match message.inputs {
        WrittenRows::One(row) => (vec![row], true),
        WrittenRows::Several(rows) => (rows, false),
    };
    let cut = cut(message.truncate, message.truncation_direction);
    let (scores, parameters) = (Scores::raw(message.raw_scores), message.parameters.unwrap_or_default());
    let (task, asked) = context.tei_predictor(asked)?;
    if task == Task::TokenClassify {
        let labelling = labelling(scores, parameters)?;
        let aggregation = labelling.aggregation;
        let Answered { result, spent, .. } = context.tei_label(&asked, ask::Label { inputs, cut, labelling }).await?;
        return Ok(with_times(spent, one_or_all(is_one, result, |(span, word)| labelled(span, word, aggregation))));
    }
    let PredictParameters { aggregation_strategy, ignore_labels } = parameters;
    if aggregation_strategy.is_some() || ignore_labels.is_some() {
        return Err(Problem::invalid(
            "parameters",
            "the model labels whole texts: only a classifier of tokens has them",
        ));
    }
    let Answered { result, spent, .. } = context.tei_predict(&asked, ask::Predict { inputs, cut, scores }).await?;
    Ok(with_times(spent, one_or_all(is_one, result, |Prediction { label, score }| Scored { score, label })))
}

/// The only row of what was asked for as one, a list of rows otherwise.
fn one_or_all<T, S: Serialize>(is_one: bool, rows: Vec<Vec<T>>, message: impl Fn(T) -> S) -> Response {
    let written = |row: Vec<T>| row.into_iter().map(&message).collect::<Vec<S>>();
    let mut rows: Vec<Vec<S>> = rows.into_iter().map(written).collect();
    match (is_one, rows.pop()) {
        (true, Some(only)) => json(StatusCode::OK, &only),
        (_, last) => {
            rows.extend(last);
            json(StatusCode::OK, &rows)
        }
    }
}

/// What is not said is as in transformers, but that tokens are put together, as its inference service does.
fn labelling(scores: Scores, parameters: PredictParameters) -> Result<Labelling, Problem> {
    let aggregation = match parameters.aggregation_strategy {
        // Logits are those of tokens.
        None if scores == Scores::Raw => Aggregation::None,
        None => Aggregation::default(),
        Some(name) => Aggregation::named(&name).ok_or_else(|| {
            let text = format!("'{name}' is none of {}", Aggregation::NAMES);
            Problem::invalid("parameters.aggregation_strategy", text)
        })?,
    };
    let ignored = parameters.ignore_labels.unwrap_or_else(|| vec!["O".to_owned()]);
    Ok(Labelling { scores, aggregation, ignored })
}

fn labelled(span: Span, word: String, aggregation: Aggregation) -> Labelled {
    let Span { label, score, first, start, end, .. } = span;
    let (entity, entity_group, index) = match aggregation {
        Aggregation::None => (Some(label), None, Some(first)),
        _ => (None, Some(label), None),
    };
    Labelled { entity, entity_group, score, index, word, start, end }
}

pub(super) async fn rerank<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<RerankMessage>,
) -> Result<Response, TeiProblem> {
    Ok(answer_rerank(&context, asked?, message?).await?)
}

async fn answer_rerank<E: Inference>(
    context: &Context<E>,
    asked: Asked,
    message: RerankMessage,
) -> Result<Response, Problem> {
    let ask = ask::Rerank {
        query: message.query,
        texts: message.texts.0,
        cut: cut(message.truncate, message.truncation_direction),
        scores: Scores::raw(message.raw_scores),
        return_text: message.return_text,
        top: message.top_n,
    };
    let Answered { result, spent, .. } = context.tei_rerank(&asked, ask).await?;
    let ranked: Vec<_> = result.into_iter().map(|Rank { index, score, text }| Ranked { index, text, score }).collect();
    Ok(with_times(spent, json(StatusCode::OK, &ranked)))
}

pub(super) async fn tokenize<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<TokenizeMessage>,
) -> Result<Response, TeiProblem> {
    let (asked, message) = (asked?, message?);
    let texts = message.inputs.0;
    context.check_rows("inputs", texts.len())?;
    let prompt = message.prompt_name.as_deref();
    let mut rows: Vec<Vec<Token>> = Vec::with_capacity(texts.len());
    let mut written = Bytes::ZERO;
    for text in texts {
        let pieces = context.tei_tokenize(&asked, text, message.add_special_tokens, prompt).await;
        let pieces = pieces?;
        written += pieces.iter().map(|piece| TOKEN_BYTES + Bytes::new(piece.text.len() as u64)).sum();
        context.check_answer(written)?;
        rows.push(pieces.into_iter().map(token).collect());
    }
    Ok(json(StatusCode::OK, &rows))
}

/// What a token takes in JSON beside its text, about.
const TOKEN_BYTES: Bytes = Bytes::new(72);

fn token(piece: Piece) -> Token {
    let Piece { id, text, place } = piece;
    Token {
        id,
        text,
        special: place.is_none(),
        start: place.map(|(start, _)| start),
        stop: place.map(|(_, stop)| stop),
    }
}

pub(super) async fn decode<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<DecodeMessage>,
) -> Result<Response, TeiProblem> {
    let (asked, message) = (asked?, message?);
    let rows = message.ids.0;
    context.check_rows("ids", rows.len())?;
    let mut texts: Vec<String> = Vec::with_capacity(rows.len());
    for ids in rows {
        texts.push(context.tei_decode(&asked, ids, !message.skip_special_tokens).await?);
        context.check_answer(Bytes::new(texts.iter().map(|text| text.len() as u64).sum()))?;
    }
    Ok(json(StatusCode::OK, &texts))
}

pub(super) async fn info<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
) -> Result<Response, TeiProblem> {
    let facts = context.tei_facts(&asked?)?;
    let card = &facts.definition.card;
    let id2label = || card.labels.iter().enumerate().map(|(id, label)| (id.to_string(), label.clone())).collect();
    let label2id = || card.labels.iter().enumerate().map(|(id, label)| (label.clone(), id)).collect();
    let model_type = match card.task {
        Task::Embed => ModelType::Embedding { pooling: facts.pooling() },
        Task::Classify | Task::TokenClassify => ModelType::Classifier { id2label: id2label(), label2id: label2id() },
        Task::Rerank => ModelType::Reranker { id2label: id2label(), label2id: label2id() },
    };
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
        model_id: facts.model_id(),
        model_sha: facts.model_sha(),
        model_dtype: facts.dtype(),
        model_type,
        served_model_name: card.name.clone(),
        max_concurrent_requests: facts.queue_rows_max,
        max_input_length: card.length_max,
        max_batch_tokens: facts.batch_tokens_max,
        max_batch_requests: Some(facts.batch_rows_max),
        max_client_batch_size: facts.request_rows_max,
        auto_truncate: card.truncate != Truncate::No,
        tokenization_workers: facts.tokenization_workers,
    };
    Ok(json(StatusCode::OK, &info))
}

/// 200 while every required model is ready and the server is not going down.
pub(super) async fn health<E: Inference>(State(context): Shared<E>) -> Response {
    let readiness = match context.is_draining() {
        true => Err("the server is draining".to_owned()),
        false => context.engine.health().borrow().readiness(),
    };
    match readiness {
        Ok(()) => StatusCode::OK.into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
