//! The parameters of an inference request.

use std::collections::HashMap;
use std::time::Duration;

use crate::scheduler::Priority;
use crate::service::errors::Problem;
use crate::service::proto::inference::InferParameter;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::tokenize::Truncate;

/// Levels of `priority`, the most urgent first, as ModelConfig publishes them; 0 means the default.
pub(crate) const PRIORITY_LEVELS: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// The parameters that this server knows, read and checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) priority: Priority,
    /// From the arrival of the request.
    pub(crate) timeout: Option<Duration>,
    pub(crate) truncate: Option<Truncate>,
    pub(crate) prompt_name: String,
    pub(crate) normalize: Option<bool>,
    pub(crate) dimensions: u64,
}

impl Parameters {
    pub(crate) fn read(given: &HashMap<String, InferParameter>) -> Result<Parameters, Problem> {
        let mut read = Parameters::default();
        for (name, parameter) in given {
            let value = Value { name, choice: parameter.parameter_choice.as_ref() };
            match name.as_str() {
                "priority" => read.priority = value.priority()?,
                "timeout" => read.timeout = Some(value.count()?).filter(|us| *us > 0).map(Duration::from_micros),
                "truncate" => read.truncate = Some(value.truncate()?),
                "prompt_name" => read.prompt_name = value.text()?.to_owned(),
                "normalize" => read.normalize = Some(value.flag()?),
                "dimensions" => read.dimensions = value.count()?,
                sequence if sequence.starts_with("sequence_") => {
                    return Err(value.invalid("sequences are not supported: every request stands for itself"));
                }
                // What clients add about their own side of the transport means nothing here.
                theirs if theirs.starts_with("triton_") || theirs.starts_with("binary_data") => {}
                _ => {
                    return Err(value.invalid(
                        "it is not known; there are: priority, timeout, truncate, prompt_name, normalize, dimensions",
                    ));
                }
            }
        }
        Ok(read)
    }
}

/// One parameter with its name.
pub(crate) struct Value<'a> {
    pub(crate) name: &'a str,
    pub(crate) choice: Option<&'a ParameterChoice>,
}

impl Value<'_> {
    fn invalid(&self, text: impl Into<String>) -> Problem {
        Problem::invalid(format!("parameters['{}']", self.name), text)
    }

    /// A number that is not negative.
    pub(crate) fn count(&self) -> Result<u64, Problem> {
        match self.choice {
            Some(ParameterChoice::Uint64Param(count)) => Ok(*count),
            Some(ParameterChoice::Int64Param(count)) => {
                u64::try_from(*count).map_err(|_| self.invalid(format!("it is {count} and may not be negative")))
            }
            _ => Err(self.invalid("it has to be an int64 or uint64")),
        }
    }

    fn flag(&self) -> Result<bool, Problem> {
        match self.choice {
            Some(ParameterChoice::BoolParam(flag)) => Ok(*flag),
            _ => Err(self.invalid("it has to be a bool")),
        }
    }

    fn text(&self) -> Result<&str, Problem> {
        match self.choice {
            Some(ParameterChoice::StringParam(text)) => Ok(text),
            _ => Err(self.invalid("it has to be a string")),
        }
    }

    fn priority(&self) -> Result<Priority, Problem> {
        let level = self.count()?;
        let found = match level {
            0 => Some(Priority::default()),
            level => usize::try_from(level - 1).ok().and_then(|index| PRIORITY_LEVELS.get(index).copied()),
        };
        found.ok_or_else(|| {
            let last = PRIORITY_LEVELS.len();
            self.invalid(format!("it is {level}; levels are 1 (the most urgent) to {last}, and 0 for the default"))
        })
    }

    fn truncate(&self) -> Result<Truncate, Problem> {
        match self.text()? {
            "none" => Ok(Truncate::No),
            "end" => Ok(Truncate::End),
            "start" => Ok(Truncate::Start),
            other => Err(self.invalid(format!("it is '{other}'; there are: none, end, start"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, choice: ParameterChoice) -> Result<Parameters, Problem> {
        Parameters::read(&HashMap::from([(name.to_owned(), InferParameter { parameter_choice: Some(choice) })]))
    }

    #[test]
    fn priority_counts_from_the_most_urgent() {
        use ParameterChoice::{Int64Param, StringParam, Uint64Param};
        let check = |choice, expected| assert_eq!(read("priority", choice).map(|read| read.priority).ok(), expected);
        check(Int64Param(0), Some(Priority::Normal));
        check(Int64Param(1), Some(Priority::High));
        check(Uint64Param(2), Some(Priority::Normal));
        check(Uint64Param(3), Some(Priority::Low));
        check(Uint64Param(4), None);
        check(Int64Param(-1), None);
        check(StringParam("1".to_owned()), None);
    }

    #[test]
    fn unknown_parameters_are_refused_and_transport_ones_ignored() {
        use ParameterChoice::BoolParam;
        assert!(read("dimension", BoolParam(true)).is_err());
        assert!(read("sequence_start", BoolParam(true)).is_err());
        assert_eq!(read("triton_enable_empty_final_response", BoolParam(true)), Ok(Parameters::default()));
    }
}
