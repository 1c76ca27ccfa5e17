//! The measurements that a benchmark is put together from: undisturbed answers, capacity, a judged load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use super::arrivals::ArrivalKind;
use super::client::Client;
use super::driver::{Control, Load, Pacing, Sample};
use super::recorder::{Bar, Recorder};
use super::workload::Workload;

/// The part of the capacity at which lateness is defined.
pub(super) const UNDISTURBED_LOAD: f64 = 0.7;

/// An answer is late after so many times the undisturbed p99.
pub(super) const LATE_FACTOR: u32 = 10;

/// A doubling of the callers that gains less than this ends the search.
const TRIAL_GAIN: f64 = 1.05;

/// The most callers that are tried.
const TRIAL_CALLERS_MAX: u32 = 256;

/// Samples on their way to the recorder. It is far faster than any server, so a full channel is rare and short.
const SAMPLES_WAITING_MAX: usize = 4096;

/// A server under measurement and what it is asked.
#[derive(Clone)]
pub(super) struct Target {
    /// The connections.
    pub client: Arc<Client>,
    /// The calls.
    pub workload: Arc<Workload>,
    /// The most calls waiting for an answer.
    pub in_flight_max: u32,
    /// Seed of the schedule.
    pub seed: u64,
}

/// One load's schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// When calls are sent.
    pub pacing: Pacing,
    /// What is sent first and not counted.
    pub warmup: Duration,
    /// What is counted.
    pub length: Duration,
    /// Index of the first call.
    pub first_call: u64,
}

/// What the undisturbed server does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Undisturbed {
    /// Calls per second that it can answer.
    pub capacity: f64,
    /// The 99th percentile of the latency in an open loop at [`UNDISTURBED_LOAD`] of that.
    pub p99: Duration,
}

impl Undisturbed {
    /// An answer after this is late.
    pub fn late_after(&self) -> Duration {
        self.p99 * LATE_FACTOR
    }
}

impl Target {
    /// Asks every reference call alone, one at a time: the answers that those under load are compared with.
    ///
    /// # Errors
    /// The first call that is not answered OK: a load on top of that would measure nothing.
    pub(super) async fn undisturbed_answers(&self) -> anyhow::Result<Bar> {
        let progress = bar("undisturbed answers", u64::from(self.workload.references()));
        let mut references = Vec::new();
        for number in 0..self.workload.references() {
            let call = self.workload.reference(number);
            let model = self.workload.model(call.model);
            let reply = self.client.ask(model, &call).await;
            let place = || format!("undisturbed call {number} to model '{}' failed", model.name);
            references.push(reply.with_context(place)?.answer);
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(Bar { references, late_after: None })
    }

    /// Finds the capacity with more and more callers, then the p99 in an open loop of `length` at 70 % of it. One number
    /// of callers is tried for a third of `length`.
    ///
    /// # Errors
    /// A server that answers nothing, or an undisturbed load in which calls fail.
    pub(super) async fn undisturbed_load(&self, length: Duration) -> anyhow::Result<Undisturbed> {
        let warmup = length / 10;
        let mut capacity = 0.0;
        let mut callers = 4;
        while callers <= TRIAL_CALLERS_MAX {
            let pacing = Pacing::Closed { callers };
            // Above all other indices: the loads that are compared later must not find their calls in some cache.
            let schedule = Schedule { pacing, warmup, length: length / 3, first_call: 1 << 40 };
            let recorder = self.load(schedule, Bar::default(), "capacity").await;
            let found = recorder.total().good.calls as f64 / recorder.window_seconds();
            let enough = found < capacity * TRIAL_GAIN;
            capacity = f64::max(capacity, found);
            if enough {
                break;
            }
            callers *= 2;
        }
        ensure!(capacity > 0.0, "the server answered no call while its capacity was looked for");
        let pacing = Pacing::Open { kind: ArrivalKind::Poisson, rate: capacity * UNDISTURBED_LOAD };
        let schedule = Schedule { pacing, warmup, length, first_call: 1 << 41 };
        let recorder = self.load(schedule, Bar::default(), "undisturbed load").await;
        let total = recorder.total();
        ensure!(
            total.failed == 0 && total.calls > 0,
            "{} of {} calls failed at 70 % of the capacity, undisturbed: {:?}",
            total.failed,
            total.calls,
            total.outcomes
        );
        Ok(Undisturbed { capacity, p99: Duration::from_micros(total.latency.value_at_quantile(0.99)) })
    }

    /// Sends a load and judges it.
    pub(super) async fn load(&self, schedule: Schedule, bar: Bar, what: &'static str) -> Recorder {
        self.judge(schedule, bar, what, Instant::now(), Arc::default()).await
    }

    /// The same; an interrupt (Ctrl-C) ends it before its time, and what there is until then is judged.
    pub(super) async fn load_until_interrupt(&self, schedule: Schedule, bar: Bar, what: &'static str) -> Recorder {
        let (started, control) = (Instant::now(), Arc::new(Control::default()));
        let interrupt = tokio::spawn({
            let control = control.clone();
            async move {
                // Without a way to hear of interrupts, the load lasts as long as it was meant to.
                tokio::signal::ctrl_c().await.ok()?;
                control.stop();
                Some(started.elapsed())
            }
        });
        let mut recorder = self.judge(schedule, bar, what, started, control).await;
        interrupt.abort();
        if let Ok(Some(at)) = interrupt.await {
            recorder.end_window(at);
        }
        recorder
    }

    async fn judge(
        &self,
        schedule: Schedule,
        bar: Bar,
        what: &'static str,
        started: Instant,
        control: Arc<Control>,
    ) -> Recorder {
        let total = schedule.warmup + schedule.length;
        let models = self.workload.models().cloned().collect();
        let mut recorder = Recorder::new(models, schedule.warmup..total, bar);
        let progress = progress_bar(what, total);
        self.observe(schedule, started, control, |sample| {
            recorder.record(&sample);
            let tally = recorder.tallies().iter();
            let (calls, failed) = tally.fold((0, 0), |sum, tally| (sum.0 + tally.calls, sum.1 + tally.failed));
            progress.set_position(sample.done.as_millis() as u64);
            progress.set_message(format!("{calls} calls, {failed} failed"));
        })
        .await;
        progress.finish_and_clear();
        recorder
    }

    /// Sends a load and hands every sample to `each`, in the order in which calls end.
    pub(super) async fn observe(
        &self,
        schedule: Schedule,
        started: Instant,
        control: Arc<Control>,
        mut each: impl FnMut(Sample),
    ) {
        let load = Load {
            client: self.client.clone(),
            workload: self.workload.clone(),
            pacing: schedule.pacing,
            seed: self.seed,
            first_call: schedule.first_call,
            length: schedule.warmup + schedule.length,
            in_flight_max: self.in_flight_max,
            started,
            control,
        };
        let (sender, mut samples) = mpsc::channel(SAMPLES_WAITING_MAX);
        let sending = tokio::spawn(load.run(sender));
        while let Some(sample) = samples.recv().await {
            each(sample);
        }
        sending.await.expect("sending does not panic");
    }
}

/// A bar of `total` milliseconds; invisible when stderr is no terminal.
fn progress_bar(what: &'static str, total: Duration) -> ProgressBar {
    bar(what, total.as_millis() as u64)
}

fn bar(what: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:<20} [{bar:30}] {elapsed}  {msg}");
    ProgressBar::new(total).with_style(style.expect("the template is valid")).with_prefix(what)
}
