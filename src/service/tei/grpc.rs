//! `tei.v1`: the services that ask a model. The metadata key `model` says which.

use std::sync::Arc;

use prost::Message;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::answered::{Answered, Spent};
use super::ask::{self, Asked, Inputs, Prediction};
use super::cut::Cut;
use crate::config::Task;
use crate::service::call::Arrival;
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::tei as wire;
use crate::service::proto::tei::embed_server::Embed;
use crate::service::proto::tei::predict_server::Predict;
use crate::service::proto::tei::rerank_server::Rerank;
use crate::service::spans::{Aggregation, Span};
use crate::service::streams::{self, Answers, Manners};
use crate::service::tasks::{Labelling, Scores};
use crate::tokenize::TextRow;
use crate::units::Bytes;

const NO_SPARSE: &str = "no model of this server has sparse embeddings: ask for dense ones with Embed";

/// The metadata key that names a model.
const MODEL_KEY: &str = "model";

/// All services of `tei.v1`.
pub(crate) struct Tei<E> {
    pub(crate) context: Arc<Context<E>>,
}

/// Whose answer a call wants.
pub(super) fn asked<T>(request: &Request<T>) -> Result<Asked, Problem> {
    Ok(Asked { model: model(request.metadata())?, arrival: Arrival::of(request) })
}

fn model(metadata: &MetadataMap) -> Result<String, Problem> {
    let Some(value) = metadata.get(MODEL_KEY) else { return Ok(String::new()) };
    let name = value.to_str().map_err(|_| Problem::invalid("metadata['model']", "it is not text"))?;
    Ok(name.to_owned())
}

/// Reads how a text that is too long is treated: false is nothing said, as the message has no third value. An end that
/// does not exist is refused even where nothing is cut.
fn cut(truncate: bool, direction: i32) -> Result<Cut, Problem> {
    let truncate = truncate.then_some(true);
    match wire::TruncationDirection::try_from(direction) {
        Ok(wire::TruncationDirection::Right) => Ok(Cut { truncate, left: false }),
        Ok(wire::TruncationDirection::Left) => Ok(Cut { truncate, left: true }),
        Err(_) => Err(Problem::invalid(
            "truncation_direction",
            format!("{direction} is not one of its values, which are 0 (right) and 1 (left)"),
        )),
    }
}

fn metadata(spent: Spent) -> Option<wire::Metadata> {
    let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Some(wire::Metadata {
        compute_chars: number(spent.characters),
        compute_tokens: number(spent.tokens),
        total_time_ns: spent.total_ns,
        tokenization_time_ns: spent.tokenize_ns,
        queue_time_ns: spent.queue_ns,
        inference_time_ns: spent.compute_ns,
    })
}

/// The answers to a stream of messages, each of which `answer` answers for the model that the stream names.
pub(super) fn stream<E, R, A, F>(
    context: &Arc<Context<E>>,
    request: Request<Streaming<R>>,
    answer: fn(Arc<Context<E>>, Asked, R) -> F,
) -> Result<Response<Answers<A>>, Status>
where
    E: Inference,
    R: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<A, Problem>> + Send + 'static,
{
    let Asked { model, arrival } = asked(&request)?;
    let one = move |context: Arc<Context<E>>, arrival, message| {
        let answer = answer(context, Asked { model: model.clone(), arrival }, message);
        async move { answer.await.map_err(Status::from) }
    };
    // Answers are told apart by their order alone: an end without a word would look like a short answer.
    let manners = Manners { panicked: || Err(Problem::Panicked.into()), drained: || Some(Problem::GoingDown.into()) };
    Ok(Response::new(streams::open(context.clone(), arrival, request.into_inner(), one, manners)?))
}

fn written(text: String, cut: Cut, prompt_name: Option<String>) -> ask::Written {
    ask::Written { inputs: Inputs::Texts(vec![text]), field: "inputs", cut, prompt_name }
}

async fn embed<E: Inference>(
    context: Arc<Context<E>>,
    asked: Asked,
    message: wire::EmbedRequest,
) -> Result<wire::EmbedResponse, Problem> {
    let cut = cut(message.truncate, message.truncation_direction)?;
    let written = written(message.inputs, cut, message.prompt_name);
    let ask = ask::Embed { written, normalize: message.normalize, dimensions: message.dimensions };
    let Answered { result, spent, .. } = context.tei_embed(&asked, ask).await?;
    Ok(wire::EmbedResponse { embeddings: result.into_iter().flatten().collect(), metadata: metadata(spent) })
}

/// The states of a text's tokens, special ones included.
async fn embed_all<E: Inference>(
    context: Arc<Context<E>>,
    asked: Asked,
    message: wire::EmbedAllRequest,
) -> Result<wire::EmbedAllResponse, Problem> {
    let cut = cut(message.truncate, message.truncation_direction)?;
    let written = written(message.inputs, cut, message.prompt_name);
    let Answered { result, spent, .. } = context.tei_embed_all(&asked, written).await?;
    let message = |embeddings: Vec<f32>| wire::TokenEmbedding { embeddings };
    let token_embeddings = result.into_iter().flatten().map(message).collect();
    Ok(wire::EmbedAllResponse { token_embeddings, metadata: metadata(spent) })
}

#[tonic::async_trait]
impl<E: Inference> Embed for Tei<E> {
    type EmbedStreamStream = Answers<wire::EmbedResponse>;
    type EmbedSparseStreamStream = Answers<wire::EmbedSparseResponse>;
    type EmbedAllStreamStream = Answers<wire::EmbedAllResponse>;

    async fn embed(&self, request: Request<wire::EmbedRequest>) -> Result<Response<wire::EmbedResponse>, Status> {
        let asked = asked(&request)?;
        Ok(Response::new(embed(self.context.clone(), asked, request.into_inner()).await?))
    }

    async fn embed_stream(
        &self,
        request: Request<Streaming<wire::EmbedRequest>>,
    ) -> Result<Response<Self::EmbedStreamStream>, Status> {
        stream(&self.context, request, embed)
    }

    async fn embed_sparse(
        &self,
        _: Request<wire::EmbedSparseRequest>,
    ) -> Result<Response<wire::EmbedSparseResponse>, Status> {
        Err(Problem::NotOffered(NO_SPARSE).into())
    }

    async fn embed_sparse_stream(
        &self,
        _: Request<Streaming<wire::EmbedSparseRequest>>,
    ) -> Result<Response<Self::EmbedSparseStreamStream>, Status> {
        Err(Problem::NotOffered(NO_SPARSE).into())
    }

    async fn embed_all(
        &self,
        request: Request<wire::EmbedAllRequest>,
    ) -> Result<Response<wire::EmbedAllResponse>, Status> {
        let asked = asked(&request)?;
        Ok(Response::new(embed_all(self.context.clone(), asked, request.into_inner()).await?))
    }

    async fn embed_all_stream(
        &self,
        request: Request<Streaming<wire::EmbedAllRequest>>,
    ) -> Result<Response<Self::EmbedAllStreamStream>, Status> {
        stream(&self.context, request, embed_all)
    }
}

async fn predict_row<E: Inference>(
    context: Arc<Context<E>>,
    asked: Asked,
    row: TextRow,
    cut: Cut,
    raw_scores: bool,
) -> Result<wire::PredictResponse, Problem> {
    let scores = Scores::raw(raw_scores);
    let (task, asked) = context.tei_predictor(asked)?;
    if task == Task::TokenClassify {
        return predict_tokens(&context, asked, row, cut, scores).await;
    }
    let ask = ask::Predict { inputs: vec![row], cut, scores };
    let Answered { result, spent, .. } = context.tei_predict(&asked, ask).await?;
    let message = |Prediction { label, score }| wire::Prediction { score, label };
    let predictions = result.into_iter().flatten().map(message).collect();
    Ok(wire::PredictResponse { predictions, metadata: metadata(spent) })
}

/// The best label of each token in the order of the text, special ones left out. The message has no place for more:
/// `Tokenize` says where they are.
async fn predict_tokens<E: Inference>(
    context: &Context<E>,
    asked: Asked,
    row: TextRow,
    cut: Cut,
    scores: Scores,
) -> Result<wire::PredictResponse, Problem> {
    let labelling = Labelling { scores, aggregation: Aggregation::None, ignored: Vec::new() };
    let ask = ask::Label { inputs: vec![row], cut, labelling };
    let Answered { result, spent, .. } = context.tei_label(&asked, ask).await?;
    let message = |(Span { label, score, .. }, _)| wire::Prediction { score, label };
    let predictions = result.into_iter().flatten().map(message).collect();
    Ok(wire::PredictResponse { predictions, metadata: metadata(spent) })
}

async fn predict<E: Inference>(
    context: Arc<Context<E>>,
    asked: Asked,
    message: wire::PredictRequest,
) -> Result<wire::PredictResponse, Problem> {
    let cut = cut(message.truncate, message.truncation_direction)?;
    predict_row(context, asked, TextRow { text: message.inputs, pair: None }, cut, message.raw_scores).await
}

async fn predict_pair<E: Inference>(
    context: Arc<Context<E>>,
    asked: Asked,
    message: wire::PredictPairRequest,
) -> Result<wire::PredictResponse, Problem> {
    let cut = cut(message.truncate, message.truncation_direction)?;
    let count = message.inputs.len();
    let mut texts = message.inputs.into_iter();
    let row = match (texts.next(), texts.next(), texts.next()) {
        (Some(text), pair, None) => TextRow { text, pair },
        (None, ..) => return Err(Problem::empty("inputs", "it has no texts: send one, or a pair")),
        _ => return Err(Problem::invalid("inputs", format!("a pair has 2 texts, not {count}"))),
    };
    predict_row(context, asked, row, cut, message.raw_scores).await
}

#[tonic::async_trait]
impl<E: Inference> Predict for Tei<E> {
    type PredictStreamStream = Answers<wire::PredictResponse>;
    type PredictPairStreamStream = Answers<wire::PredictResponse>;

    async fn predict(&self, request: Request<wire::PredictRequest>) -> Result<Response<wire::PredictResponse>, Status> {
        let asked = asked(&request)?;
        Ok(Response::new(predict(self.context.clone(), asked, request.into_inner()).await?))
    }

    async fn predict_pair(
        &self,
        request: Request<wire::PredictPairRequest>,
    ) -> Result<Response<wire::PredictResponse>, Status> {
        let asked = asked(&request)?;
        Ok(Response::new(predict_pair(self.context.clone(), asked, request.into_inner()).await?))
    }

    async fn predict_stream(
        &self,
        request: Request<Streaming<wire::PredictRequest>>,
    ) -> Result<Response<Self::PredictStreamStream>, Status> {
        stream(&self.context, request, predict)
    }

    async fn predict_pair_stream(
        &self,
        request: Request<Streaming<wire::PredictPairRequest>>,
    ) -> Result<Response<Self::PredictPairStreamStream>, Status> {
        stream(&self.context, request, predict_pair)
    }
}

impl<E: Inference> Tei<E> {
    async fn rank(&self, asked: Asked, message: wire::RerankRequest) -> Result<wire::RerankResponse, Problem> {
        let ask = ask::Rerank {
            query: message.query,
            texts: message.texts,
            cut: cut(message.truncate, message.truncation_direction)?,
            scores: Scores::raw(message.raw_scores),
            return_text: message.return_text,
            top: None,
        };
        let Answered { result, spent, .. } = self.context.tei_rerank(&asked, ask).await?;
        let message = |ask::Rank { index, score, text }| wire::Rank { index: index as u32, text, score };
        let ranks = result.into_iter().map(message).collect();
        let response = wire::RerankResponse { ranks, metadata: metadata(spent) };
        self.context.check_answer(Bytes::new(response.encoded_len() as u64))?;
        Ok(response)
    }

    /// One request of a stream's messages. No more is read than one request may have, and none once the server goes down.
    async fn gather(&self, mut messages: Streaming<wire::RerankStreamRequest>) -> Result<wire::RerankRequest, Status> {
        let permit = self.context.streams.clone().try_acquire_owned();
        let _permit = permit.map_err(|_| Problem::TooManyStreams { limit: self.context.limits.streams })?;
        let mut gathered: Option<wire::RerankRequest> = None;
        let mut bytes = Bytes::ZERO;
        while let Some(message) = streams::next(&self.context, &mut messages).await? {
            let rerank = gathered.get_or_insert_with(|| wire::RerankRequest {
                query: message.query.clone(),
                texts: Vec::new(),
                truncate: message.truncate,
                raw_scores: message.raw_scores,
                return_text: message.return_text,
                truncation_direction: message.truncation_direction,
            });
            // One query for all: clients send it with each text, or with the first. What the scores are like is the first
            // one's to say.
            let differs = [
                ("query", !message.query.is_empty() && message.query != rerank.query),
                ("truncate", message.truncate != rerank.truncate),
                ("truncation_direction", message.truncation_direction != rerank.truncation_direction),
            ];
            if let Some((field, _)) = differs.iter().find(|(_, differs)| *differs) {
                let text = format!("message {} has another one than the first", rerank.texts.len());
                return Err(Problem::invalid(*field, text).into());
            }
            bytes += Bytes::new(message.text.len() as u64);
            let limit = self.context.limits.message;
            if bytes > limit {
                return Err(Problem::MessageTooLarge { limit }.into());
            }
            rerank.texts.push(message.text);
            self.context.check_rows("texts", rerank.texts.len())?;
        }
        gathered.ok_or_else(|| Problem::empty("texts", "the stream has no messages: send at least one").into())
    }
}

#[tonic::async_trait]
impl<E: Inference> Rerank for Tei<E> {
    async fn rerank(&self, request: Request<wire::RerankRequest>) -> Result<Response<wire::RerankResponse>, Status> {
        let asked = asked(&request)?;
        Ok(Response::new(self.rank(asked, request.into_inner()).await?))
    }

    async fn rerank_stream(
        &self,
        request: Request<Streaming<wire::RerankStreamRequest>>,
    ) -> Result<Response<wire::RerankResponse>, Status> {
        let asked = asked(&request)?;
        let message = self.gather(request.into_inner()).await?;
        Ok(Response::new(self.rank(asked, message).await?))
    }
}
