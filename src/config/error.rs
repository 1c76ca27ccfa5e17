//! What is wrong with a configuration: every problem at once, each with its place.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a problem was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a character of a file.
    File {
        /// The file as it was opened.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
    },
    /// A file or folder as a whole.
    Path(PathBuf),
    /// A command line argument, such as `--model`.
    Flag(String),
    /// An environment variable.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Place::Path(path) => write!(f, "{}", path.display()),
            Place::Flag(flag) => f.write_str(flag),
            Place::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// One thing that is wrong: where, what was found, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// A sentence without a full stop.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Everything that is wrong with one file or one command line. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    /// One problem.
    pub fn new(place: Place, message: impl Into<String>) -> ConfigError {
        ConfigError { problems: vec![Problem { place, message: message.into() }] }
    }

    /// One problem of a file or folder as a whole.
    pub fn at(path: &Path, message: impl Into<String>) -> ConfigError {
        ConfigError::new(Place::Path(path.to_owned()), message)
    }

    /// `value` if there are no problems.
    pub(super) fn unless_empty<T>(problems: Vec<Problem>, value: T) -> Result<T, ConfigError> {
        if problems.is_empty() { Ok(value) } else { Err(ConfigError { problems }) }
    }

    /// These problems, then `more`.
    pub(super) fn and(mut self, more: Vec<Problem>) -> ConfigError {
        self.problems.extend(more);
        self
    }

    /// The problems in the order of the text.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// The one of `known` that `word` was probably meant to be.
pub(crate) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(word, name), name))
        .filter(|(similarity, _)| *similarity >= 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

/// `: did you mean 'x'?`, or else `: allowed are a, b, c`.
pub(crate) fn suggestion<'k>(word: &str, known: impl IntoIterator<Item = &'k str> + Clone) -> String {
    match nearest(word, known.clone()) {
        Some(name) => format!(": did you mean '{name}'?"),
        None => format!(": allowed are {}", known.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let known = ["dtype", "length_max", "load", "required"];
        let check = |word: &str, expected: Option<&str>| assert_eq!(nearest(word, known), expected, "{word}");
        check("dtpye", Some("dtype"));
        check("max_length", None);
        check("length", Some("length_max"));
        check("requierd", Some("required"));
        check("colour", None);
    }
}
