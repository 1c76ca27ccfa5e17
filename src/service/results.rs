//! From a model's vectors to what was asked for. Pure.

use super::errors::Problem;

/// How an embedding is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    /// How many of the first values are kept.
    pub(crate) dimensions: usize,
    /// Whether what is kept is scaled to length 1.
    pub(crate) normalize: bool,
}

impl Finish {
    /// `asked` 0 means all of the model's `dimensions`.
    pub(crate) fn new(field: &str, asked: u64, dimensions: u32, normalize: bool) -> Result<Finish, Problem> {
        if asked > u64::from(dimensions) {
            return Err(Problem::invalid(field, format!("it is {asked} and the model's embeddings have {dimensions}")));
        }
        let dimensions = if asked == 0 { dimensions as usize } else { asked as usize };
        Ok(Finish { dimensions, normalize })
    }

    /// Cuts and scales one embedding.
    pub(crate) fn apply(self, values: &mut Vec<f32>) {
        values.truncate(self.dimensions);
        if self.normalize {
            normalize(values);
        }
    }
}

/// Scales to length 1. A vector of zeros has no direction and stays as it is.
pub(crate) fn normalize(values: &mut [f32]) {
    let squares: f64 = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    if squares > 0.0 {
        let scale = 1.0 / squares.sqrt();
        values.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
    }
}

/// The cosine of the angle between two vectors; 0 with one that has no direction.
pub(crate) fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = (dot(one, one) * dot(other, other)).sqrt();
    if lengths > 0.0 { (dot(one, other) / lengths) as f32 } else { 0.0 }
}

/// The logistic function.
pub(crate) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Probabilities over labels that exclude each other. One lone logit stands for yes or no, so that its probability is
/// the logistic function of it.
pub(crate) fn softmax(logits: &mut [f32]) {
    if let [only] = logits {
        *only = sigmoid(*only);
        return;
    }
    // Without the maximum subtracted, a logit of 89 would already overflow.
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - most).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|logit| *logit /= sum);
}

/// Indices and values of the `count` largest, largest first, equal ones in order of index.
pub(crate) fn top(values: &[f32], count: usize) -> Vec<(usize, f32)> {
    let mut ranked: Vec<(usize, f32)> = values.iter().copied().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(count);
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_cut_before_they_are_normalized() {
        let check = |asked, normalize, expected: &[f32]| {
            let mut values = vec![3.0, 4.0, 12.0];
            Finish::new("dimensions", asked, 3, normalize).unwrap().apply(&mut values);
            assert_eq!(values, expected, "{asked} {normalize}");
        };
        check(0, false, &[3.0, 4.0, 12.0]);
        check(2, false, &[3.0, 4.0]);
        check(2, true, &[0.6, 0.8]);
        check(0, true, &[3.0 / 13.0, 4.0 / 13.0, 12.0 / 13.0]);
        assert!(Finish::new("dimensions", 4, 3, true).is_err());
    }

    #[test]
    fn a_vector_of_zeros_stays() {
        let mut zeros = vec![0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }

    #[test]
    fn softmax_sums_to_one_and_survives_large_logits() {
        let mut logits = vec![1000.0, 999.0, -1000.0];
        softmax(&mut logits);
        assert!((logits.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((logits[0] - sigmoid(1.0)).abs() < 1e-6);
        let mut lone = [0.0];
        softmax(&mut lone);
        assert_eq!(lone, [0.5]);
    }

    #[test]
    fn top_ranks_and_keeps_the_order_of_equals() {
        assert_eq!(top(&[1.0, 3.0, 3.0, 2.0], 3), [(1, 3.0), (2, 3.0), (3, 2.0)]);
        assert_eq!(top(&[1.0], 9), [(0, 1.0)]);
        assert_eq!(top(&[], 1), []);
    }
}
