//! Choices with weights: `NAME[=WEIGHT]`.

use std::str::FromStr;

use rand::RngExt;
use rand::rngs::StdRng;

/// A value and how often it is chosen, relative to the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighted<T> {
    /// What is chosen.
    pub value: T,
    /// Positive and finite.
    pub weight: f64,
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Weighted<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Weighted<T>, String> {
        // Names of models may hold '=', weights do not: split at the last one.
        let (name, weight) = text.rsplit_once('=').unwrap_or((text, "1"));
        let weight = weight.parse::<f64>().ok().filter(|weight| *weight > 0.0 && weight.is_finite());
        let weight = weight.ok_or_else(|| format!("the weight in '{text}' is not a positive number"))?;
        let value = name.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Weighted { value, weight })
    }
}

/// The index of one of `choices`, drawn by weight.
///
/// # Panics
/// If there is no choice.
pub(super) fn draw<T>(choices: &[Weighted<T>], rng: &mut StdRng) -> usize {
    assert!(!choices.is_empty(), "there is something to choose from");
    let total: f64 = choices.iter().map(|choice| choice.weight).sum();
    let mut left = rng.random::<f64>() * total;
    for (index, choice) in choices.iter().enumerate() {
        left -= choice.weight;
        if left < 0.0 {
            return index;
        }
    }
    choices.len() - 1 // rounding has left a rest
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn weights_decide_how_often() {
        let choices: Vec<Weighted<String>> = ["a", "b=3"].iter().map(|text| text.parse().unwrap()).collect();
        let mut rng = StdRng::seed_from_u64(1);
        let b = (0..10_000).filter(|_| draw(&choices, &mut rng) == 1).count();
        assert!((7_350..7_650).contains(&b), "{b} of 10,000");
    }

    #[test]
    fn weights_are_positive_numbers() {
        for text in ["a=", "a=x", "a=0", "a=-1", "a=inf"] {
            assert!(text.parse::<Weighted<String>>().is_err(), "{text}");
        }
        assert_eq!("a=b=2".parse(), Ok(Weighted { value: "a=b".to_owned(), weight: 2.0 }));
    }
}
