//! Messages on their way in, each within its time: what has come of one is held until all of it is there.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;

use super::errors::Problem;

/// The same call, whose message has to be there within this time.
pub(crate) fn timely(request: Request<Body>, most: Duration) -> Request<Body> {
    let until = Instant::now() + most;
    request.map(|body| Body::new(Timely { body, until, timer: None }))
}

struct Timely {
    body: Body,
    until: Instant,
    /// Made when something has to be waited for, which is seldom.
    timer: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Timely {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(this.until)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Some(Err(Problem::MessageLate.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
