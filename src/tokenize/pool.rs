//! Threads for tokenizing, so that a long text never holds up a connection.

use std::iter::once;
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

    /// The rows' tokens in order. Dropping the future gives up the result; a row that a thread has begun is finished.
    ///
    /// # Errors
    /// That of the first row that has one.
    pub async fn encode_batch(
        &self,
        encoder: Arc<TextEncoder>,
        rows: Vec<TextRow>,
        truncate: Truncate,
    ) -> Result<Vec<TokenRow>, RowError> {
        let work = encoder.work(&rows);
        let encode = move |row: TextRow| encoder.encode(&row.text, row.pair.as_deref(), truncate);
        self.each(work, rows, encode).await
    }

    /// The tokens of the pairs of a text with each of others, in the order of those. The first text is taken apart once.
    ///
    /// # Errors
    /// That of the first pair that has one.
    pub async fn encode_pairs(
        &self,
        encoder: Arc<TextEncoder>,
        first: String,
        seconds: Vec<String>,
        truncate: Truncate,
    ) -> Result<Vec<TokenRow>, RowError> {
        let work = once(&first).chain(&seconds).map(|text| encoder.work_of(text)).sum();
        let mut part = None;
        let encode = move |second: String| {
            let part = match &mut part {
                Some(part) => part,
                empty => empty.insert(encoder.first_part(&first, truncate)?),
            };
            encoder.encode_second(part, &second, truncate)
        };
        self.each(work, seconds, encode).await
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
        let work = rows.iter().map(|row| row.text.len()).sum();
        self.each(work, rows, move |row: TextRow| encoder.encode_placed(&row.text, truncate)).await
    }

    /// What becomes of each row, or the first error. Between two rows a thread looks whether anybody still waits.
    async fn each<R: Send + 'static, T: Send + 'static>(
        &self,
        bytes: usize,
        rows: Vec<R>,
        mut encode: impl FnMut(R) -> Result<T, TokenizeError> + Send + 'static,
    ) -> Result<Vec<T>, RowError> {
        let waiting = Arc::new(());
        let awaited = Arc::downgrade(&waiting);
        let one = move |(row, text)| match awaited.strong_count() {
            0 => Err(failed("nobody waits for it")),
            _ => encode(text).map_err(|error| RowError { row, error }),
        };
        let rows = self.run(bytes, move || rows.into_iter().enumerate().map(one).collect()).await;
        // Dropped with this future, or here.
        drop(waiting);
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

    #[tokio::test]
    async fn pairs_are_those_of_rows_and_name_the_bad_one() {
        let json = include_bytes!("../../models/tiny-rerank/tokenizer.json");
        let encoder = Arc::new(TextEncoder::new(json, 16, 8192, 2).unwrap());
        let pool = TokenizerPool::new(2).unwrap();
        let (query, texts) = ("web server".to_owned(), ["mail client", "a", ""].map(str::to_owned));
        let row = |text: &String| TextRow { text: query.clone(), pair: Some(text.clone()) };
        let rows = texts.iter().map(row).collect();
        let expected = pool.encode_batch(encoder.clone(), rows, Truncate::No).await.unwrap();
        let pairs = |texts: Vec<String>| pool.encode_pairs(encoder.clone(), query.clone(), texts, Truncate::No);
        assert_eq!(pairs(texts.to_vec()).await.unwrap(), expected);
        let error = pairs(vec!["a".to_owned(), "web ".repeat(20)]).await.unwrap_err();
        assert_eq!(error.row, 1);
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_ends_between_two_rows() {
        let pool = TokenizerPool::new(1).unwrap();
        let (begun, go_on) = (Arc::new(Semaphore::new(0)), std::sync::mpsc::channel::<()>());
        let (sent, done) = (begun.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
        let counted = done.clone();
        let encode = move |_: usize| {
            sent.add_permits(1);
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            // An error means that the test is over.
            let _ = go_on.1.recv();
            Ok(())
        };
        let call = tokio::spawn({
            let pool = pool.clone();
            async move { pool.each(1 << 20, (0..100).collect(), encode).await }
        });
        begun.acquire().await.unwrap().forget();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        drop(go_on.0);
        // The thread has done all that it was going to do when it does something else.
        pool.run(1 << 20, || ()).await.unwrap();
        assert_eq!(done.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}
