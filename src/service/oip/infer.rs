//! One inference: from request to response.

use std::time::Instant;

use prost::Message;
use prost::bytes::Bytes as Blob;

use super::inputs;
use super::outputs::{Answered, Outputs};
use super::parameters::Parameters;
use crate::service::aside::{VALUES_IN_PASSING, aside};
use crate::service::call::{Arrival, note_request_id};
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::inference::model_infer_request::InferInputTensor;
use crate::service::proto::inference::{ModelInferRequest, ModelInferResponse};
use crate::service::request::{Inquiry, Served};
use crate::units::Bytes;

/// Serves one request that came at `arrival`.
pub(crate) async fn infer<E: Inference>(
    context: &Context<E>,
    arrival: Arrival,
    mut request: ModelInferRequest,
) -> Result<ModelInferResponse, Problem> {
    let (inputs, raw) = (std::mem::take(&mut request.inputs), std::mem::take(&mut request.raw_input_contents));
    let inputs = inputs::with_blobs(inputs, raw)?;
    run(context, arrival, request, inputs).await
}

/// The same with its inputs beside it, each with the bytes that belong to it, if there are any.
pub(crate) async fn run<E: Inference>(
    context: &Context<E>,
    arrival: Arrival,
    request: ModelInferRequest,
    inputs: Vec<(InferInputTensor, Option<Blob>)>,
) -> Result<ModelInferResponse, Problem> {
    note_request_id(&request.id);
    let target = context.target(&request.model_name)?;
    let card = &target.definition.card;
    context.check_version(card, &request.model_version)?;
    let parameters = Parameters::read(&request.parameters)?;
    let (rows, padded) = inputs::rows(context, card, inputs, &parameters)?;
    let outputs = Outputs::read(card, &request.outputs, &parameters, padded)?;
    // A row of text has one token at least; how ids are padded is known already.
    context.check_answer(outputs.bytes(card, &vec![1; rows.len()]))?;

    let deadline = arrival.deadline_within(parameters.timeout);
    let inquiry = Inquiry { rows, priority: parameters.priority, arrival, deadline };
    let served = context.run(&target, inquiry).await?;

    let finishing = Instant::now();
    let Served { answer, tokens, places, tokenize } = served;
    let (rows, columns) = (tokens.len(), outputs.columns(card, &tokens));
    // Known only now: rows are as long as the longest.
    context.check_answer(outputs.bytes(card, &tokens))?;
    let definition = target.definition.clone();
    let rows_answered = Answered { vectors: answer.rows, tokens, places };
    let values = rows * columns * card.dimensions as usize;
    let write = move || outputs.write(&definition.card, rows_answered);
    let (outputs, raw_output_contents) = aside(values > VALUES_IN_PASSING, write).await?;
    let response = ModelInferResponse {
        model_name: card.name.clone(),
        model_version: card.version.to_string(),
        id: request.id,
        outputs,
        raw_output_contents,
        ..ModelInferResponse::default()
    };
    context.check_answer(Bytes::new(response.encoded_len() as u64))?;
    context.host_times(target.registered.id).add(tokenize, finishing.elapsed());
    Ok(response)
}
