//! The metrics that are read, by the names that `/metrics` has for them.

/// Its label says which version is running.
pub(super) const BUILD_INFO: &str = "plimsoll_build_info";

/// Requests that have ended.
pub(super) const REQUESTS: &str = "plimsoll_requests_total";
/// Rows of those.
pub(super) const ROWS: &str = "plimsoll_rows_total";
/// Tokens that were served, padding left out.
pub(super) const TOKENS: &str = "plimsoll_tokens_real_total";
/// From acceptance to the answer.
pub(super) const REQUEST_SECONDS: &str = "plimsoll_request_seconds";
/// Rows that wait for a step.
pub(super) const QUEUE_ROWS: &str = "plimsoll_queue_rows";
/// How long the oldest waits.
pub(super) const QUEUE_AGE: &str = "plimsoll_queue_age_seconds";
/// Steps by what bound them.
pub(super) const STEPS: &str = "plimsoll_steps_total";
/// Rows of a step.
pub(super) const BATCH_ROWS: &str = "plimsoll_batch_rows";
/// Time on the device.
pub(super) const DEVICE_SECONDS: &str = "plimsoll_device_seconds_total";
/// What was done where memory fell short.
pub(super) const LADDER: &str = "plimsoll_ladder_total";
/// Where a model is in its life.
pub(super) const MODEL_STATE: &str = "plimsoll_model_state";
/// Its weights.
pub(super) const MODEL_RESIDENT: &str = "plimsoll_model_resident_bytes";
/// Its KV cache.
pub(super) const MODEL_KV: &str = "plimsoll_model_kv_bytes";
/// What its next step may use.
pub(super) const MODEL_HEADROOM: &str = "plimsoll_model_headroom_bytes";

/// The budget.
pub(super) const DEVICE_CAPACITY: &str = "plimsoll_device_capacity_bytes";
/// All memory there is.
pub(super) const DEVICE_TOTAL: &str = "plimsoll_device_total_bytes";
/// What of it nobody has.
pub(super) const DEVICE_FREE: &str = "plimsoll_device_free_bytes";
/// Taken of a card by its context and its modules.
pub(super) const DEVICE_FIXED: &str = "plimsoll_device_fixed_bytes";
/// Scratch of libraries.
pub(super) const DEVICE_LIBRARY: &str = "plimsoll_device_library_bytes";
/// Workspace of steps, live and cached.
pub(super) const DEVICE_RESERVED: &str = "plimsoll_device_workspace_reserved_bytes";
/// The cached part of it.
pub(super) const DEVICE_CACHED: &str = "plimsoll_device_workspace_cached_bytes";

/// All of them: nothing else of an answer is kept.
pub(super) const READ: [&str; 22] = [
    BUILD_INFO,
    REQUESTS,
    ROWS,
    TOKENS,
    REQUEST_SECONDS,
    QUEUE_ROWS,
    QUEUE_AGE,
    STEPS,
    BATCH_ROWS,
    DEVICE_SECONDS,
    LADDER,
    MODEL_STATE,
    MODEL_RESIDENT,
    MODEL_KV,
    MODEL_HEADROOM,
    DEVICE_CAPACITY,
    DEVICE_TOTAL,
    DEVICE_FREE,
    DEVICE_FIXED,
    DEVICE_LIBRARY,
    DEVICE_RESERVED,
    DEVICE_CACHED,
];

/// What the text format appends for each series of a histogram.
const HISTOGRAM: [&str; 3] = ["_bucket", "_sum", "_count"];

/// Whether a series of this name is one of them, or part of a histogram that is.
pub(super) fn is_read(name: &str) -> bool {
    READ.contains(&name) || HISTOGRAM.iter().any(|end| name.strip_suffix(end).is_some_and(|name| READ.contains(&name)))
}

/// Whether a series of this name only grows while its server lives.
pub(super) fn only_grows(name: &str) -> bool {
    name.ends_with("_total") || HISTOGRAM.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn every_metric_that_is_read_exists() {
        let reference = Metrics::new().reference();
        let known: BTreeSet<&str> =
            reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        let unknown: Vec<_> = READ.iter().filter(|name| !known.contains(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        // A constant that is not in the list would be read and never found.
        let constants = include_str!("names.rs").lines().filter(|line| line.contains(": &str = \"plimsoll_"));
        assert_eq!(constants.count(), READ.len());
    }

    #[test]
    fn parts_of_a_histogram_belong_to_it() {
        assert!(is_read("plimsoll_request_seconds_bucket") && is_read("plimsoll_batch_rows_sum"));
        assert!(is_read("plimsoll_queue_rows") && !is_read("plimsoll_step_seconds_bucket"));
        assert!(only_grows("plimsoll_steps_total") && only_grows("plimsoll_batch_rows_count"));
        assert!(!only_grows("plimsoll_queue_rows") && !only_grows("plimsoll_model_state"));
    }
}
