//! What happened in one arm, over time. Times are seconds since its first call was due.

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
    /// When the script ended.
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
}
