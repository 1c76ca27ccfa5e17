//! The metrics of a server as it registers them, watched: what is derived from them, and what is drawn.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::history::History;
use super::names;
use super::samples::Samples;
use super::screen::{Colours, draw, print};
use super::view::{Condition, Part, View};
use crate::admission::{QueueLimit, Rejection};
use crate::memory::{Budget, Lease, Observed, Outcome as StepOutcome, Reading, Rungs, Shape};
use crate::scheduler::{Member, Purpose, Reason, Step, Work};
use crate::telemetry::{DeviceBytes, Metrics, ModelLevels, ModelMetrics, Outcome, QueueLevels, RequestTimes};
use crate::units::{Bytes, Micros, ModelId, RequestId, StepId, Timestamp};

/// A server with two models, one of which works, and its metrics.
struct Server {
    metrics: Metrics,
    busy: ModelMetrics,
    idle: ModelMetrics,
}

impl Server {
    fn new() -> Server {
        let metrics = Metrics::new();
        let device = metrics.device("cuda:0");
        device.bytes(&DeviceBytes {
            capacity: Bytes::gib(60),
            safety: Bytes::mib(16),
            leased: Bytes::ZERO,
            reading: Reading {
                at: Timestamp::START,
                free: Bytes::gib(50),
                total: Bytes::gib(80),
                workspace_reserved: Bytes::gib(6),
                workspace_cached: Bytes::gib(2),
                library: Bytes::mib(512),
                leftovers: Bytes::ZERO,
            },
        });
        device.card([("fixed", Bytes::gib(1).get())], None);
        let (busy, idle) = (metrics.model("all-MiniLM-L6-v2-int8"), metrics.model("tiny-embed"));
        for (model, state, gib) in [(&busy, "ready", 12), (&idle, "not_loaded", 0)] {
            model.state(state);
            model.levels(&ModelLevels {
                budget: Budget { guaranteed: Bytes::ZERO, limit: Bytes::MAX },
                resident: Bytes::gib(gib),
                kv: Bytes::gib(gib / 4),
                headroom: Bytes::gib(30),
                drift: 1.0,
                batch_rows_max: 100,
            });
        }
        Server { metrics, busy, idle }
    }

    /// Ten seconds of load: 40 steps of 3 rows and 24 tokens, most of them bound by memory, and some trouble.
    fn work(&self) {
        for number in 0..40 {
            let reason = if number < 30 { Reason::Memory } else { Reason::Queue };
            let rungs = Rungs { trims: u32::from(number == 0), halvings: 0, evictions: 0, refusals: 0 };
            let time = Micros::millis(100);
            let peak = Bytes::new(900);
            let seen = Observed { peak, reach: peak, time, rungs, outcome: StepOutcome::Done };
            self.busy.step_completed(&step(reason), &seen, 24);
            let times = RequestTimes { total: Micros::millis(15), queued: Micros::millis(5) };
            self.busy.request_finished(Outcome::Answered(times), 3);
        }
        self.busy.queue(QueueLevels { rows: 17, tokens: 300, oldest: None });
        let retry_after = Micros::ZERO;
        let full = Rejection::QueueFull { limit: QueueLimit::Rows, waiting: 0, asked: 0, allowed: 0, retry_after };
        self.busy.request_finished(Outcome::Rejected(&full), 1);
        self.idle.request_finished(Outcome::Rejected(&Rejection::NotLoaded), 1);
    }

    fn answer(&self) -> Samples {
        Samples::parse(&self.metrics.encode(), names::is_read)
    }
}

fn step(reason: Reason) -> Step {
    let model = ModelId::new(0);
    let (predicted, ceiling) = (Bytes::new(1000), Bytes::new(1500));
    Step {
        id: StepId::new(1),
        model,
        purpose: Purpose::Serve,
        members: vec![Member { request: RequestId::new(1), work: Work::Row { index: 0 } }; 3],
        shape: Shape::Padded { rows: 3, length: 10 },
        lease: Lease { model, predicted, ceiling, kv: Bytes::ZERO, leftovers: Bytes::ZERO },
        reason,
        headroom: Bytes::new(1600),
        predicted_time: Micros::new(900),
        chosen_at: Timestamp::START,
    }
}

/// A server that had worked before, seen over ten seconds in which it did the same again.
fn watched(condition: Condition) -> View {
    let server = Server::new();
    server.work();
    let mut history = History::default();
    history.push(Duration::ZERO, server.answer());
    server.work();
    history.push(Duration::from_secs(10), server.answer());
    let mut view = View::new("127.0.0.1:8002", condition, &history);
    // The next version changes no picture.
    view.version = "1.2.3".to_owned();
    view
}

#[test]
fn figures_are_derived_from_the_metrics_as_the_server_writes_them() {
    let view = watched(Condition::Ready);
    assert_eq!((view.window, view.recent), (Duration::from_secs(10), Duration::from_secs(10)));
    let [busy, idle] = &view.models[..] else { panic!("{:?}", view.models) };
    assert_eq!((busy.name.as_str(), busy.state.as_str()), ("all-MiniLM-L6-v2-int8", "ready"));
    assert_eq!((busy.requests, busy.rows, busy.tokens), (Some(4.0), Some(12.0), Some(96.0)));
    // All within the bucket from 10 to 20 ms.
    let p50 = busy.p50.expect("there were answers");
    assert!((p50 - 0.015).abs() < 1e-9, "{p50}");
    assert!((0.0198..0.02).contains(&busy.p99.expect("there were answers")));
    assert_eq!((busy.queue, busy.share, busy.batch), (17.0, Some(1.0), Some(3.0)));
    assert_eq!(busy.reasons, [("memory".to_owned(), 0.75), ("queue".to_owned(), 0.25)]);
    let events: Vec<_> = busy.events.iter().map(|event| (event.what.as_str(), event.total, event.recent)).collect();
    assert_eq!(events, [("trimmed", 2.0, 1.0), ("rejected: queue full rows", 2.0, 1.0)]);
    assert_eq!((idle.state.as_str(), idle.requests, idle.p50, idle.batch), ("not loaded", Some(0.0), None, None));
    assert!(idle.reasons.is_empty());

    let [device] = &view.devices[..] else { panic!("{:?}", view.devices) };
    let busy_for = device.busy.expect("there are two answers");
    assert!((busy_for - 0.4).abs() < 1e-9, "{busy_for}");
    // Weights, KV cache, workspace, libraries.
    assert_eq!(device.used, (12.0 + 3.0 + 6.0 + 0.5) * f64::from(1 << 30));
    let sum: f64 = device.parts.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(sum, device.total);
    assert_eq!(device.parts[0], (Part::Weights(0), 12.0 * f64::from(1 << 30)));
}

#[test]
fn with_one_answer_there_are_levels_and_no_rates() {
    let server = Server::new();
    server.work();
    let mut history = History::default();
    history.push(Duration::ZERO, server.answer());
    let view = View::new("127.0.0.1:8002", Condition::Ready, &history);
    let busy = &view.models[0];
    assert_eq!((busy.queue, busy.requests, busy.p99, busy.share), (17.0, None, None, None));
    assert_eq!(view.window, Duration::ZERO);
    // And with none at all a sentence.
    let nothing = View::new("127.0.0.1:8002", Condition::Asking, &History::default());
    assert_eq!(printed(&nothing), "Plimsoll at 127.0.0.1:8002\nasking ...\n");
}

fn drawn(view: &View, width: u16, height: u16, colours: Colours, scroll: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a buffer takes everything");
    let mut scroll = scroll;
    terminal.draw(|frame| draw(frame, view, &mut scroll, colours)).expect("a buffer takes everything");
    terminal
}

fn printed(view: &View) -> String {
    let mut out = Vec::new();
    print(&mut out, view, 120).expect("a vector takes everything");
    String::from_utf8(out).expect("text")
}

#[test]
fn the_screen_is_as_it_was() {
    let view = watched(Condition::Ready);
    insta::assert_snapshot!("80x24", drawn(&view, 80, 24, Colours::Shown, 0).backend());
    insta::assert_snapshot!("120x40", drawn(&view, 120, 40, Colours::Shown, 0).backend());
    insta::assert_snapshot!("printed", printed(&view));
}

#[test]
fn a_server_that_went_away_keeps_its_last_figures() {
    let reason = "Connection refused".to_owned();
    let text = printed(&watched(Condition::Away { since: Duration::from_secs(12), reason }));
    assert!(text.contains("\nno answer for 12 s, asked again: Connection refused\n"), "{text}");
    assert!(text.contains("all-MiniLM-L6-v2-int8") && !text.contains(", ready"), "{text}");
}

#[test]
fn colours_can_be_left_out() {
    let view = watched(Condition::Ready);
    let coloured = |colours| {
        let terminal = drawn(&view, 80, 24, colours, 0);
        terminal.backend().buffer().content.iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert!(coloured(Colours::Shown) > 0);
    assert_eq!(coloured(Colours::None), 0);
}

#[test]
fn what_does_not_fit_can_be_moved_into_view() {
    let view = watched(Condition::Ready);
    let at = |scroll| drawn(&view, 80, 8, Colours::Shown, scroll).backend().to_string();
    assert!(at(0).contains("more lines below") && at(0).contains("Plimsoll 1.2.3"));
    assert!(!at(u16::MAX).contains("more lines below") && at(u16::MAX).contains("not loaded"));
    // Too small for anything, and no reason to fall over.
    for (width, height) in [(1, 1), (3, 2), (20, 3), (300, 100)] {
        drawn(&view, width, height, Colours::Shown, 5);
    }
}

#[test]
fn names_cannot_give_orders_to_a_terminal() {
    let metrics = Metrics::new();
    metrics.model("evil\u{1b}[2J\u{7}");
    let mut history = History::default();
    history.push(Duration::ZERO, Samples::parse(&metrics.encode(), names::is_read));
    let text = printed(&View::new("here", Condition::NotReady("a\u{1b}c".to_owned()), &history));
    assert!(text.contains("evil[2J") && !text.contains(['\u{1b}', '\u{7}']), "{text:?}");
}
