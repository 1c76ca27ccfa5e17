//! Where a metric gets its name: registered for `/metrics` and listed for the reference page by one call.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::{counter, gauge, histogram};
use prometheus_client::registry::{Metric, Registry};

/// The prefix of every name.
pub(super) const PREFIX: &str = "plimsoll";

/// The labels of one series.
pub(super) type Labels = Vec<(&'static str, String)>;
/// Events.
pub(super) type Counter = counter::Counter;
/// An amount that only grows and is no whole number, such as seconds.
pub(super) type Amount = counter::Counter<f64, AtomicU64>;
/// A level. Bytes are exact up to 2^53 (8 PiB).
pub(super) type Gauge = gauge::Gauge<f64, AtomicU64>;
/// A distribution.
pub(super) type Histogram = histogram::Histogram;

/// The bounds of a histogram's buckets; the series of a family are made with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buckets(pub(super) &'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// What the reference page says about one metric.
#[derive(Debug)]
pub(super) struct Entry {
    /// As `/metrics` writes it.
    pub(super) name: String,
    /// `counter`, `gauge` or `histogram`.
    pub(super) kind: &'static str,
    /// The names of its labels.
    pub(super) labels: &'static [&'static str],
    /// What it means: a sentence without its full stop, which the text format adds.
    pub(super) help: &'static str,
}

/// The registry and the list of what is in it.
#[derive(Debug)]
pub(super) struct Catalogue {
    registry: Registry,
    entries: Vec<Entry>,
}

impl Catalogue {
    pub(super) fn new() -> Catalogue {
        Catalogue { registry: Registry::with_prefix(PREFIX), entries: Vec::new() }
    }

    /// A counter of events. The text format appends `_total`.
    pub(super) fn counter(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Family<Labels, Counter> {
        self.add(name, "_total", "counter", labels, help, Family::default())
    }

    /// A counter of an amount, its unit last in the name. The text format appends `_total`.
    pub(super) fn amount(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Family<Labels, Amount> {
        self.add(name, "_total", "counter", labels, help, Family::default())
    }

    /// A level, its unit last in the name.
    pub(super) fn gauge(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Family<Labels, Gauge> {
        self.add(name, "", "gauge", labels, help, Family::default())
    }

    /// A distribution, its unit last in the name.
    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        buckets: Buckets,
    ) -> Family<Labels, Histogram, Buckets> {
        self.add(name, "", "histogram", labels, help, Family::new_with_constructor(buckets))
    }

    fn add<M: Metric + Clone>(
        &mut self,
        name: &'static str,
        suffix: &str,
        kind: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        metric: M,
    ) -> M {
        self.registry.register(name, help, metric.clone());
        self.entries.push(Entry { name: format!("{PREFIX}_{name}{suffix}"), kind, labels, help });
        metric
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn encode(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).expect("writing to a String does not fail");
        text
    }
}
