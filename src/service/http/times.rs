//! The headers that say what a call took, in milliseconds.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

use crate::service::tei::answered::Spent;

/// The answer with them.
pub(super) fn with_times(spent: Spent, mut response: Response) -> Response {
    let milliseconds = |ns: u64| HeaderValue::from(ns / 1_000_000);
    let headers: &mut HeaderMap = response.headers_mut();
    let mut set = |name: &'static str, value| headers.insert(HeaderName::from_static(name), value);
    set("x-compute-type", HeaderValue::from_static(spent.device));
    set("x-compute-time", milliseconds(spent.total_ns));
    set("x-compute-characters", HeaderValue::from(spent.characters));
    set("x-compute-tokens", HeaderValue::from(spent.tokens));
    set("x-total-time", milliseconds(spent.total_ns));
    set("x-tokenization-time", milliseconds(spent.tokenize_ns));
    set("x-queue-time", milliseconds(spent.queue_ns));
    set("x-inference-time", milliseconds(spent.compute_ns));
    response
}
