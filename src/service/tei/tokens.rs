//! `tei.v1.Tokenize`: tokens of texts, and texts of tokens.

use std::sync::Arc;

use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use super::Tei;
use super::ask::Asked;
use super::grpc::{asked, stream};
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::tei as wire;
use crate::service::proto::tei::tokenize_server::Tokenize;
use crate::service::streams::Answers;
use crate::tokenize::Piece;
use crate::units::Bytes;

async fn tokenize<E: Inference>(
    context: Arc<Context<E>>,
    asked: Asked,
    message: wire::EncodeRequest,
) -> Result<wire::EncodeResponse, Problem> {
    let prompt = message.prompt_name.as_deref();
    let pieces = context.tei_tokenize(&asked, message.inputs, message.add_special_tokens, prompt).await?;
    let token = |Piece { id, text, place }| wire::SimpleToken {
        id,
        text,
        special: place.is_none(),
        start: place.map(|(start, _)| start as u32),
        stop: place.map(|(_, stop)| stop as u32),
    };
    let response = wire::EncodeResponse { tokens: pieces.into_iter().map(token).collect() };
    context.check_answer(Bytes::new(response.encoded_len() as u64))?;
    Ok(response)
}

async fn decode<E: Inference>(
    context: Arc<Context<E>>,
    asked: Asked,
    message: wire::DecodeRequest,
) -> Result<wire::DecodeResponse, Problem> {
    let text = context.tei_decode(&asked, message.ids, !message.skip_special_tokens).await?;
    Ok(wire::DecodeResponse { text })
}

#[tonic::async_trait]
impl<E: Inference> Tokenize for Tei<E> {
    type TokenizeStreamStream = Answers<wire::EncodeResponse>;
    type DecodeStreamStream = Answers<wire::DecodeResponse>;

    async fn tokenize(&self, request: Request<wire::EncodeRequest>) -> Result<Response<wire::EncodeResponse>, Status> {
        let asked = asked(&request)?;
        Ok(Response::new(tokenize(self.context.clone(), asked, request.into_inner()).await?))
    }

    async fn tokenize_stream(
        &self,
        request: Request<Streaming<wire::EncodeRequest>>,
    ) -> Result<Response<Self::TokenizeStreamStream>, Status> {
        stream(&self.context, request, tokenize)
    }

    async fn decode(&self, request: Request<wire::DecodeRequest>) -> Result<Response<wire::DecodeResponse>, Status> {
        let asked = asked(&request)?;
        Ok(Response::new(decode(self.context.clone(), asked, request.into_inner()).await?))
    }

    async fn decode_stream(
        &self,
        request: Request<Streaming<wire::DecodeRequest>>,
    ) -> Result<Response<Self::DecodeStreamStream>, Status> {
        stream(&self.context, request, decode)
    }
}
