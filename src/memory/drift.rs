//! How far a model's steps are from what its profile predicts.

use crate::units::Bytes;

/// Steps after which half of a raised factor is gone.
const HALF_LIFE_STEPS: f64 = 64.0;
/// So many excesses ...
const EXCESSES_STALE: u32 = 3;
/// ... within so many steps mean that the profile is wrong, not that a step was unlucky.
const EXCESS_WINDOW: u32 = 64;
/// A step that needs less than this part of its prediction had capacity that others could have used.
const SLACK_RATIO: f64 = 0.7;
/// So many such steps in a row mean that the profile is wrong.
const SLACK_STEPS: u32 = 64;
/// Predictions below this are mostly what the slack adds, up to 2 MiB, and say nothing: not half of what is predicted for
/// a short row is its own.
const SLACK_PREDICTED_MIN: Bytes = Bytes::mib(16);
/// Each verdict doubles what the next one takes, up to this factor: a model whose peaks vary, or whose slack is real,
/// should not be measured again and again.
const PATIENCE_MAX: u32 = 8;
/// So many steps without a verdict, and the next one takes no more than the first did.
const PATIENCE_STEPS: u32 = 4096;
/// Bound on the factor: what needs more than this many times its prediction is no drift but another model.
const FACTOR_MAX: f64 = 16.0;

/// What the steps say about the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriftVerdict {
    /// It still holds.
    Holds,
    /// Peaks are repeatedly above the predictions: measure again.
    Stale,
    /// Peaks stay far below the predictions: measure again to win the capacity back.
    Slack,
}

/// The drift factor of one model: what its predictions are multiplied with. Raised at once by an excess, so that the
/// next step is not short as well; decays slowly. Only the model's own peaks move it, never a neighbour's shortage.
///
/// Invariant: `1 <= factor <= 16`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    factor: f64,
    excesses: u32,
    steps_since_first_excess: u32,
    slack_steps: u32,
    /// `1 <= patience <= PATIENCE_MAX`.
    patience: u32,
    steps_since_verdict: u32,
}

impl Default for Drift {
    fn default() -> Drift {
        Drift {
            factor: 1.0,
            excesses: 0,
            steps_since_first_excess: 0,
            slack_steps: 0,
            patience: 1,
            steps_since_verdict: 0,
        }
    }
}

impl Drift {
    /// No drift seen.
    pub fn new() -> Drift {
        Drift::default()
    }

    /// The factor.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// A prediction of the profile with the factor on it.
    pub fn on(&self, predicted: Bytes) -> Bytes {
        // Exact where there is no drift: a float has 53 bits only.
        if self.factor == 1.0 { predicted } else { predicted.scale(self.factor) }
    }

    /// The bytes that a prediction of the profile may have, for [`super::Profile::largest_batch`]: the largest `x`, up
    /// to rounding, with `on(x) <= fits`, and never more.
    pub fn within(&self, fits: Bytes) -> Bytes {
        if self.factor == 1.0 {
            return fits;
        }
        let mut most = Bytes::new((fits.as_f64() / self.factor) as u64);
        while self.on(most) > fits {
            most = most.saturating_sub(Bytes::new(1.max(most.get() >> 48)));
        }
        most
    }

    /// Takes in a step that was run whole: what the profile predicted for it (without the factor) and what it needed.
    /// After `Stale` or `Slack` the counts begin anew; the factor stays until it decays or [`Drift::reset`].
    pub fn observe(&mut self, predicted: Bytes, peak: Bytes) -> DriftVerdict {
        let ratio = peak.as_f64() / predicted.as_f64().max(1.0);
        let decayed = 1.0 + (self.factor - 1.0) * (-std::f64::consts::LN_2 / HALF_LIFE_STEPS).exp();
        self.factor = decayed.max(ratio).clamp(1.0, FACTOR_MAX);
        // A remainder too small to move a byte count should not cost the exactness of `on`.
        if self.factor < 1.0 + 1e-4 {
            self.factor = 1.0;
        }
        self.steps_since_verdict = self.steps_since_verdict.saturating_add(1);
        if self.steps_since_verdict >= PATIENCE_STEPS {
            self.patience = 1;
        }
        let verdict = self.count(predicted, ratio);
        if verdict != DriftVerdict::Holds {
            self.forget_steps();
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.steps_since_verdict = 0;
        }
        verdict
    }

    /// The profile was measured anew: the factor is 1 again, and steps before that no longer count.
    pub fn reset(&mut self) {
        self.factor = 1.0;
        self.forget_steps();
    }

    fn forget_steps(&mut self) {
        (self.excesses, self.steps_since_first_excess, self.slack_steps) = (0, 0, 0);
    }

    fn count(&mut self, predicted: Bytes, ratio: f64) -> DriftVerdict {
        if self.excesses > 0 {
            self.steps_since_first_excess += 1;
        }
        if self.steps_since_first_excess >= EXCESS_WINDOW {
            (self.excesses, self.steps_since_first_excess) = (0, 0);
        }
        if ratio > 1.0 {
            self.excesses += 1;
        }
        if ratio >= SLACK_RATIO {
            self.slack_steps = 0;
        } else if predicted >= SLACK_PREDICTED_MIN {
            self.slack_steps += 1;
        }
        if self.excesses >= EXCESSES_STALE * self.patience {
            DriftVerdict::Stale
        } else if self.slack_steps >= SLACK_STEPS * self.patience {
            DriftVerdict::Slack
        } else {
            DriftVerdict::Holds
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREDICTED: Bytes = Bytes::mib(100);

    #[test]
    fn an_excess_raises_the_factor_at_once_and_it_halves_in_64_steps() {
        let mut drift = Drift::new();
        assert_eq!(drift.observe(PREDICTED, Bytes::mib(150)), DriftVerdict::Holds);
        assert_eq!(drift.factor(), 1.5);
        for _ in 0..64 {
            drift.observe(PREDICTED, Bytes::mib(90));
        }
        assert!((drift.factor() - 1.25).abs() < 1e-6, "{}", drift.factor());
        for _ in 0..2000 {
            drift.observe(PREDICTED, Bytes::mib(90));
        }
        assert_eq!(drift.factor(), 1.0);
    }

    #[test]
    fn repeated_excesses_make_stale_and_single_ones_do_not() {
        let mut drift = Drift::new();
        let over = Bytes::mib(101);
        assert_eq!(drift.observe(PREDICTED, over), DriftVerdict::Holds);
        assert_eq!(drift.observe(PREDICTED, over), DriftVerdict::Holds);
        assert_eq!(drift.observe(PREDICTED, over), DriftVerdict::Stale);
        // Two in each window never add up to three.
        for step in 0..1000 {
            let peak = if step % 64 < 2 { over } else { PREDICTED };
            assert_eq!(drift.observe(PREDICTED, peak), DriftVerdict::Holds, "step {step}");
        }
    }

    #[test]
    fn verdicts_become_rarer_and_the_patience_wears_off() {
        let mut drift = Drift::new();
        let mut excesses = |count: u32| {
            let mut verdicts = (0..count).map(|_| drift.observe(PREDICTED, Bytes::mib(101)));
            let position = verdicts.position(|verdict| verdict == DriftVerdict::Stale);
            drift.reset();
            position.map(|index| index + 1)
        };
        assert_eq!([3, 6, 12, 24, 24].map(&mut excesses), [3, 6, 12, 24, 24].map(Some));
        for step in 0..4096 {
            assert_eq!(drift.observe(PREDICTED, PREDICTED), DriftVerdict::Holds, "step {step}");
        }
        let over = Bytes::mib(101);
        assert_eq!([over; 3].map(|peak| drift.observe(PREDICTED, peak)).last(), Some(&DriftVerdict::Stale));
        assert_eq!(drift.factor(), 1.01);
        drift.reset();
        assert_eq!(drift.factor(), 1.0);
    }

    #[test]
    fn slack_needs_64_large_steps_in_a_row() {
        let mut drift = Drift::new();
        for step in 0..63 {
            assert_eq!(drift.observe(PREDICTED, Bytes::mib(60)), DriftVerdict::Holds, "step {step}");
        }
        assert_eq!(drift.observe(PREDICTED, Bytes::mib(70)), DriftVerdict::Holds);
        for step in 0..63 {
            assert_eq!(drift.observe(PREDICTED, Bytes::mib(60)), DriftVerdict::Holds, "step {step}");
            assert_eq!(drift.observe(Bytes::mib(1), Bytes::kib(1)), DriftVerdict::Holds, "small ones do not count");
        }
        assert_eq!(drift.observe(PREDICTED, Bytes::mib(60)), DriftVerdict::Slack);
        // The next verdict takes twice as many.
        let mut verdicts = (0..200).map(|_| drift.observe(PREDICTED, Bytes::mib(60)));
        assert_eq!(verdicts.position(|verdict| verdict == DriftVerdict::Slack), Some(127));
    }

    #[test]
    fn within_is_the_inverse_of_on() {
        let mut drift = Drift::new();
        drift.observe(Bytes::new(1000), Bytes::new(1337));
        for fits in [0, 1, 2, 1336, 1337, 1338, u64::from(u32::MAX), u64::MAX / 3] {
            let most = drift.within(Bytes::new(fits));
            assert!(drift.on(most) <= Bytes::new(fits), "{fits}");
            // Exact in the range of a float's whole numbers.
            if fits < 1 << 50 {
                assert!(drift.on(most + Bytes::new(2)) > Bytes::new(fits), "{fits}");
            }
        }
        // Beyond it the first quotient can be too large: a few parts in 2^48 are given up for each correction.
        let mut corrected = 0;
        for step in 0..1000 {
            let fits = Bytes::new((1 << 60) + step * 0x1234_5678_9ABC);
            let most = drift.within(fits);
            assert!(drift.on(most) <= fits, "{fits}");
            assert!(drift.on(most + Bytes::new(1 << 20)) > fits, "{fits}");
            corrected += u32::from(most < Bytes::new((fits.as_f64() / drift.factor()) as u64));
        }
        assert!(corrected > 0);
        assert_eq!(Drift::new().within(Bytes::MAX), Bytes::MAX);
    }

    #[test]
    fn the_factor_is_bounded() {
        let mut drift = Drift::new();
        drift.observe(Bytes::ZERO, Bytes::gib(1));
        assert_eq!(drift.factor(), 16.0);
        drift.observe(Bytes::ZERO, Bytes::ZERO);
        assert!(drift.factor() >= 1.0);
    }
}
