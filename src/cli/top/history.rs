//! The last minute of a server's counters, as if it had never been started again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::names;
use super::samples::{Samples, Series};

/// How far back it reaches.
pub(super) const KEPT: Duration = Duration::from_secs(60);

/// What was seen, oldest first. `at` is the time since it began, which the caller measures.
#[derive(Debug, Default)]
pub(super) struct History {
    now: Samples,
    moments: VecDeque<Moment>,
    // What counters had reached when they fell to nothing: the sum of a server's earlier lives.
    carried: BTreeMap<Series, f64>,
}

#[derive(Debug)]
struct Moment {
    at: Duration,
    counters: Samples,
}

/// How counters have grown between two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth<'a> {
    then: &'a Moment,
    now: &'a Moment,
}

impl History {
    /// Adds an answer. A counter that is lower than before began again at 0.
    pub(super) fn push(&mut self, at: Duration, now: Samples) {
        let mut counters = Vec::new();
        for (series, value) in now.iter().filter(|(series, _)| names::only_grows(&series.name)) {
            if let Some(before) = self.now.get(series).filter(|before| *before > value) {
                *self.carried.entry(series.clone()).or_default() += before;
            }
            counters.push((series.clone(), value + self.carried.get(series).copied().unwrap_or_default()));
        }
        self.now = now;
        self.moments.push_back(Moment { at, counters: counters.into_iter().collect() });
        // The oldest stays until the second is old enough to take its place.
        while self.moments.get(1).is_some_and(|second| at.saturating_sub(second.at) >= KEPT) {
            self.moments.pop_front();
        }
    }

    /// The last answer; empty before the first.
    pub(super) fn now(&self) -> &Samples {
        &self.now
    }

    /// Over this time, or as near to it as there are answers: longer rather than shorter. `None` before the first.
    pub(super) fn over(&self, window: Duration) -> Option<Growth<'_>> {
        let (oldest, now) = (self.moments.front()?, self.moments.back()?);
        let then = self.moments.iter().rev().find(|moment| now.at.saturating_sub(moment.at) >= window);
        Some(Growth { then: then.unwrap_or(oldest), now })
    }
}

impl Growth<'_> {
    /// The time between the two; zero with a single answer.
    pub(super) fn passed(self) -> Duration {
        self.now.at.saturating_sub(self.then.at)
    }

    /// By how much the sum of these series has grown.
    pub(super) fn of(self, name: &str, labels: &[(&str, &str)]) -> f64 {
        (self.now.counters.sum(name, labels) - self.then.counters.sum(name, labels)).max(0.0)
    }

    /// The same by second; `None` with a single answer.
    pub(super) fn rate(self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let seconds = self.passed().as_secs_f64();
        (seconds > 0.0).then(|| self.of(name, labels) / seconds)
    }

    /// The value below which this part of a histogram's new samples lie, by its buckets; `None` without any.
    ///
    /// Within a bucket samples count as evenly spread. What is above the highest bound is taken to be at it.
    pub(super) fn quantile(self, name: &str, labels: &[(&str, &str)], part: f64) -> Option<f64> {
        let name = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (series, value) in self.now.counters.of(&name, labels) {
            let bound = series.label("le").parse().ok()?;
            buckets.push((bound, value - self.then.counters.get(series).unwrap_or_default()));
        }
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let total = buckets.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in buckets {
            if count >= total * part {
                let inside = (total * part - below) / (count - below).max(f64::MIN_POSITIVE);
                return Some(if bound.is_finite() { low + (bound - low) * inside } else { low });
            }
            (low, below) = (bound, count);
        }
        Some(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A history of answers a second apart.
    fn history(answers: &[&str]) -> History {
        let mut history = History::default();
        for (at, text) in (0..).zip(answers) {
            history.push(seconds(at), Samples::parse(text, |_| true));
        }
        history
    }

    #[test]
    fn rates_need_two_answers() {
        assert!(History::default().over(seconds(1)).is_none());
        let one = history(&["a_total 5"]);
        assert_eq!(one.over(seconds(1)).expect("an answer").rate("a_total", &[]), None);
        let two = history(&["a_total 5", "a_total 25"]);
        assert_eq!(two.over(seconds(10)).expect("answers").rate("a_total", &[]), Some(20.0));
    }

    #[test]
    fn a_server_that_was_started_again_has_gone_on_counting() {
        let history = history(&["a_total 5", "a_total 9", "a_total 2", "a_total 3", "a_total 1"]);
        // 4, then 2 of the second life and 1 more, then 1 of the third.
        assert_eq!(history.over(seconds(10)).expect("answers").of("a_total", &[]), 8.0);
        assert_eq!(history.over(seconds(1)).expect("answers").of("a_total", &[]), 1.0);
        assert_eq!(history.now().sum("a_total", &[]), 1.0);
    }

    #[test]
    fn a_level_may_fall() {
        let history = history(&["a_rows 5", "a_rows 2"]);
        assert_eq!(history.now().sum("a_rows", &[]), 2.0);
        assert_eq!(history.over(seconds(1)).expect("answers").of("a_rows", &[]), 0.0);
    }

    #[test]
    fn a_series_that_is_new_has_grown_from_nothing() {
        let history = history(&["b_total 1", "a_total{m=\"x\"} 7\nb_total 1"]);
        assert_eq!(history.over(seconds(1)).expect("answers").of("a_total", &[]), 7.0);
    }

    #[test]
    fn a_window_is_longer_rather_than_shorter_and_a_minute_is_kept() {
        let mut history = History::default();
        for at in 0..200 {
            history.push(seconds(3 * at), Samples::default());
        }
        assert_eq!(history.over(seconds(10)).expect("answers").passed(), seconds(12));
        assert_eq!(history.over(KEPT).expect("answers").passed(), seconds(60));
        assert_eq!(history.over(seconds(3600)).expect("answers").passed(), seconds(60));
        assert_eq!(history.moments.len(), 21);
        // It was away for long: what there is is better than nothing.
        history.push(seconds(5000), Samples::default());
        assert_eq!(history.over(seconds(10)).expect("answers").passed(), seconds(5000 - 597));
    }

    #[test]
    fn quantiles_lie_within_the_buckets_of_new_samples() {
        let buckets = |one: u32, two: u32, all: u32| {
            format!("s_bucket{{le=\"1.0\"}} {one}\ns_bucket{{le=\"2.0\"}} {two}\ns_bucket{{le=\"+Inf\"}} {all}\n")
        };
        let check = |then: String, now: String, part: f64, expected: Option<f64>| {
            let history = history(&[&then, &now]);
            assert_eq!(history.over(seconds(1)).expect("answers").quantile("s", &[], part), expected, "{now} {part}");
        };
        check(buckets(9, 9, 9), buckets(9, 9, 9), 0.5, None);
        check(buckets(9, 9, 9), buckets(9, 19, 19), 0.5, Some(1.5));
        check(buckets(9, 9, 9), buckets(19, 19, 19), 0.1, Some(0.1));
        check(buckets(0, 0, 0), buckets(5, 10, 10), 0.5, Some(1.0));
        check(buckets(0, 0, 0), buckets(5, 10, 10), 1.0, Some(2.0));
        // Above the highest bound nothing is known.
        check(buckets(0, 0, 0), buckets(0, 0, 10), 0.5, Some(2.0));
        // The second life's samples are all new.
        check(buckets(9, 9, 9), buckets(0, 4, 4), 0.5, Some(1.5));
        check(String::new(), String::new(), 0.5, None);
    }
}
