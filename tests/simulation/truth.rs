//! What models really cost, which the scheduler only knows from probes.

use plimsoll::memory::{Axes, Axis, Measured, Profile, Shape, ShapeKind, Slack};
use plimsoll::units::{Bytes, Micros};

/// The cost of one model's steps: non-negative terms in the batch, as in a transformer's forward pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    pub(crate) kind: ShapeKind,
    pub(crate) length_max: u32,
    pub(crate) batch_max: u32,
    pub(crate) bytes_base: f64,
    pub(crate) bytes_token: f64,
    pub(crate) bytes_square: f64,
    pub(crate) micros_base: f64,
    pub(crate) micros_token: f64,
}

impl Truth {
    /// About as large as a small sentence embedder on a CPU.
    pub(crate) const SMALL: Truth = Truth {
        kind: ShapeKind::Padded,
        length_max: 512,
        batch_max: 128,
        bytes_base: 2e6,
        bytes_token: 9e3,
        bytes_square: 24.0,
        micros_base: 2_000.0,
        micros_token: 25.0,
    };

    pub(crate) fn peak(&self, shape: Shape) -> Bytes {
        let longest = self.longest(shape);
        let tokens = shape.tokens() as f64;
        Bytes::new((self.bytes_base + tokens * self.bytes_token + tokens * longest * self.bytes_square) as u64)
    }

    pub(crate) fn time(&self, shape: Shape) -> Micros {
        // The batch fills the device only little by little: throughput has a knee.
        Micros::new((self.micros_base + shape.tokens() as f64 * self.micros_token) as u64)
    }

    fn longest(&self, shape: Shape) -> f64 {
        match shape {
            Shape::Padded { length, .. } => f64::from(length),
            Shape::Ragged { longest, .. } => f64::from(longest),
            Shape::Generate { .. } => unreachable!("nothing here generates"),
        }
    }

    pub(crate) fn axes(&self) -> Axes {
        let axis = |max| Axis { min: 1, max, splits: Vec::new() };
        let batch = match self.kind {
            ShapeKind::Padded => axis(self.batch_max),
            ShapeKind::Ragged | ShapeKind::Generate => axis(self.batch_max * self.length_max),
        };
        let step_tokens_max = self.batch_max * self.length_max / 4;
        let (extent, measured_tokens_min) = (axis(self.length_max), self.length_max);
        Axes { kind: self.kind, batch, extent, step_tokens_max, measured_tokens_min }
    }

    /// A profile with nothing measured.
    pub(crate) fn empty_profile(&self) -> Profile {
        Profile::new(self.axes(), Slack::CPU)
    }

    /// A profile that has measured all it wants.
    pub(crate) fn profile(&self) -> Profile {
        let mut profile = self.empty_profile();
        while let Some(probe) = profile.next_probe(Bytes::MAX) {
            let (peak, time) = (self.peak(probe.shape), self.time(probe.shape));
            profile.record(Measured { shape: probe.shape, peak, time });
        }
        profile
    }
}
