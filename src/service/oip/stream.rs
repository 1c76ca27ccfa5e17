//! Inferences over one stream. A request that fails is answered in the stream, which goes on.

use std::sync::Arc;

use tonic::{Status, Streaming};

use super::infer::infer;
use crate::service::call::Arrival;
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
};
use crate::service::streams::{self, Answers, Manners};

/// Opens a stream.
pub(crate) fn open<E: Inference>(
    context: Arc<Context<E>>,
    arrival: Arrival,
    requests: Streaming<ModelInferRequest>,
) -> Result<Answers<ModelStreamInferResponse>, Problem> {
    let answer =
        |context: Arc<Context<E>>, arrival, request| async move { Ok(answer(&context, arrival, request).await) };
    // Requests have ids: a client knows which were not answered.
    let manners =
        Manners { panicked: || Ok(failed(ModelInferResponse::default(), Problem::Panicked)), drained: || None };
    streams::open(context, arrival, requests, answer, manners)
}

async fn answer<E: Inference>(
    context: &Context<E>,
    arrival: Arrival,
    request: ModelInferRequest,
) -> ModelStreamInferResponse {
    let (model_name, id) = (request.model_name.clone(), request.id.clone());
    match infer(context, arrival, request).await {
        Ok(response) => last(String::new(), response),
        Err(problem) => failed(ModelInferResponse { model_name, id, ..ModelInferResponse::default() }, problem),
    }
}

/// The code goes into the text: the message has no field for it.
fn failed(response: ModelInferResponse, problem: Problem) -> ModelStreamInferResponse {
    let status = Status::from(problem);
    last(format!("{:?}: {}", status.code(), status.message()), response)
}

/// An encoder gives exactly one answer to a request: the first is the last.
fn last(error_message: String, mut response: ModelInferResponse) -> ModelStreamInferResponse {
    let last = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    response.parameters.insert("triton_final_response".to_owned(), last);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}
