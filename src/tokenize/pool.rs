//! Threads for tokenizing, so that a long text never holds up a connection.

use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};

use super::encoder::{TextEncoder, TextRow};
use super::error::{RowError, TokenizeError};
use super::place::Place;
use crate::config::Truncate;
use crate::model::TokenRow;

/// A few threads that tokenize the rows of all requests, and a bound on the calls that wait for them in their queue:
/// further calls wait as futures, which costs nothing but themselves. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TokenizerPool {
    threads: Arc<rayon::ThreadPool>,
    queue: Arc<Semaphore>,
    /// Calls that the queue has place for.
    places: usize,
}

/// Work of a call that is done where it is while there is no other: handing it to a thread and back wakes two threads, which
/// takes as long. In bytes of text as the tokenizers library takes them, some 5 MB a second.
const SHORT_ALONE: usize = 1024;

/// Work of a call that is done where it is in any case: some 25 us.
const SHORT: usize = 128;

/// Calls in the threads' queue for each thread: enough that a thread finds the next one when it is done.
const QUEUED_PER_THREAD: usize = 4;

impl TokenizerPool {
    /// A pool of `threads` threads; they live as long as the pool.
    ///
    /// # Errors
    /// That of the operating system when it gives no threads.
    pub fn new(threads: usize) -> Result<TokenizerPool, std::io::Error> {
        let threads = threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("tokenize-{index}"))
            .build()
            .map_err(std::io::Error::other)?;
        let places = threads * QUEUED_PER_THREAD;
        Ok(TokenizerPool { threads: Arc::new(pool), queue: Arc::new(Semaphore::new(places)), places })
    }

    /// Its threads.
    pub fn threads(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// The rows' tokens in order. Dropping the future gives up the result; a call that a thread has begun is finished.
    ///
    /// # Errors
    /// That of the first row that has one.
    pub async fn encode_batch(
        &self,
        encoder: Arc<TextEncoder>,
        rows: Vec<TextRow>,
        truncate: Truncate,
    ) -> Result<Vec<TokenRow>, RowError> {
        let rows = self.run(encoder.work(&rows), move || encoder.encode_batch(&rows, truncate)).await;
        rows.unwrap_or_else(|| Err(failed("it panicked on this request")))
    }

    /// The same with the places of the tokens, for rows that have no second part.
    ///
    /// # Errors
    /// That of the first row that has one.
    pub async fn encode_batch_placed(
        &self,
        encoder: Arc<TextEncoder>,
        rows: Vec<TextRow>,
        truncate: Truncate,
    ) -> Result<Vec<(TokenRow, Vec<Place>)>, RowError> {
        let rows = self.run(bytes_of(&rows), move || encoder.encode_batch_placed(&rows, truncate)).await;
        rows.unwrap_or_else(|| Err(failed("it panicked on this request")))
    }

    /// Has a thread do this, which is about as much as tokenizing so many bytes of text. `None` if it ended, or the work panicked. Dropping the future gives up
    /// the result; work that a thread has begun is finished.
    pub async fn run<T: Send + 'static>(&self, bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let work = move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok();
        if bytes <= SHORT {
            return work();
        }
        let turn = Arc::clone(&self.queue).acquire_owned().await.ok()?;
        // Its own turn is the only one taken. So one connection's thread at most is held up at a time.
        let alone = self.queue.available_permits() + 1 == self.places;
        if alone && bytes <= SHORT_ALONE {
            return work();
        }
        let (answer, result) = oneshot::channel();
        self.threads.spawn(move || {
            // Nobody waits any more when the future was dropped in the queue.
            if !answer.is_closed() {
                // The receiver may be gone by now: its business.
                let _ = answer.send(work());
            }
            drop(turn);
        });
        result.await.ok()?
    }
}

fn bytes_of(rows: &[TextRow]) -> usize {
    rows.iter().map(|row| row.text.len() + row.pair.as_ref().map_or(0, String::len)).sum()
}

fn failed(reason: &str) -> RowError {
    RowError { row: 0, error: TokenizeError::Failed { reason: reason.to_owned() } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_calls_at_once_get_their_own_rows() {
        let json = include_bytes!("../../models/tiny-embed/tokenizer.json");
        let encoder = Arc::new(TextEncoder::new(json, 512, 8192, 2).unwrap());
        let pool = TokenizerPool::new(2).unwrap();
        let calls: Vec<_> = (0..50)
            .map(|call| {
                let rows = vec![TextRow { text: "web ".repeat(call + 1), pair: None }; 3];
                let (pool, encoder) = (pool.clone(), Arc::clone(&encoder));
                tokio::spawn(async move { pool.encode_batch(encoder, rows, Truncate::No).await })
            })
            .collect();
        for (call, handle) in calls.into_iter().enumerate() {
            let rows = handle.await.unwrap().unwrap();
            assert_eq!(rows.iter().map(|row| row.ids.len()).collect::<Vec<_>>(), vec![call + 3; 3]);
        }
    }
}
