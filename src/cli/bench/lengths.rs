//! How long the rows are, in tokens.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand::rngs::StdRng;

/// The shortest row with something in it: two special tokens around one.
const TOKENS_MIN: u32 = 3;

/// The spread of `lognormal:MEAN` when none is given, and of `encode`: sigma of the logarithm, about that of sentences
/// in ordinary prose (the longest of a thousand rows is some nine times the mean).
const SIGMA: f64 = 0.8;

/// The mean of `encode`, as of documents cut into passages for an embedder.
const ENCODE_MEAN: f64 = 101.0;

/// A distribution of row lengths in tokens, special tokens included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// `fixed:N`.
    Fixed(u32),
    /// `uniform:LOW-HIGH`, both ends included.
    Uniform(u32, u32),
    /// `lognormal:MEAN` or `lognormal:MEAN,SIGMA`; `encode` is `lognormal:101`.
    LogNormal {
        /// The mean in tokens, before clipping.
        mean: f64,
        /// The deviation of the logarithm.
        sigma: f64,
    },
    /// `bimodal:SHORT,LONG,PART`: that part is long, the others are short; `bimodal` is 90 % of 16 tokens (queries) and
    /// 10 % of 512 (documents).
    Bimodal {
        /// Tokens of the short ones.
        short: u32,
        /// Tokens of the long ones.
        long: u32,
        /// The part of long ones.
        part: f64,
    },
}

impl Lengths {
    /// One length, between the shortest possible row and `longest`.
    pub fn draw(&self, longest: u32, rng: &mut StdRng) -> u32 {
        let tokens = match *self {
            Lengths::Fixed(tokens) => tokens,
            Lengths::Uniform(low, high) => rng.random_range(low..=high),
            Lengths::LogNormal { mean, sigma } => {
                // exp(mu + sigma z) has the mean exp(mu + sigma^2 / 2).
                let mu = mean.ln() - sigma * sigma / 2.0;
                (mu + sigma * standard_normal(rng)).exp().round() as u32 // `as` saturates
            }
            Lengths::Bimodal { short, long, part } => match rng.random_bool(1.0 - part) {
                true => short,
                false => long,
            },
        };
        tokens.clamp(TOKENS_MIN, longest.max(TOKENS_MIN))
    }
}

/// One draw from N(0, 1), by Box and Muller's method.
fn standard_normal(rng: &mut StdRng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Lengths, String> {
        let error = || {
            format!(
                "'{text}' is not a distribution of lengths: allowed are encode, bimodal, \
                 bimodal:SHORT,LONG,PART, fixed:TOKENS, uniform:LOW-HIGH, lognormal:MEAN[,SIGMA]"
            )
        };
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let tokens = |text: &str| text.parse::<u32>().ok().filter(|tokens| *tokens > 0).ok_or_else(error);
        let positive =
            |text: &str| text.parse::<f64>().ok().filter(|value| *value > 0.0 && value.is_finite()).ok_or_else(error);
        match (name, rest) {
            ("encode", "") => Ok(Lengths::LogNormal { mean: ENCODE_MEAN, sigma: SIGMA }),
            ("bimodal", "") => Ok(Lengths::Bimodal { short: 16, long: 512, part: 0.1 }),
            ("bimodal", rest) => {
                let [short, long, part] = rest.split(',').collect::<Vec<_>>().try_into().map_err(|_| error())?;
                let part = positive(part).and_then(|part| if part <= 1.0 { Ok(part) } else { Err(error()) })?;
                Ok(Lengths::Bimodal { short: tokens(short)?, long: tokens(long)?, part })
            }
            ("fixed", rest) => Ok(Lengths::Fixed(tokens(rest)?)),
            ("uniform", rest) => {
                let (low, high) = rest.split_once('-').ok_or_else(error)?;
                let (low, high) = (tokens(low)?, tokens(high)?);
                if low > high { Err(error()) } else { Ok(Lengths::Uniform(low, high)) }
            }
            ("lognormal", rest) => {
                let (mean, sigma) = match rest.split_once(',') {
                    Some((mean, sigma)) => (positive(mean)?, positive(sigma)?),
                    None => (positive(rest)?, SIGMA),
                };
                Ok(Lengths::LogNormal { mean, sigma })
            }
            _ => Err(error()),
        }
    }
}

/// As it is written on the command line.
impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(tokens) => write!(f, "fixed:{tokens}"),
            Lengths::Uniform(low, high) => write!(f, "uniform:{low}-{high}"),
            Lengths::LogNormal { mean, sigma } => write!(f, "lognormal:{mean},{sigma}"),
            Lengths::Bimodal { short, long, part } => write!(f, "bimodal:{short},{long},{part}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn draws(spec: &str, longest: u32) -> Vec<u32> {
        let lengths: Lengths = spec.parse().unwrap();
        let mut rng = StdRng::seed_from_u64(3);
        (0..20_000).map(|_| lengths.draw(longest, &mut rng)).collect()
    }

    fn mean(draws: &[u32]) -> f64 {
        draws.iter().map(|&tokens| f64::from(tokens)).sum::<f64>() / draws.len() as f64
    }

    #[test]
    fn each_distribution_has_its_mean() {
        let check = |spec: &str, expected: f64| {
            let found = mean(&draws(spec, 100_000));
            assert!((found / expected - 1.0).abs() < 0.03, "{spec}: {found}, not {expected}");
        };
        check("fixed:40", 40.0);
        check("uniform:10-50", 30.0);
        check("lognormal:80,0.5", 80.0);
        check("encode", 101.0);
        check("bimodal", 0.9 * 16.0 + 0.1 * 512.0);
    }

    #[test]
    fn lengths_stay_within_what_the_model_takes() {
        for spec in ["encode", "bimodal", "uniform:1-900", "fixed:512"] {
            let drawn = draws(spec, 256);
            assert!(drawn.iter().all(|tokens| (TOKENS_MIN..=256).contains(tokens)), "{spec}");
            assert!(drawn.contains(&256), "{spec}: clipped lengths stay in the load");
        }
        assert_eq!(draws("fixed:9", 1)[0], TOKENS_MIN);
    }

    #[test]
    fn a_log_normal_has_a_long_tail() {
        let mut drawn = draws("encode", 100_000);
        drawn.sort_unstable();
        let (median, p99) = (f64::from(drawn[10_000]), f64::from(drawn[19_800]));
        assert!((median / (101.0 * (-0.32f64).exp()) - 1.0).abs() < 0.05, "median {median}");
        assert!((p99 / median / (0.8f64 * 2.326).exp() - 1.0).abs() < 0.1, "p99 {p99}");
    }

    #[test]
    fn what_is_not_a_distribution_is_refused() {
        for text in [
            "",
            "zipf",
            "fixed",
            "fixed:0",
            "uniform:9",
            "uniform:9-3",
            "lognormal:-1",
            "encode:3",
            "bimodal:1",
            "bimodal:8,9,2",
        ] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
        for text in ["fixed:7", "uniform:1-9", "lognormal:50,0.5", "bimodal:8,512,0.03"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
    }
}
