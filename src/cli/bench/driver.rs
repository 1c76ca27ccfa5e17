//! Sends the load: on schedule (open loop) or as fast as answers come (closed loop).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::arrivals::{ArrivalKind, Arrivals};
use super::client::{Call, Client, Reply};
use super::workload::Workload;

/// How long the client waits for an answer to a call without a deadline; a server that takes longer has lost it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a paused or waiting sender looks whether it may go on.
const GLANCE: Duration = Duration::from_millis(5);

/// What decides when the next call is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pacing {
    /// The schedule, whatever the server does.
    Open {
        /// How gaps are drawn.
        kind: ArrivalKind,
        /// Calls per second.
        rate: f64,
    },
    /// The answer to the caller's last call.
    Closed {
        /// Callers at the same time.
        callers: u32,
    },
}

/// In words, for reports.
impl fmt::Display for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pacing::Open { kind, rate } => write!(f, "open loop, {kind}, {rate:.2} calls/s"),
            Pacing::Closed { callers } => write!(f, "closed loop, {callers} callers"),
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// With an answer.
    Answered(Reply),
    /// With an error status.
    Refused(tonic::Code),
    /// By our own cancel.
    Cancelled,
    /// Not at all within a minute.
    Unanswered,
    /// Before it began: as many calls as this client keeps were already waiting.
    NotSent,
}

/// One call of the load. Times are counted from its start.
#[derive(Debug)]
pub(super) struct Sample {
    /// Index of the model in the workload.
    pub model: usize,
    /// Rows asked for.
    pub rows: usize,
    /// Its number among the calls whose undisturbed answers are known.
    pub reference: Option<u32>,
    /// When it was due. The latency counts from here: a stalled server must not thin out the load that measures it.
    pub intended: Duration,
    /// When it was sent.
    pub sent: Duration,
    /// When it ended.
    pub done: Duration,
    /// How it ended.
    pub outcome: Outcome,
}

impl Sample {
    /// From when it was due to its end.
    pub(super) fn latency(&self) -> Duration {
        self.done.saturating_sub(self.intended)
    }
}

/// Lets others pause or end a running load. Calls that fall due while it is paused are left out.
#[derive(Default)]
pub(super) struct Control {
    paused: AtomicBool,
    stopped: AtomicBool,
}

impl Control {
    /// Pauses, or goes on.
    pub(super) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }

    /// Ends the load: nothing more is sent.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    fn paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// A load to be sent.
#[derive(Clone)]
pub(super) struct Load {
    /// The server.
    pub client: Arc<Client>,
    /// The calls.
    pub workload: Arc<Workload>,
    /// Their times.
    pub pacing: Pacing,
    /// Seed of the times.
    pub seed: u64,
    /// Index of the first call.
    pub first_call: u64,
    /// How long calls are sent, from `started`.
    pub length: Duration,
    /// The most calls waiting for an answer; further ones are recorded as not sent.
    pub in_flight_max: u32,
    /// What times are counted from.
    pub started: Instant,
    /// Pauses and ends it.
    pub control: Arc<Control>,
}

impl Load {
    /// Sends the load and returns when its last call has ended. Every call gives exactly one sample.
    pub(super) async fn run(self, samples: mpsc::Sender<Sample>) {
        match self.pacing {
            Pacing::Open { kind, rate } => {
                let arrivals = Arrivals::new(kind, rate, self.seed);
                self.open(arrivals, samples).await;
            }
            Pacing::Closed { callers } => self.closed(callers, samples).await,
        }
    }

    async fn open(self, arrivals: Arrivals, samples: mpsc::Sender<Sample>) {
        let room = Arc::new(Semaphore::new(self.in_flight_max as usize));
        let load = Arc::new(self);
        let (sender, semaphore, runtime) = (load.clone(), room.clone(), Handle::current());
        // A thread of its own: its sleep is true to some 50 us, tokio's timer to a millisecond.
        let dispatch = tokio::task::spawn_blocking(move || {
            for (intended, index) in arrivals.zip(sender.first_call..) {
                if intended >= sender.length {
                    break;
                }
                let call = sender.workload.call(index); // drawn before it is due
                if !sender.wait_until(intended) {
                    break;
                }
                if sender.control.paused() {
                    continue;
                }
                let (load, samples) = (sender.clone(), samples.clone());
                let permit = semaphore.clone().try_acquire_owned();
                runtime.spawn(async move {
                    let sample = match permit {
                        Ok(_permit) => load.ask(call, intended).await,
                        Err(_) => sample(&call, intended, load.now(), load.now(), Outcome::NotSent),
                    };
                    // The receiver outlives the load; if it is gone, nobody wants the sample.
                    let _ = samples.send(sample).await;
                });
            }
        });
        dispatch.await.expect("the dispatcher does not panic");
        // Each call ends within PATIENCE and gives its permit back.
        let _all_ended = room.acquire_many(load.in_flight_max).await;
    }

    async fn closed(self, callers: u32, samples: mpsc::Sender<Sample>) {
        let (load, next) = (Arc::new(self), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (load, next, samples) = (load.clone(), next.clone(), samples.clone());
            tasks.spawn(async move {
                while load.now() < load.length && !load.control.stopped() {
                    if load.control.paused() {
                        tokio::time::sleep(GLANCE).await;
                        continue;
                    }
                    let call = load.workload.call(load.first_call + next.fetch_add(1, Ordering::Relaxed));
                    let sample = load.ask(call, load.now()).await;
                    let refused = matches!(sample.outcome, Outcome::Refused(_));
                    if samples.send(sample).await.is_err() {
                        break;
                    }
                    if refused {
                        // A caller that asks again at once would only measure how fast the server refuses.
                        tokio::time::sleep(GLANCE).await;
                    }
                }
            });
        }
        tasks.join_all().await;
    }

    async fn ask(&self, call: Call, intended: Duration) -> Sample {
        let sent = self.now();
        let limit = call.cancel_after.unwrap_or(PATIENCE);
        let answer = tokio::time::timeout(limit, self.client.ask(self.workload.model(call.model), &call)).await;
        let outcome = match (answer, call.cancel_after) {
            (Ok(Ok(reply)), _) => Outcome::Answered(reply),
            (Ok(Err(status)), _) => Outcome::Refused(status.code()),
            (Err(_), Some(_)) => Outcome::Cancelled,
            (Err(_), None) => Outcome::Unanswered,
        };
        sample(&call, intended, sent, self.now(), outcome)
    }

    /// Blocks until `due`, counted from the start. False when the load was ended meanwhile.
    fn wait_until(&self, due: Duration) -> bool {
        loop {
            if self.control.stopped() {
                return false;
            }
            match due.saturating_sub(self.now()) {
                Duration::ZERO => return true,
                left => std::thread::sleep(left.min(10 * GLANCE)),
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

fn sample(call: &Call, intended: Duration, sent: Duration, done: Duration, outcome: Outcome) -> Sample {
    Sample { model: call.model, rows: call.rows.len(), reference: call.reference, intended, sent, done, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that could only be sent late, because the machine or the server held the sender up, has waited since it
    /// was due.
    #[test]
    fn latency_counts_from_when_a_call_was_due() {
        let call = Call {
            model: 0,
            query: String::new(),
            rows: crate::cli::bench::client::Rows::Texts(vec!["a".to_owned()]),
            urgency: crate::cli::bench::client::Urgency::Normal,
            deadline: None,
            cancel_after: None,
            reference: None,
        };
        let at = Duration::from_millis;
        assert_eq!(sample(&call, at(100), at(350), at(360), Outcome::Cancelled).latency(), at(260));
        assert_eq!(sample(&call, at(100), at(100), at(99), Outcome::Cancelled).latency(), at(0));
    }
}
