//! `--fail-on failed>0`: what makes a run a failure for a script.

use std::fmt;
use std::str::FromStr;

use super::report::Report;

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Failed,
    FailedRatio,
    Wrong,
    Late,
    P99Ms,
    OverIdleMib,
    Goodput,
    TrueToPredicted,
}

const METRICS: [(&str, Metric); 8] = [
    ("failed", Metric::Failed),
    ("failed_ratio", Metric::FailedRatio),
    ("wrong", Metric::Wrong),
    ("late", Metric::Late),
    ("p99_ms", Metric::P99Ms),
    ("over_idle_mib", Metric::OverIdleMib),
    ("goodput_rows_per_s", Metric::Goodput),
    ("true_to_predicted", Metric::TrueToPredicted),
];

/// A condition on the report: a metric of the whole run, `>` or `<`, and a number.
#[derive(Clone, Debug, PartialEq)]
pub struct FailOn {
    metric: Metric,
    above: bool,
    bound: f64,
}

impl FailOn {
    /// Why the run fails by this condition, if it does. A metric that was not measured (`over_idle_mib` without
    /// --smaps-pid) fails too: a check that silently did not happen is worse than one that failed.
    pub fn broken_by(&self, report: &Report) -> Option<String> {
        let total = &report.total;
        let found = match self.metric {
            Metric::Failed => Some(total.failed as f64),
            Metric::FailedRatio => Some(total.failed_ratio),
            Metric::Wrong => Some(total.wrong as f64),
            Metric::Late => Some(total.late as f64),
            Metric::P99Ms => Some(total.latency_ms.p99),
            Metric::Goodput => Some(total.good.rows),
            Metric::OverIdleMib => report.memory.as_ref().map(|memory| memory.over_idle.pss_bytes as f64 / (1 << 20) as f64),
            Metric::TrueToPredicted => total.steps.as_ref().map(|steps| steps.true_to_predicted_max),
        };
        match found {
            None => Some(format!("{self}: not measured in this run")),
            Some(found) if (self.above && found > self.bound) || (!self.above && found < self.bound) => {
                Some(format!("{self}: found {found}"))
            }
            Some(_) => None,
        }
    }
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<FailOn, String> {
        let error = || {
            let names: Vec<_> = METRICS.iter().map(|(name, _)| *name).collect();
            format!("'{text}' is not METRIC>NUMBER or METRIC<NUMBER with a metric out of {}", names.join(", "))
        };
        let at = text.find(['>', '<']).ok_or_else(error)?;
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let metric = METRICS.iter().find(|(known, _)| *known == name).ok_or_else(error)?.1;
        let bound = rest[1..].trim().parse().map_err(|_| error())?;
        Ok(FailOn { metric, above: rest.starts_with('>'), bound })
    }
}

impl fmt::Display for FailOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = METRICS.iter().find(|(_, metric)| *metric == self.metric).expect("every metric has a name").0;
        write!(f, "{name}{}{}", if self.above { '>' } else { '<' }, self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::report::tests::report;

    #[test]
    fn conditions_are_read_and_written_alike() {
        for text in ["failed>0", "failed_ratio>0.01", "goodput_rows_per_s<100", "p99_ms>12.5"] {
            assert_eq!(text.parse::<FailOn>().unwrap().to_string(), text);
        }
        for text in ["failed", "failed>", "failed>x", "speed>1", "", ">3"] {
            assert!(text.parse::<FailOn>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_condition_is_broken_only_beyond_its_bound() {
        let report = report(); // 3 failed of 100; memory not sampled
        let broken = |text: &str| text.parse::<FailOn>().unwrap().broken_by(&report);
        assert_eq!(broken("failed>2").as_deref(), Some("failed>2: found 3"));
        assert_eq!(broken("failed>3"), None);
        assert_eq!(broken("failed<3"), None);
        assert!(broken("failed_ratio>0.02").is_some());
        assert_eq!(broken("over_idle_mib>1000000").as_deref(), Some("over_idle_mib>1000000: not measured in this run"));
    }
}
