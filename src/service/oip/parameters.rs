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
            let value = Value { of: "", name, choice: parameter.parameter_choice.as_ref() };
            match name.as_str() {
                "priority" => read.priority = value.priority()?,
                "timeout" => read.timeout = Some(value.count()?).filter(|us| *us > 0).map(Duration::from_micros),
                "truncate" => read.truncate = Some(value.truncate()?),
                "prompt_name" => read.prompt_name = value.text()?.to_owned(),
                "normalize" => read.normalize = Some(value.flag()?),
                "dimensions" => read.dimensions = value.count()?,
                sequence if sequence.starts_with("sequence_") => value.check_sequence()?,
                theirs if theirs.starts_with("triton_") => {}
                _ if value.is_theirs()? => {}
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
    /// The tensor that it belongs to, as errors name it, or nothing: the request.
    pub(crate) of: &'a str,
    pub(crate) name: &'a str,
    pub(crate) choice: Option<&'a ParameterChoice>,
}

/// What MLServer's clients say of how they see a tensor. Its elements are sent in the same way with each.
const CONTENT_TYPES: [&str; 3] = ["str", "np", "hf"];

impl Value<'_> {
    pub(crate) fn invalid(&self, text: impl Into<String>) -> Problem {
        let dot = if self.of.is_empty() { "" } else { "." };
        Problem::invalid(format!("{}{dot}parameters['{}']", self.of, self.name), text)
    }

    /// Whether it is about the client's own side, of the transport or of a library there, and means nothing here. It may
    /// be with a request or with a tensor.
    pub(crate) fn is_theirs(&self) -> Result<bool, Problem> {
        match (self.name, self.choice) {
            ("content_type", _) => match self.text()? {
                known if CONTENT_TYPES.contains(&known) => Ok(true),
                "base64" => Err(self.invalid("it is 'base64', which is not decoded here: send texts as they are")),
                other => {
                    Err(self.invalid(format!("it is '{other}'; there are: {}, or none", CONTENT_TYPES.join(", "))))
                }
            },
            ("headers", _) => Ok(true),
            (name, _) => Ok(name.starts_with("binary_data")),
        }
    }

    /// Refuses a sequence. Clients say with every request that it belongs to none.
    fn check_sequence(&self) -> Result<(), Problem> {
        match self.choice {
            Some(
                ParameterChoice::BoolParam(false) | ParameterChoice::Int64Param(0) | ParameterChoice::Uint64Param(0),
            ) => Ok(()),
            Some(ParameterChoice::StringParam(id)) if id.is_empty() => Ok(()),
            _ => Err(self.invalid("sequences are not supported: every request stands for itself")),
        }
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
        let Some(index) = level.checked_sub(1) else { return Ok(Priority::default()) };
        let found = usize::try_from(index).ok().and_then(|index| PRIORITY_LEVELS.get(index).copied());
        // Of a client whose other server has more levels.
        Ok(found.unwrap_or(Priority::Low))
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
        check(Uint64Param(4), Some(Priority::Low));
        check(Uint64Param(u64::MAX), Some(Priority::Low));
        check(Int64Param(-1), None);
        check(StringParam("1".to_owned()), None);
    }

    #[test]
    fn unknown_parameters_are_refused_and_transport_ones_ignored() {
        use ParameterChoice::{BoolParam, Int64Param, StringParam, Uint64Param};
        assert!(read("dimension", BoolParam(true)).is_err());
        for (name, choice) in [
            ("sequence_start", BoolParam(true)),
            ("sequence_id", Int64Param(7)),
            ("sequence_id", StringParam("a".to_owned())),
            ("content_type", StringParam("pd".to_owned())),
            ("content_type", BoolParam(true)),
        ] {
            assert!(read(name, choice.clone()).is_err(), "{name} {choice:?}");
        }
        for (name, choice) in [
            ("sequence_start", BoolParam(false)),
            ("sequence_end", BoolParam(false)),
            ("sequence_id", Int64Param(0)),
            ("sequence_id", Uint64Param(0)),
            ("sequence_id", StringParam(String::new())),
            ("content_type", StringParam("hf".to_owned())),
            ("headers", StringParam("anything".to_owned())),
        ] {
            assert_eq!(read(name, choice), Ok(Parameters::default()), "{name}");
        }
        assert_eq!(read("triton_enable_empty_final_response", BoolParam(true)), Ok(Parameters::default()));
    }
}
