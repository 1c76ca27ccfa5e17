//! The way of spans to the collector, which must never be in the way of a request: a bounded queue, and a thread that
//! sends batches of it. What is lost is counted, and told once in a while.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use tokio::sync::watch;

/// Spans that may wait to be sent: a few MiB, what a thousand requests have. Further ones are lost.
const WAITING_MAX: usize = 4096;

/// Spans of one message.
const BATCH_MAX: usize = 512;

/// How long a span waits for others at most.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// How long there is nothing in the log between two lines about lost spans.
const QUIET: Duration = Duration::from_secs(60);

/// A bounded queue with an exporter behind it.
#[derive(Debug)]
pub(super) struct Delivery {
    batches: BatchSpanProcessor,
    books: Arc<Books>,
}

impl Delivery {
    pub(super) fn new(exporter: impl SpanExporter + 'static) -> Delivery {
        let books = Arc::new(Books::default());
        // Its own bound is never met: ours is, which counts.
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(WAITING_MAX)
            .with_max_export_batch_size(BATCH_MAX)
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        let batches = BatchSpanProcessor::new(Counted { exporter, books: books.clone() }, config);
        Delivery { batches, books }
    }
}

impl SpanProcessor for Delivery {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.books.enter() {
            self.batches.on_end(span);
        } else {
            self.books.lose(1, &"the collector takes them too slowly");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        let ended = self.batches.shutdown_with_timeout(timeout);
        self.books.close();
        ended
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// An exporter whose batches are counted, and given up when time is over: what sends them does not outlive the server.
#[derive(Debug)]
struct Counted<X> {
    exporter: X,
    books: Arc<Books>,
}

impl<X: SpanExporter> SpanExporter for Counted<X> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = tokio::select! {
            result = self.exporter.export(batch) => result,
            () = self.books.closed() => Err(OTelSdkError::AlreadyShutdown),
        };
        self.books.leave(count);
        if let Err(error) = &result {
            self.books.lose(count as u64, error);
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Spans that wait, and spans that were lost.
#[derive(Debug, Default)]
struct Books {
    /// Until their batch is delivered.
    waiting: AtomicUsize,
    /// All of them.
    lost: AtomicU64,
    told: Mutex<Told>,
    closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Told {
    at: Option<Instant>,
    lost: u64,
}

impl Books {
    /// Counts one more that waits, if it may.
    fn enter(&self) -> bool {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= WAITING_MAX {
            self.leave(1);
        }
        waiting < WAITING_MAX
    }

    fn leave(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
    }

    fn lose(&self, count: u64, cause: &dyn fmt::Display) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        if *self.closed.borrow() {
            return;
        }
        if let Some(lost) = self.to_tell(Instant::now()) {
            let lost_in_all = self.lost.load(Ordering::Relaxed);
            tracing::warn!(lost, lost_in_all, %cause, "spans of traces were lost; the next line about it comes in a minute");
        }
    }

    /// Gives up what still waits, and tells what no line has told.
    fn close(&self) {
        let waiting = self.waiting.load(Ordering::Relaxed) as u64;
        let lost_in_all = self.lost.load(Ordering::Relaxed) + waiting;
        self.closed.send_replace(true);
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).lost;
        if lost_in_all > told {
            tracing::warn!(lost = lost_in_all - told, lost_in_all, "spans of traces were lost");
        }
    }

    async fn closed(&self) {
        // An error would mean that the sender is gone, which is a field of this.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// How many were lost since the last line, if there is to be one now.
    fn to_tell(&self, now: Instant) -> Option<u64> {
        // Whoever has it writes the line: nobody waits for that.
        let mut told = self.told.try_lock().ok()?;
        if told.at.is_some_and(|at| now.saturating_duration_since(at) < QUIET) {
            return None;
        }
        let lost = self.lost.load(Ordering::Relaxed);
        let news = lost - told.lost;
        *told = Told { at: Some(now), lost };
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_once_a_minute_with_their_number() {
        let (books, start) = (Books::default(), Instant::now());
        let lose = |count, seconds| {
            books.lost.fetch_add(count, Ordering::Relaxed);
            books.to_tell(start + Duration::from_secs(seconds))
        };
        assert_eq!(lose(1, 0), Some(1));
        assert_eq!(lose(2, 1), None);
        assert_eq!(lose(3, 59), None);
        assert_eq!(lose(4, 60), Some(9));
        assert_eq!(lose(5, 61), None);
    }

    #[test]
    fn no_more_wait_than_may() {
        let books = Books::default();
        assert!((0..WAITING_MAX).all(|_| books.enter()));
        assert!(!books.enter() && !books.enter());
        books.leave(1);
        assert!(books.enter() && !books.enter());
    }
}
