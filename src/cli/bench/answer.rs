//! Answers in one form for all tasks, and whether one agrees with the undisturbed one.

use crate::config::{Dtype, Task};

/// What a server answered: a vector for each row of the call, in the order of the rows.
/// Embeddings as they are; the labels' probabilities in the order of the labels, or of each token its best label's; a
/// score.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// The vectors.
    pub rows: Vec<Vec<f32>>,
}

/// How far an answer under load may be from the undisturbed one: batching changes the order of additions, and int8
/// quantizes activations per row of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerance {
    /// The least cosine of two embeddings.
    pub cosine_min: f64,
    /// The largest difference of two scores or probabilities.
    pub difference_max: f64,
}

impl Tolerance {
    /// The tolerance of a dtype, stated once for all of Plimsoll's comparisons of batched with unbatched answers.
    pub(super) const fn of(dtype: Dtype) -> Tolerance {
        match dtype {
            Dtype::F32 => Tolerance { cosine_min: 0.99999, difference_max: 1e-3 },
            Dtype::F16 => Tolerance { cosine_min: 0.9995, difference_max: 1e-2 },
            Dtype::Bf16 => Tolerance { cosine_min: 0.998, difference_max: 3e-2 },
            Dtype::Q8 | Dtype::Int8 | Dtype::Fp8 => Tolerance { cosine_min: 0.995, difference_max: 5e-2 },
        }
    }
}

/// Where an answer differs from the undisturbed one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum Disagreement {
    /// Rows are missing or too many.
    #[error("{found} rows instead of {expected}")]
    Rows {
        /// Rows of the undisturbed answer.
        expected: usize,
        /// Rows of this one.
        found: usize,
    },
    /// A row's vector has another length.
    #[error("row {row} has {found} values instead of {expected}")]
    Width {
        /// The row.
        row: usize,
        /// Values of the undisturbed answer.
        expected: usize,
        /// Values of this one.
        found: usize,
    },
    /// A value is not a finite number.
    #[error("row {row} holds a value that is not a finite number")]
    NotFinite {
        /// The row.
        row: usize,
    },
    /// An embedding points elsewhere.
    #[error("row {row} has cosine {cosine:.6} to the undisturbed answer, less than {least}")]
    Cosine {
        /// The row.
        row: usize,
        /// Its cosine.
        cosine: f64,
        /// The tolerance.
        least: f64,
    },
    /// A score or probability is off.
    #[error("row {row} is {difference:.6} away from the undisturbed answer, more than {most}")]
    Difference {
        /// The row.
        row: usize,
        /// The largest difference of its values.
        difference: f64,
        /// The tolerance.
        most: f64,
    },
}

/// Compares an answer under load with the undisturbed one of the same call.
///
/// # Errors
/// The first row that differs by more than the tolerance.
pub(super) fn agree(
    task: Task,
    tolerance: Tolerance,
    undisturbed: &Answer,
    answer: &Answer,
) -> Result<(), Disagreement> {
    let (expected, found) = (undisturbed.rows.len(), answer.rows.len());
    if expected != found {
        return Err(Disagreement::Rows { expected, found });
    }
    for (row, (expected, found)) in undisturbed.rows.iter().zip(&answer.rows).enumerate() {
        if expected.len() != found.len() {
            return Err(Disagreement::Width { row, expected: expected.len(), found: found.len() });
        }
        if found.iter().any(|value| !value.is_finite()) {
            return Err(Disagreement::NotFinite { row });
        }
        match task {
            Task::Embed => {
                let (cosine, least) = (cosine(expected, found), tolerance.cosine_min);
                if cosine < least {
                    return Err(Disagreement::Cosine { row, cosine, least });
                }
            }
            Task::Classify | Task::Rerank | Task::TokenClassify => {
                let pairs = expected.iter().zip(found);
                let difference = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max);
                let most = tolerance.difference_max;
                if difference > most {
                    return Err(Disagreement::Difference { row, difference, most });
                }
            }
        }
    }
    Ok(())
}

/// The cosine of the angle between two vectors of equal length; 1 for two zero vectors, 0 for one.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let (aa, bb) = (dot(a, a), dot(b, b));
    match (aa == 0.0, bb == 0.0) {
        (true, true) => 1.0,
        (true, false) | (false, true) => 0.0,
        (false, false) => dot(a, b) / (aa * bb).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(task: Task, dtype: Dtype, expected: &[&[f32]], found: &[&[f32]]) -> Result<(), Disagreement> {
        let answer = |rows: &[&[f32]]| Answer { rows: rows.iter().map(|row| row.to_vec()).collect() };
        agree(task, Tolerance::of(dtype), &answer(expected), &answer(found))
    }

    #[test]
    fn embeddings_agree_by_their_direction() {
        let expected: &[&[f32]] = &[&[1.0, 0.0], &[0.6, 0.8]];
        assert_eq!(compare(Task::Embed, Dtype::F32, expected, expected), Ok(()));
        // An angle of 0.01 is a cosine of 0.99995: enough for f16, not for f32.
        let turned: &[&[f32]] = &[&[1.0, 0.0], &[0.6 - 0.008, 0.8 + 0.006]];
        assert!(matches!(
            compare(Task::Embed, Dtype::F32, expected, turned),
            Err(Disagreement::Cosine { row: 1, cosine, .. }) if (cosine - 0.99995).abs() < 1e-5
        ));
        assert_eq!(compare(Task::Embed, Dtype::F16, expected, turned), Ok(()));
    }

    #[test]
    fn another_rows_answer_is_wrong_in_every_dtype() {
        let (expected, swapped): (&[&[f32]], &[&[f32]]) = (&[&[1.0, 0.0], &[0.0, 1.0]], &[&[0.0, 1.0], &[1.0, 0.0]]);
        for &dtype in Dtype::ALL {
            assert!(compare(Task::Embed, dtype, expected, swapped).is_err());
            assert!(compare(Task::Classify, dtype, expected, swapped).is_err());
        }
    }

    #[test]
    fn scores_agree_by_their_difference() {
        assert_eq!(compare(Task::Rerank, Dtype::F32, &[&[0.5]], &[&[0.5009]]), Ok(()));
        assert!(matches!(
            compare(Task::Rerank, Dtype::F32, &[&[0.1], &[0.5]], &[&[0.1], &[0.502]]),
            Err(Disagreement::Difference { row: 1, .. })
        ));
    }

    #[test]
    fn missing_or_broken_rows_are_named() {
        let expected: &[&[f32]] = &[&[1.0, 2.0]];
        let check =
            |found: &[&[f32]], error| assert_eq!(compare(Task::Embed, Dtype::Int8, expected, found), Err(error));
        check(&[], Disagreement::Rows { expected: 1, found: 0 });
        check(&[&[1.0]], Disagreement::Width { row: 0, expected: 2, found: 1 });
        check(&[&[f32::NAN, 2.0]], Disagreement::NotFinite { row: 0 });
        check(&[&[0.0, 0.0]], Disagreement::Cosine { row: 0, cosine: 0.0, least: 0.995 });
    }
}
