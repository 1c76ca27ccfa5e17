//! What happened in one arm, over time. Times are seconds since its first call could be due; a neighbour that was there
//! before the server has some before 0.

use serde::Serialize;

use super::neighbour::Event;

/// Everything that was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Timeline {
    /// Memory, every 10 ms.
    pub(super) memory: Vec<MemoryPoint>,
    /// The server's steps in their order.
    pub(super) steps: Vec<StepPoint>,
    /// Calls in the order in which they ended.
    pub(super) calls: Vec<CallPoint>,
    /// What the neighbour said.
    pub(super) events: Vec<EventPoint>,
    /// When the script began.
    pub(super) begin_s: f64,
    /// When it ended.
    pub(super) end_s: f64,
    /// When the server was found dead.
    pub(super) server_died_s: Option<f64>,
}

/// Bytes at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct MemoryPoint {
    pub(super) at_s: f64,
    pub(super) free_bytes: u64,
    pub(super) server_bytes: u64,
    pub(super) neighbour_bytes: u64,
    /// What both hold beyond a virtual limit; a cgroup lets nobody go beyond.
    pub(super) overrun_bytes: u64,
}

/// A step of the server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct StepPoint {
    /// When the first reply that told of it came: shortly after its end.
    pub(super) seen_s: f64,
    /// `seen_s` less its time on the device: not before it was chosen.
    pub(super) began_s: f64,
    pub(super) rows: u32,
    /// Rows times padded length: the size that memory goes by.
    pub(super) padded_tokens: u64,
    pub(super) reason: &'static str,
    pub(super) predicted_bytes: u64,
    pub(super) true_bytes: u64,
    pub(super) headroom_bytes: u64,
}

/// A call that ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct CallPoint {
    pub(super) done_s: f64,
    pub(super) rows: u32,
    pub(super) good: bool,
}

/// Something that the neighbour said.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct EventPoint {
    pub(super) at_s: f64,
    pub(super) event: Event,
}

impl Timeline {
    /// Good rows per second from `from` to `until`, by when their answers came; only the time counts in which calls were
    /// sent. `None` where none were.
    pub(super) fn good_rows_per_s(&self, from: f64, until: f64) -> Option<f64> {
        let within = |(began, ended): (f64, f64)| (began.max(from), ended.min(until));
        let stretches: Vec<_> =
            self.under_load().into_iter().map(within).filter(|(from, until)| from < until).collect();
        let seconds: f64 = stretches.iter().map(|(from, until)| until - from).sum();
        let counts = |call: &&CallPoint| {
            call.good && stretches.iter().any(|(from, until)| (*from..*until).contains(&call.done_s))
        };
        let rows: f64 = self.calls.iter().filter(counts).map(|call| f64::from(call.rows)).sum();
        (seconds > 0.0).then(|| rows / seconds)
    }

    /// When calls were sent: from 0 on, but where the script stopped them.
    fn under_load(&self) -> Vec<(f64, f64)> {
        let (mut stretches, mut since) = (Vec::new(), Some(0.0));
        for point in &self.events {
            if let Event::Load { on } = point.event {
                match (on, since) {
                    (true, None) => since = Some(point.at_s.max(0.0)),
                    (false, Some(began)) => {
                        stretches.push((began, point.at_s));
                        since = None;
                    }
                    (true, Some(_)) | (false, None) => {}
                }
            }
        }
        stretches.extend(since.map(|began| (began, self.end_s)));
        stretches
    }

    /// Good rows per second in each `width` seconds from the start to the end.
    pub(super) fn goodput(&self, width: f64) -> Vec<(f64, f64)> {
        let count = (self.end_s / width).ceil() as usize;
        let mut rows = vec![0.0; count];
        for call in self.calls.iter().filter(|call| call.good) {
            // Answers after the end (the last ones in flight) belong to no part.
            if let Some(part) = rows.get_mut((call.done_s / width) as usize) {
                *part += f64::from(call.rows);
            }
        }
        rows.into_iter().enumerate().map(|(part, rows)| (part as f64 * width, rows / width)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_counts_good_rows_by_when_they_came() {
        let call = |done_s, good| CallPoint { done_s, rows: 4, good };
        let calls = vec![call(0.1, true), call(0.2, true), call(0.7, false), call(1.4, true), call(9.0, true)];
        let timeline = Timeline { calls, end_s: 1.5, ..Timeline::default() };
        assert_eq!(timeline.goodput(0.5), [(0.0, 16.0), (0.5, 0.0), (1.0, 8.0)]);
    }

    /// A load that is stopped from 2 s to 4 s, and once more before anything is sent.
    #[test]
    fn rates_count_the_time_in_which_calls_are_sent() {
        let call = |done_s, good| CallPoint { done_s, rows: 6, good };
        let load = |at_s, on| EventPoint { at_s, event: Event::Load { on } };
        let timeline = Timeline {
            calls: vec![call(0.5, true), call(1.5, true), call(2.1, true), call(4.5, false), call(5.0, true)],
            events: vec![load(-3.0, false), load(-1.0, true), load(2.0, false), load(4.0, true)],
            end_s: 6.0,
            ..Timeline::default()
        };
        let check =
            |from, until, expected| assert_eq!(timeline.good_rows_per_s(from, until), expected, "{from} to {until}");
        check(-5.0, 0.0, None);
        check(-5.0, 1.0, Some(6.0));
        check(0.0, 3.0, Some(6.0)); // 2 of 3 s, and what came after the stop is not counted
        check(2.0, 4.0, None);
        check(3.0, 6.0, Some(3.0));
        check(0.0, 9.0, Some(4.5)); // 18 rows in 4 s
    }
}
