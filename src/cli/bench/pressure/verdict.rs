//! What a timeline shows. Pure.

use serde::Serialize;

use super::neighbour::Event;
use super::timeline::{StepPoint, Timeline};

/// Steps have shrunk when large ones have less than this part of the workspace that they had before.
const SHRUNK: f64 = 0.8;

/// Windows with fewer steps than this say nothing.
const STEPS_MIN: usize = 3;

/// How one arm bore the neighbour.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Verdict {
    /// The least free memory.
    pub(super) free_bytes_min: u64,
    /// The most that server and neighbour held beyond a virtual limit.
    pub(super) overrun_bytes_max: u64,
    /// When the server died, in seconds.
    pub(super) server_died_s: Option<f64>,
    /// Steps whose size memory decided, as a part of all.
    pub(super) memory_reason_share: f64,
    /// Each time the neighbour took memory while calls were sent, and gave it back.
    pub(super) squeezes: Vec<Squeeze>,
    /// Each time it asked.
    pub(super) asks: Vec<Ask>,
}

/// The neighbour takes, holds, frees.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Squeeze {
    /// When it held what it wanted, in seconds; before 0, when the server had not started.
    pub(super) taken_s: f64,
    /// When it gave back.
    pub(super) freed_s: f64,
    /// Good rows per second before, since it last gave back, while calls were sent. Null when none were.
    pub(super) good_rows_per_s_before: Option<f64>,
    /// Good rows per second meanwhile, while calls were sent.
    pub(super) good_rows_per_s: f64,
    /// Good rows per second after, until it took again or calls were stopped. Null when none were sent.
    pub(super) good_rows_per_s_after: Option<f64>,
    /// Calls that failed meanwhile.
    pub(super) failed: u64,
    /// Workspace of a large step (9 of 10 are smaller) before. It tells the size of a batch better than rows do, of which
    /// one may be a hundred times as long as another. Null with hardly any step: when the neighbour was there first.
    pub(super) bytes_before: Option<u64>,
    /// The same meanwhile; 0 without steps.
    pub(super) bytes_during: u64,
    /// The same after; 0 without steps.
    pub(super) bytes_after: u64,
    /// Whether steps were smaller than before (if there was no before: than after) at all: they need not be when what is
    /// left is enough.
    pub(super) shrank: bool,
    /// Steps that began while the memory was gone and were larger than halfway between outside and meanwhile; 0: from
    /// the first one on all were small. Null when they did not shrink.
    pub(super) steps_still_large: Option<usize>,
    /// Seconds from the giving back to the first step larger than halfway. Null when they did not shrink or not grow.
    pub(super) grew_back_s: Option<f64>,
}

/// The neighbour asks and takes only what is free.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Ask {
    /// When the ask ended, in seconds.
    pub(super) at_s: f64,
    /// What it wanted to hold.
    pub(super) asked_bytes: u64,
    /// Whether it got it.
    pub(super) got: bool,
    /// How long that took, or how long it waited in vain.
    pub(super) waited_ms: f64,
}

impl Verdict {
    /// Reads it off a timeline.
    pub(super) fn of(timeline: &Timeline) -> Verdict {
        let by_memory = timeline.steps.iter().filter(|step| step.reason == "memory").count();
        let asks = timeline.events.iter().filter_map(|point| match point.event {
            Event::Asked { asked, got, waited_ms } => {
                Some(Ask { at_s: point.at_s, asked_bytes: asked, got, waited_ms })
            }
            _ => None,
        });
        Verdict {
            free_bytes_min: timeline.memory.iter().map(|point| point.free_bytes).min().unwrap_or(0),
            overrun_bytes_max: timeline.memory.iter().map(|point| point.overrun_bytes).max().unwrap_or(0),
            server_died_s: timeline.server_died_s,
            memory_reason_share: by_memory as f64 / timeline.steps.len().max(1) as f64,
            squeezes: holds(timeline).into_iter().filter_map(|hold| hold.squeeze(timeline)).collect(),
            asks: asks.collect(),
        }
    }
}

/// The neighbour's stretch of holding memory and those around it.
#[derive(Clone, Copy)]
struct Held {
    from: f64,  // of the quiet before
    takes: f64, // begins to take
    taken: f64,
    freed: f64,
    until: f64, // of the quiet after
}

/// Every taking that was followed by giving back, while calls were sent.
fn holds(timeline: &Timeline) -> Vec<Held> {
    let mut found: Vec<Held> = Vec::new();
    let (mut quiet_since, mut takes, mut taken) = (0.0, None, None);
    let mut load = true;
    for point in &timeline.events {
        match point.event {
            Event::Takes { .. } => {
                if let Some(last) = found.last_mut().filter(|last| last.until == f64::INFINITY) {
                    last.until = point.at_s;
                }
                takes = Some(point.at_s);
            }
            Event::Holds { .. } => taken = Some(point.at_s),
            Event::Freed { .. } => {
                if let (Some(takes), Some(taken), true) = (takes.take(), taken.take(), load) {
                    found.push(Held { from: quiet_since, takes, taken, freed: point.at_s, until: f64::INFINITY });
                }
                quiet_since = point.at_s;
            }
            Event::Load { on } => {
                load = on;
                if on {
                    // A pause of the calls while it holds what it took leaves the time before that as it was.
                    if taken.is_none() {
                        quiet_since = point.at_s;
                    }
                } else if let Some(last) = found.last_mut().filter(|last| last.until == f64::INFINITY) {
                    last.until = point.at_s;
                }
            }
            Event::Asked { .. } | Event::Waits { .. } | Event::Done => {}
        }
    }
    found
}

impl Held {
    /// `None` when there was no server that could have borne it.
    fn squeeze(self, timeline: &Timeline) -> Option<Squeeze> {
        let dead = timeline.server_died_s.is_some_and(|died| died <= self.taken);
        if dead || self.freed <= 0.0 {
            return None;
        }
        let between = |from: f64, until: f64| {
            let within = move |step: &&StepPoint| step.began_s >= from && step.seen_s <= until;
            timeline.steps.iter().filter(within).collect::<Vec<_>>()
        };
        let (before, during) = (between(self.from, self.takes), between(self.taken, self.freed));
        let after = between(self.freed, self.until);
        let bytes_before = (before.len() >= STEPS_MIN).then(|| large(&before));
        let (bytes_during, bytes_after) = (large(&during), large(&after));
        let bytes_outside = bytes_before.unwrap_or(bytes_after);
        let halfway = (bytes_outside + bytes_during) / 2;
        let shrank = during.len() >= STEPS_MIN && (bytes_during as f64) < bytes_outside as f64 * SHRUNK;
        let still_large = during.iter().filter(|step| step.true_bytes > halfway).count();
        let first_large = after.iter().find(|step| step.true_bytes > halfway);
        let failed = timeline.calls.iter().filter(|call| !call.good && (self.taken..self.freed).contains(&call.done_s));
        Some(Squeeze {
            taken_s: self.taken,
            freed_s: self.freed,
            good_rows_per_s_before: timeline.good_rows_per_s(self.from, self.takes),
            good_rows_per_s: timeline.good_rows_per_s(self.taken, self.freed).unwrap_or(0.0),
            good_rows_per_s_after: timeline.good_rows_per_s(self.freed, self.until),
            failed: failed.count() as u64,
            bytes_before,
            bytes_during,
            bytes_after,
            shrank,
            steps_still_large: shrank.then_some(still_large),
            grew_back_s: first_large.filter(|_| shrank).map(|step| step.seen_s - self.freed),
        })
    }
}

/// The 90th percentile of the steps' workspace; 0 without steps.
fn large(steps: &[&StepPoint]) -> u64 {
    let mut bytes: Vec<u64> = steps.iter().map(|step| step.true_bytes).collect();
    bytes.sort_unstable();
    match bytes.len() {
        0 => 0,
        count => bytes[(count * 9 / 10).min(count - 1)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::{CallPoint, EventPoint, MemoryPoint};
    use super::*;

    /// A step each 100 ms for 30 s, `size(t)` padded tokens large.
    fn steps(size: impl Fn(f64) -> u64) -> Vec<StepPoint> {
        let step = |began_s: f64| StepPoint {
            seen_s: began_s + 0.05,
            began_s,
            rows: 8,
            padded_tokens: 0,
            reason: if began_s < 15.0 { "memory" } else { "queue" },
            predicted_bytes: 0,
            true_bytes: size(began_s),
            headroom_bytes: 0,
        };
        (0..300).map(|number| step(f64::from(number) / 10.0)).collect()
    }

    /// The neighbour takes from 10.0 to 10.2 s and frees at 20 s; from 25 s on it asks without load.
    fn events() -> Vec<EventPoint> {
        let point = |at_s, event| EventPoint { at_s, event };
        vec![
            point(10.0, Event::Takes { holds: 0 }),
            point(10.2, Event::Holds { holds: 100 }),
            point(20.0, Event::Freed { holds: 0 }),
            point(25.0, Event::Load { on: false }),
            point(25.0, Event::Takes { holds: 0 }),
            point(26.5, Event::Asked { asked: 80, got: true, waited_ms: 1_500.0 }),
            point(26.5, Event::Holds { holds: 80 }),
            point(27.0, Event::Freed { holds: 0 }),
            point(30.0, Event::Done),
        ]
    }

    fn verdict(size: impl Fn(f64) -> u64) -> Verdict {
        let memory = |at_s, free_bytes, overrun_bytes| MemoryPoint {
            at_s,
            free_bytes,
            server_bytes: 0,
            neighbour_bytes: 0,
            overrun_bytes,
        };
        Verdict::of(&Timeline {
            memory: vec![memory(0.0, 500, 0), memory(10.1, 0, 30), memory(11.0, 20, 0)],
            steps: steps(size),
            events: events(),
            end_s: 30.0,
            ..Timeline::default()
        })
    }

    #[test]
    fn a_server_that_follows_shrinks_at_once_and_grows_back() {
        let verdict = verdict(|at| if (10.0..20.5).contains(&at) { 100 } else { 1_000 });
        assert_eq!((verdict.free_bytes_min, verdict.overrun_bytes_max), (0, 30));
        assert!((verdict.memory_reason_share - 0.5).abs() < 1e-9);
        let [squeeze] = verdict.squeezes.as_slice() else { panic!("{:?}", verdict.squeezes) };
        assert_eq!((squeeze.taken_s, squeeze.freed_s), (10.2, 20.0));
        assert_eq!((squeeze.bytes_before, squeeze.bytes_during, squeeze.bytes_after), (Some(1_000), 100, 1_000));
        assert_eq!((squeeze.shrank, squeeze.steps_still_large), (true, Some(0)));
        assert!((squeeze.grew_back_s.unwrap() - 0.55).abs() < 1e-9, "{squeeze:?}");
        assert_eq!(verdict.asks, [Ask { at_s: 26.5, asked_bytes: 80, got: true, waited_ms: 1_500.0 }]);
    }

    #[test]
    fn the_throughput_of_a_squeeze_counts_while_calls_are_sent() {
        let point = |at_s, event| EventPoint { at_s, event };
        let events = vec![
            point(8.0, Event::Load { on: false }),
            point(9.0, Event::Takes { holds: 0 }),
            point(10.0, Event::Holds { holds: 100 }),
            point(12.0, Event::Load { on: true }),
            point(20.0, Event::Freed { holds: 0 }),
            point(24.0, Event::Load { on: false }),
        ];
        let call = |done_s, good| CallPoint { done_s, rows: 4, good };
        let calls = vec![
            call(3.0, true),
            call(7.0, true),
            call(12.5, true),
            call(13.0, false),
            call(19.0, true),
            call(20.5, true),
            call(22.5, true),
            call(24.5, true),
        ];
        let verdict =
            Verdict::of(&Timeline { steps: steps(|_| 1_000), calls, events, end_s: 30.0, ..Timeline::default() });
        let [squeeze] = verdict.squeezes.as_slice() else { panic!("{:?}", verdict.squeezes) };
        assert_eq!(squeeze.good_rows_per_s_before, Some(1.0)); // 8 rows in 8 s
        assert_eq!((squeeze.good_rows_per_s, squeeze.failed), (1.0, 1));
        assert_eq!(squeeze.good_rows_per_s_after, Some(2.0)); // 8 in 4, and what came after the stop is not counted
    }

    /// A neighbour that was there before the server and left at 10 s.
    #[test]
    fn a_squeeze_from_the_start_has_no_time_before_it() {
        let point = |at_s, event| EventPoint { at_s, event };
        let events = vec![
            point(-8.0, Event::Takes { holds: 0 }),
            point(-6.0, Event::Holds { holds: 100 }),
            point(-6.0, Event::Waits { holds: 100 }),
            point(10.0, Event::Freed { holds: 0 }),
            point(30.0, Event::Done),
        ];
        let call = |done_s| CallPoint { done_s, rows: 5, good: true };
        let verdict = |events: Vec<EventPoint>, size: &dyn Fn(f64) -> u64| {
            let calls = vec![call(1.0), call(9.0), call(11.0), call(21.0), call(29.0), call(29.5)];
            Verdict::of(&Timeline {
                steps: steps(size),
                calls,
                events,
                end_s: 30.0,
                begin_s: -8.0,
                ..Timeline::default()
            })
        };
        let followed = verdict(events.clone(), &|at| if at < 11.0 { 100 } else { 1_000 });
        let [squeeze] = followed.squeezes.as_slice() else { panic!("{:?}", followed.squeezes) };
        assert_eq!((squeeze.taken_s, squeeze.bytes_before, squeeze.good_rows_per_s_before), (-6.0, None, None));
        assert_eq!((squeeze.bytes_during, squeeze.bytes_after, squeeze.shrank), (100, 1_000, true));
        assert_eq!((squeeze.good_rows_per_s, squeeze.good_rows_per_s_after), (1.0, Some(1.0)));
        assert_eq!(squeeze.steps_still_large, Some(0));
        assert!((squeeze.grew_back_s.unwrap() - 1.05).abs() < 1e-9, "{squeeze:?}");
        let careless = verdict(events, &|_| 1_000);
        assert_eq!((careless.squeezes[0].shrank, careless.squeezes[0].grew_back_s), (false, None));
        // One that was gone before the first call squeezed nobody.
        let gone = vec![
            point(-8.0, Event::Takes { holds: 0 }),
            point(-7.0, Event::Holds { holds: 9 }),
            point(-5.0, Event::Freed { holds: 0 }),
        ];
        assert!(verdict(gone, &|_| 1_000).squeezes.is_empty());
    }

    #[test]
    fn a_server_that_is_slow_to_follow_is_told_by_its_steps() {
        let verdict = verdict(|at| if (10.55..20.0).contains(&at) { 100 } else { 1_000 });
        assert_eq!(verdict.squeezes[0].steps_still_large, Some(4)); // began at 10.2, 10.3, 10.4, 10.5
    }

    #[test]
    fn a_server_that_does_not_follow_does_not_shrink() {
        let verdict = verdict(|_| 1_000);
        let squeeze = &verdict.squeezes[0];
        assert_eq!((squeeze.shrank, squeeze.steps_still_large, squeeze.grew_back_s), (false, None, None));
    }

    #[test]
    fn a_dead_server_shows_nothing_after_its_end() {
        let mut timeline = Timeline { events: events(), end_s: 30.0, ..Timeline::default() };
        timeline.steps = steps(|_| 1_000).into_iter().filter(|step| step.seen_s < 10.2).collect();
        timeline.server_died_s = Some(10.2);
        let verdict = Verdict::of(&timeline);
        assert!(verdict.squeezes.is_empty());
        assert_eq!(verdict.server_died_s, Some(10.2));
        assert_eq!(Verdict::of(&Timeline::default()).memory_reason_share, 0.0);
    }
}
