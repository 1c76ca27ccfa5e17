//! Answers on their way to a client that may not want them: over HTTP/2 it says call by call how much it takes, and may take
//! nothing of an answer while its connection is well.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Response;

use crate::service::activity::{Activity, Busy};

/// How fast a client takes an answer at least, in bytes a second.
const SLOWEST: u64 = 64 << 10;

/// What a call is told of its connection.
#[derive(Clone, Debug)]
pub(crate) struct OfConnection {
    /// The calls of it.
    pub(crate) calls: Arc<Activity>,
    /// Their answers.
    pub(crate) untaken: Arc<Untaken>,
}

/// Answers of a connection of which the client has to take something, each with the moment until which it may leave it.
#[derive(Debug)]
pub(crate) struct Untaken {
    most: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next answer.
    next: u64,
    until: BTreeMap<u64, Instant>,
}

impl Untaken {
    /// Each may be left for so long, a large part of one for longer.
    pub(super) fn new(most: Duration) -> Arc<Untaken> {
        Arc::new(Untaken { most, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes back when one has been left for too long.
    pub(super) async fn lasts(&self) {
        loop {
            let now = Instant::now();
            let first = self.state().until.values().min().copied();
            match first {
                Some(until) if until <= now => return,
                Some(until) => sleep_until(until).await,
                // What comes meanwhile has as long.
                None => sleep_until(now + self.most).await,
            }
        }
    }

    fn begin(self: Arc<Self>) -> Taking {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        drop(state);
        let taking = Taking { number, untaken: self };
        taking.given(0);
        taking
    }
}

/// One answer.
struct Taking {
    number: u64,
    untaken: Arc<Untaken>,
}

impl Taking {
    /// So many bytes of it are there to be taken.
    fn given(&self, bytes: u64) {
        let until = Instant::now() + self.untaken.most + Duration::from_secs(bytes / SLOWEST);
        self.untaken.state().until.insert(self.number, until);
    }

    /// The client has taken what there was.
    fn wanted(&self) {
        self.untaken.state().until.remove(&self.number);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.wanted();
    }
}

/// The same answer, which lasts until the client has all of it: so long its call is one of the connection's.
pub(crate) fn lasting(response: Response<Body>, connection: OfConnection, busy: Busy) -> Response<Body> {
    let taking = connection.untaken.begin();
    response.map(|body| Body::new(Lasting { body, taking, _busy: busy }))
}

struct Lasting {
    body: Body,
    taking: Taking,
    _busy: Busy,
}

impl HttpBody for Lasting {
    type Data = Bytes;
    type Error = Status;

    /// Called when the client takes what comes.
    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => this.taking.given(frame.data_ref().map_or(0, |data| data.len() as u64)),
            Poll::Ready(_) | Poll::Pending => this.taking.wanted(),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_left_is_noticed_and_one_that_is_awaited_is_not() {
        let most = Duration::from_millis(100);
        let untaken = Untaken::new(most);
        let stays = |untaken: Arc<Untaken>| async move { timeout(most * 4, untaken.lasts()).await.is_err() };
        assert!(stays(untaken.clone()).await, "there is none");
        let taking = untaken.clone().begin();
        taking.wanted();
        assert!(stays(untaken.clone()).await, "the server has nothing to give");
        taking.given(20 * SLOWEST);
        assert!(stays(untaken.clone()).await, "so much takes twenty seconds");
        taking.given(1);
        assert!(!stays(untaken.clone()).await);
        drop(taking);
        assert!(stays(untaken).await);
    }
}
