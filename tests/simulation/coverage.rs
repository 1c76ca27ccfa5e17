//! Which kinds of events a simulation has seen.

use std::collections::BTreeMap;

use plimsoll::admission::{LateAt, QueueLimit, Rejection, TooLarge};
use plimsoll::memory::Rungs;

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage(BTreeMap<String, u64>);

/// Everything that a long enough simulation has to see.
pub(crate) const EXPECTED: &[&str] = &[
    "answer: finished",
    "answer: faulted",
    "answer: cancelled",
    "rejection: empty",
    "rejection: too large, rows",
    "rejection: too large, length",
    "rejection: too large, workspace",
    "rejection: queue full, rows",
    "rejection: queue full, tokens",
    "rejection: queue full, host bytes",
    "rejection: late at admission",
    "rejection: late in queue",
    "rejection: late in step",
    "rejection: out of memory, waiting",
    "rejection: out of memory, ladder",
    "rejection: not loaded",
    "rejection: loading",
    "rejection: draining",
    "rejection: does not fit",
    "rejection: broken",
    "rung: trim",
    "rung: halve",
    "rung: evict",
    "rung: refuse",
    "reason: memory",
    "reason: latency",
    "reason: knee",
    "reason: queue",
    "reason: limit",
    "lane: down to loading",
    "lane: loading to ready",
    "lane: loading to down",
    "lane: ready to draining",
    "lane: ready to down",
    "lane: draining to down",
    "step: ahead",
    "row: waits again",
    "profile: probe done",
    "profile: probe out of memory",
    "profile: probe faulted",
    "profile: stale",
    "profile: complete",
    "budget: applied",
    "budget: deferred",
    "step: several classes",
    "memory: waited",
];

impl Coverage {
    pub(crate) fn hit(&mut self, name: &str) {
        *self.0.entry(name.to_owned()).or_default() += 1;
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Coverage) {
        for (name, count) in &other.0 {
            *self.0.entry(name.clone()).or_default() += count;
        }
    }

    pub(crate) fn rungs(&mut self, rungs: Rungs) {
        let counts =
            [("trim", rungs.trims), ("halve", rungs.halvings), ("evict", rungs.evictions), ("refuse", rungs.refusals)];
        for (name, _) in counts.into_iter().filter(|&(_, count)| count > 0) {
            self.hit(&format!("rung: {name}"));
        }
    }

    /// `waiting`: it was rejected without a step.
    pub(crate) fn rejection(&mut self, rejection: &Rejection, waiting: bool) {
        self.hit(match rejection {
            Rejection::Empty => "rejection: empty",
            Rejection::TooLarge(TooLarge::Rows { .. }) => "rejection: too large, rows",
            Rejection::TooLarge(TooLarge::Length { .. }) => "rejection: too large, length",
            Rejection::TooLarge(TooLarge::Workspace { .. }) => "rejection: too large, workspace",
            Rejection::TooLarge(TooLarge::Queue { .. }) => "rejection: too large, queue",
            Rejection::QueueFull { limit: QueueLimit::Rows, .. } => "rejection: queue full, rows",
            Rejection::QueueFull { limit: QueueLimit::Tokens, .. } => "rejection: queue full, tokens",
            Rejection::QueueFull { limit: QueueLimit::HostBytes, .. } => "rejection: queue full, host bytes",
            Rejection::Late { at: LateAt::Admission, .. } => "rejection: late at admission",
            Rejection::Late { at: LateAt::Queue, .. } => "rejection: late in queue",
            Rejection::Late { at: LateAt::Step, .. } => "rejection: late in step",
            Rejection::Cancelled => "answer: cancelled",
            Rejection::OutOfMemory { .. } if waiting => "rejection: out of memory, waiting",
            Rejection::OutOfMemory { .. } => "rejection: out of memory, ladder",
            Rejection::NotLoaded => "rejection: not loaded",
            Rejection::Loading { .. } => "rejection: loading",
            Rejection::Draining => "rejection: draining",
            Rejection::DoesNotFit { .. } => "rejection: does not fit",
            Rejection::Broken => "rejection: broken",
        });
    }

    /// The expected names that were not seen.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        EXPECTED.iter().copied().filter(|name| self.count(name) == 0).collect()
    }
}
