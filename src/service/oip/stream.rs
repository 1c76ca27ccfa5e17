//! Inferences over one stream. A bounded number is in flight at once; the answers keep the order of the requests; a
//! request that fails is answered in the stream, which goes on.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};
use tracing::Instrument;

use super::infer::infer;
use crate::service::call::Arrival;
use crate::service::context::Context;
use crate::service::errors::{Problem, rephrase_transport};
use crate::service::port::Inference;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
};
use crate::service::server::InFlight;

/// The answers of one stream.
pub(crate) type Answers = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

/// What the reader of a stream hands to its writer, in the order of the requests.
enum Next {
    Answer(Running),
    /// The stream itself is broken; this ends it.
    Broken(Status),
}

/// A request in flight. Dropping it, as the stream does when the client has gone, cancels it.
struct Running(JoinHandle<ModelStreamInferResponse>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a stream.
pub(crate) fn open<E: Inference>(
    context: Arc<Context<E>>,
    arrival: Arrival,
    requests: Streaming<ModelInferRequest>,
) -> Result<Answers, Problem> {
    let permit = context.streams.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Problem::TooManyStreams { limit: context.limits.streams })?;
    let guard = (permit, InFlight::enter(&context.in_flight));
    let (sender, receiver) = mpsc::channel(context.limits.stream_requests.max(1) as usize);
    tokio::spawn(read(context, arrival, requests, sender).in_current_span());
    Ok(Box::pin(ReceiverStream::new(receiver).then(write).map(move |answer| hold(&guard, answer))))
}

/// The stream counts as open until its writer is dropped.
fn hold<T>(_guard: &(OwnedSemaphorePermit, InFlight), answer: T) -> T {
    answer
}

async fn write(next: Next) -> Result<ModelStreamInferResponse, Status> {
    match next {
        Next::Answer(mut running) => Ok((&mut running.0).await.unwrap_or_else(|error| {
            tracing::error!(%error, "a request of a stream panicked");
            failed(ModelInferResponse::default(), Problem::Panicked)
        })),
        Next::Broken(status) => Err(status),
    }
}

/// Reads requests until the client has sent its last, has gone, or the server goes down.
async fn read<E: Inference>(
    context: Arc<Context<E>>,
    call: Arrival,
    mut requests: Streaming<ModelInferRequest>,
    sender: mpsc::Sender<Next>,
) {
    let mut draining = context.draining.clone();
    loop {
        // A place in the channel first: a request is read only when it may start. One answer is with the writer.
        let Ok(place) = sender.reserve().await else { return };
        let read = tokio::select! {
            read = requests.message() => read,
            () = sender.closed() => return,
            _ = draining.wait_for(|draining| *draining) => return,
        };
        match read {
            Ok(Some(request)) => {
                let context = context.clone();
                let arrival = Arrival { at: Instant::now(), deadline: call.deadline };
                let answer = async move { answer(&context, arrival, request).await };
                place.send(Next::Answer(Running(tokio::spawn(answer.in_current_span()))));
            }
            Ok(None) => return,
            Err(status) => {
                let status = rephrase_transport(&status, context.limits.message).unwrap_or(status);
                place.send(Next::Broken(status));
                return;
            }
        }
    }
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
