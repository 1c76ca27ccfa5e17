//! Requests over one stream, whatever the protocol. A bounded number is in flight at once, and the answers keep the order
//! of the requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};
use tracing::Instrument;

use super::activity::{Activity, Busy};
use super::call::Arrival;
use super::carried::Carried;
use super::context::Context;
use super::errors::{Problem, rephrase_transport};
use super::port::Inference;
use super::server::InFlight;
use crate::telemetry::traces::CallSpan;

/// The answers of one stream. An error is its last item.
pub(crate) type Answers<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

/// What a protocol says in its streams where there is no answer.
pub(crate) struct Manners<A> {
    /// To a request that panicked.
    pub(crate) panicked: fn() -> Result<A, Status>,
    /// When the server goes down while the client may still send: the last item, if there is to be one.
    pub(crate) drained: fn() -> Option<Status>,
}

/// What the reader of a stream hands to its writer, in the order of the requests.
enum Next<A> {
    Answer(Running<A>),
    /// The stream itself is broken; this ends it.
    Broken(Status),
}

/// A request in flight. Dropping it, as the stream does when the client has gone, cancels it.
struct Running<A> {
    task: JoinHandle<Result<A, Status>>,
    _busy: Busy,
}

impl<A> Drop for Running<A> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The call that a stream's requests belong to.
struct OpenCall {
    arrival: Arrival,
    traced: Option<CallSpan>,
    carried: Option<Carried>,
}

impl OpenCall {
    /// Whether who has opened the stream may still send: tokens end, and are taken back.
    fn check(&self) -> Result<(), Problem> {
        self.carried.as_ref().map_or(Ok(()), |carried| carried.pass.check())
    }
}

/// Opens a stream whose requests `answer` answers.
pub(crate) fn open<E, R, A, F>(
    context: Arc<Context<E>>,
    arrival: Arrival,
    requests: Streaming<R>,
    answer: impl Fn(Arc<Context<E>>, Arrival, R) -> F + Send + 'static,
    manners: Manners<A>,
) -> Result<Answers<A>, Problem>
where
    E: Inference,
    R: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let permit = context.streams.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Problem::TooManyStreams { limit: context.limits.streams })?;
    let traced = context.traces.current();
    let guard = (permit, InFlight::enter(&context.in_flight), traced.clone());
    let (sender, receiver) = mpsc::channel(context.limits.stream_requests.max(1) as usize);
    let Manners { panicked, drained } = manners;
    let call = OpenCall { arrival, traced, carried: Carried::current() };
    tokio::spawn(read(context, call, requests, sender, answer, drained).in_current_span());
    Ok(Box::pin(
        ReceiverStream::new(receiver).then(move |next| write(next, panicked)).map(move |answer| hold(&guard, answer)),
    ))
}

/// The next message of a call that many are sent in and one answers.
///
/// # Errors
/// The stream is broken, nothing comes, who sends it may not any more, or the server goes down.
pub(crate) async fn next<E: Inference, R>(
    context: &Context<E>,
    messages: &mut Streaming<R>,
) -> Result<Option<R>, Status> {
    let (mut draining, limit) = (context.draining.clone(), context.limits.stream_idle);
    let message = tokio::select! {
        message = messages.message() => message?,
        () = sleep(limit) => return Err(Problem::StreamIdle { limit }.into()),
        _ = draining.wait_for(|draining| *draining) => return Err(Problem::GoingDown.into()),
    };
    if let Some(carried) = Carried::current() {
        carried.pass.check()?;
    }
    Ok(message)
}

/// The stream counts as open until its writer is dropped, and its span lasts as long.
fn hold<T>(_guard: &(OwnedSemaphorePermit, InFlight, Option<CallSpan>), answer: T) -> T {
    answer
}

async fn write<A>(next: Next<A>, panicked: fn() -> Result<A, Status>) -> Result<A, Status> {
    match next {
        Next::Answer(mut running) => (&mut running.task).await.unwrap_or_else(|_| {
            // Without the panic's text, which may hold a piece of the client's.
            tracing::error!("a request of a stream panicked");
            panicked()
        }),
        Next::Broken(status) => Err(status),
    }
}

/// Reads requests until the client has sent its last, has gone, sends nothing any more or may not, or the server goes down.
async fn read<E, R, A, F>(
    context: Arc<Context<E>>,
    call: OpenCall,
    mut requests: Streaming<R>,
    sender: mpsc::Sender<Next<A>>,
    answer: impl Fn(Arc<Context<E>>, Arrival, R) -> F + Send,
    drained: fn() -> Option<Status>,
) where
    E: Inference,
    R: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let mut draining = context.draining.clone();
    let (activity, limit) = (Activity::new(), context.limits.stream_idle);
    loop {
        // A place in the channel first: a request is read only when it may start. One answer is with the writer.
        let Ok(place) = sender.reserve().await else { return };
        let read = tokio::select! {
            read = requests.message() => read,
            () = sender.closed() => return,
            () = activity.ceases(limit) => {
                place.send(Next::Broken(Problem::StreamIdle { limit }.into()));
                return;
            }
            _ = draining.wait_for(|draining| *draining) => {
                if let Some(status) = drained() {
                    place.send(Next::Broken(status));
                }
                return;
            }
        };
        match read {
            Ok(Some(request)) => {
                if let Err(problem) = call.check() {
                    place.send(Next::Broken(problem.into()));
                    return;
                }
                let arrival = Arrival { at: Instant::now(), deadline: call.arrival.deadline };
                let answer = answer(context.clone(), arrival, request).in_current_span();
                let task = match &call.traced {
                    Some(traced) => tokio::spawn(traced.message().carry(answer)),
                    None => tokio::spawn(answer),
                };
                place.send(Next::Answer(Running { task, _busy: activity.begin() }));
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
