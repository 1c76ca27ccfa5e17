//! What is shown: the figures that a person reads, derived from what the server counts. Pure.

use std::time::Duration;

use super::history::{Growth, History, KEPT};
use super::names;
use super::samples::Samples;

/// Over which rates, quantiles and shares are taken: long enough to be read, short enough to follow.
const WINDOW: Duration = Duration::from_secs(10);

/// Whether the server answers, and what it says of itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    /// Nothing is known yet.
    Asking,
    /// It serves.
    Ready,
    /// It does not, and says why.
    NotReady(String),
    /// It does not answer, since then; the figures are its last ones.
    Away { since: Duration, reason: String },
}

/// Everything that is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) address: String,
    pub(super) condition: Condition,
    /// Of the server; empty before its first answer.
    pub(super) version: String,
    /// What rates are taken over; zero where one answer is all there is.
    pub(super) window: Duration,
    /// What "recent" means for events.
    pub(super) recent: Duration,
    pub(super) devices: Vec<DeviceView>,
    pub(super) models: Vec<ModelView>,
}

/// Where a device's bytes are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceView {
    pub(super) name: String,
    /// The part of the window in which it ran steps.
    pub(super) busy: Option<f64>,
    pub(super) total: f64,
    pub(super) budget: f64,
    /// Used of the budget.
    pub(super) used: f64,
    /// What a step may still take: the rest of the budget, as far as it is free.
    pub(super) headroom: f64,
    /// All bytes, those of the budget first.
    pub(super) parts: Vec<(Part, f64)>,
}

/// What bytes are there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Of the model with this index.
    Weights(usize),
    /// Of the model with this index.
    KvCache(usize),
    Workspace,
    CachedWorkspace,
    Libraries,
    /// The last part that counts to the budget.
    Headroom,
    Fixed,
    Others,
    /// Free, and beyond the budget.
    Beyond,
}

/// What one model does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelView {
    pub(super) name: String,
    pub(super) state: String,
    /// Answered, by second; like all rates unknown where one answer is all there is.
    pub(super) requests: Option<f64>,
    pub(super) rows: Option<f64>,
    pub(super) tokens: Option<f64>,
    /// Seconds from acceptance to the answer.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    /// Rows that wait.
    pub(super) queue: f64,
    /// Seconds for which the oldest has waited.
    pub(super) oldest: f64,
    /// Its part of the time in which the device served.
    pub(super) share: Option<f64>,
    /// Mean rows of a step.
    pub(super) batch: Option<f64>,
    pub(super) weights: f64,
    pub(super) headroom: f64,
    /// Why steps were not larger, as parts of 1; none where there was no step.
    pub(super) reasons: Vec<(String, f64)>,
    pub(super) events: Vec<Event>,
}

/// Something that should not have to happen, and has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) what: String,
    /// Since the server's start.
    pub(super) total: f64,
    pub(super) recent: f64,
    /// Somebody got no answer for it.
    pub(super) refused: bool,
}

/// The rungs of the out-of-memory ladder from the lowest, in words.
pub(super) const RUNGS: [(&str, &str); 4] =
    [("trim", "trimmed"), ("halve", "halved"), ("evict", "evicted another"), ("refuse", "gave up rows")];

impl View {
    /// What is to be shown of a server that was seen like this.
    pub(super) fn new(address: &str, condition: Condition, history: &History) -> View {
        let now = history.now();
        let growth = history.over(WINDOW);
        let minute = history.over(KEPT);
        let names: Vec<String> =
            now.of(names::QUEUE_ROWS, &[]).map(|(series, _)| series.label("model").to_owned()).collect();
        View {
            address: address.to_owned(),
            condition,
            version: now
                .of(names::BUILD_INFO, &[])
                .map(|(series, _)| series.label("version").to_owned())
                .next()
                .unwrap_or_default(),
            window: growth.map_or(Duration::ZERO, Growth::passed),
            recent: minute.map_or(Duration::ZERO, Growth::passed),
            devices: now
                .of(names::DEVICE_CAPACITY, &[])
                .map(|(series, budget)| device(series.label("device"), budget, now, growth, &names))
                .collect(),
            models: match (growth, minute) {
                (Some(growth), Some(minute)) => names.iter().map(|name| model(name, now, growth, minute)).collect(),
                _ => Vec::new(),
            },
        }
    }
}

fn device(name: &str, budget: f64, now: &Samples, growth: Option<Growth<'_>>, models: &[String]) -> DeviceView {
    let of = |metric| now.sum(metric, &[("device", name)]);
    let (total, free, fixed) = (of(names::DEVICE_TOTAL), of(names::DEVICE_FREE), of(names::DEVICE_FIXED));
    let (reserved, cached) = (of(names::DEVICE_RESERVED), of(names::DEVICE_CACHED));
    let mut parts = Vec::new();
    for (index, model) in models.iter().enumerate() {
        parts.push((Part::Weights(index), now.sum(names::MODEL_RESIDENT, &[("model", model)])));
        parts.push((Part::KvCache(index), now.sum(names::MODEL_KV, &[("model", model)])));
    }
    parts.push((Part::Workspace, (reserved - cached).max(0.0)));
    parts.push((Part::CachedWorkspace, cached));
    parts.push((Part::Libraries, of(names::DEVICE_LIBRARY)));
    let used: f64 = parts.iter().map(|(_, bytes)| bytes).sum();
    // Where others have taken what the budget promises, the rest of it is not to be had.
    let headroom = (budget - used).clamp(0.0, free.max(0.0));
    parts.push((Part::Headroom, headroom));
    parts.push((Part::Fixed, fixed));
    parts.push((Part::Others, (total - free - used - fixed).max(0.0)));
    parts.push((Part::Beyond, (free - headroom).max(0.0)));
    parts.retain(|(_, bytes)| *bytes > 0.0);
    // A step counts when it is done: one that began before the window would make it more than all of it.
    let busy = growth.and_then(|growth| growth.rate(names::DEVICE_SECONDS, &[])).map(|busy| busy.min(1.0));
    DeviceView { name: name.to_owned(), busy, total, budget, used, headroom, parts }
}

fn model(name: &str, now: &Samples, growth: Growth<'_>, minute: Growth<'_>) -> ModelView {
    let of = [("model", name)];
    let answered = [("model", name), ("outcome", "answered")];
    let state = now.of(names::MODEL_STATE, &of).find(|(_, value)| *value == 1.0);
    let served = growth.of(names::DEVICE_SECONDS, &[("purpose", "serve")]);
    let own = growth.of(names::DEVICE_SECONDS, &[("model", name), ("purpose", "serve")]);
    let steps = growth.of(names::STEPS, &of);
    let mean = |metric: &str| {
        let count = growth.of(&format!("{metric}_count"), &of);
        (count > 0.0).then(|| growth.of(&format!("{metric}_sum"), &of) / count)
    };
    let mut reasons: Vec<(String, f64)> = now
        .of(names::STEPS, &of)
        .map(|(series, _)| series.label("reason"))
        .map(|reason| (reason.to_owned(), growth.of(names::STEPS, &[("model", name), ("reason", reason)])))
        .filter(|(_, count)| *count > 0.0)
        .map(|(reason, count)| (reason, count / steps))
        .collect();
    reasons.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ModelView {
        name: name.to_owned(),
        state: state.map(|(series, _)| series.label("state").replace('_', " ")).unwrap_or_default(),
        requests: growth.rate(names::REQUESTS, &answered),
        rows: growth.rate(names::ROWS, &answered),
        tokens: growth.rate(names::TOKENS, &of),
        p50: growth.quantile(names::REQUEST_SECONDS, &of, 0.5),
        p99: growth.quantile(names::REQUEST_SECONDS, &of, 0.99),
        queue: now.sum(names::QUEUE_ROWS, &of),
        oldest: now.sum(names::QUEUE_AGE, &of),
        share: (served > 0.0).then(|| own / served),
        batch: mean(names::BATCH_ROWS),
        weights: now.sum(names::MODEL_RESIDENT, &of),
        headroom: now.sum(names::MODEL_HEADROOM, &of),
        reasons,
        events: events(name, now, minute),
    }
}

fn events(model: &str, now: &Samples, minute: Growth<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |what: String, metric: &str, labels: &[(&str, &str)], refused| {
        let (total, recent) = (now.sum(metric, labels), minute.of(metric, labels));
        // After a restart nothing is left of the total, and the minute still knows.
        if total > 0.0 || recent > 0.0 {
            events.push(Event { what, total, recent, refused });
        }
    };
    for (rung, word) in RUNGS {
        add(word.to_owned(), names::LADDER, &[("model", model), ("rung", rung)], rung == "refuse");
    }
    for (series, _) in now.of(names::REQUESTS, &[("model", model)]) {
        let (outcome, reason) = (series.label("outcome"), series.label("reason"));
        if outcome != "answered" {
            let labels = [("model", model), ("outcome", outcome), ("reason", reason)];
            add(format!("{outcome}: {}", reason.replace('_', " ")), names::REQUESTS, &labels, true);
        }
    }
    events
}
