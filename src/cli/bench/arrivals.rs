//! When calls are due: a schedule that does not depend on how fast the server answers.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How the gaps between calls are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ArrivalKind {
    /// Independent callers: exponential gaps, so calls come in clumps as they do in production.
    Poisson,
    /// Equal gaps.
    Constant,
}

impl fmt::Display for ArrivalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ArrivalKind::Poisson => "poisson",
            ArrivalKind::Constant => "constant",
        })
    }
}

/// The endless, non-decreasing times of calls, counted from the start of the load. The same seed gives the same times.
pub struct Arrivals {
    kind: ArrivalKind,
    rate: f64,
    index: u64,
    seconds: f64,
    rng: StdRng,
}

impl Arrivals {
    /// Calls at `rate` per second on average.
    ///
    /// # Panics
    /// If `rate` is not a positive number: the command line has refused that before.
    pub fn new(kind: ArrivalKind, rate: f64, seed: u64) -> Arrivals {
        assert!(rate.is_finite() && rate > 0.0, "a rate is positive");
        Arrivals { kind, rate, index: 0, seconds: 0.0, rng: StdRng::seed_from_u64(seed) }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.seconds = match self.kind {
            // From the index and not by adding up gaps: a constant schedule must not drift by rounding.
            ArrivalKind::Constant => self.index as f64 / self.rate,
            // `random` is in [0, 1), so the logarithm's argument is in (0, 1].
            ArrivalKind::Poisson => self.seconds - (1.0 - self.rng.random::<f64>()).ln() / self.rate,
        };
        self.index += 1;
        Some(Duration::from_secs_f64(self.seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(kind: ArrivalKind, rate: f64, seed: u64, count: usize) -> Vec<Duration> {
        Arrivals::new(kind, rate, seed).take(count).collect()
    }

    #[test]
    fn a_seed_fixes_the_times() {
        let times = first(ArrivalKind::Poisson, 100.0, 7, 1_000);
        assert_eq!(times, first(ArrivalKind::Poisson, 100.0, 7, 1_000));
        assert_ne!(times, first(ArrivalKind::Poisson, 100.0, 8, 1_000));
        assert!(times.is_sorted());
    }

    #[test]
    fn constant_times_are_exact_however_far_on() {
        let times = first(ArrivalKind::Constant, 1_000.0, 1, 100_001);
        assert_eq!(times[0], Duration::ZERO);
        assert_eq!(times[1], Duration::from_millis(1));
        assert_eq!(times[100_000], Duration::from_secs(100));
    }

    /// Goal: gaps are exponential. Method: over 20,000 gaps, mean and deviation are both 1/rate (within 3 %), and the
    /// share of gaps longer than the mean is 1/e; a constant or uniform gap fails at least one of the three.
    #[test]
    fn poisson_gaps_are_exponential_at_the_rate() {
        let rate = 250.0;
        let times = first(ArrivalKind::Poisson, rate, 42, 20_001);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / gaps.len() as f64;
        assert!((mean * rate - 1.0).abs() < 0.03, "mean {mean}");
        assert!((deviation * rate - 1.0).abs() < 0.03, "deviation {deviation}");
        assert!((longer - (-1.0f64).exp()).abs() < 0.02, "longer than the mean {longer}");
    }
}
