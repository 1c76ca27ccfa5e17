//! The places that a setting may come from, in their order of precedence.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::argument::ModelArgument;
use super::document::{self, Document, Section};
use super::error::{ConfigError, Place, Problem};
use super::settings::{SETTINGS, Setting};
use super::written::{self, Written};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag on the command line.
    Flag,
    /// An environment variable.
    Environment,
    /// A line of `server.toml`.
    File(Place),
    /// Nobody said anything else.
    Default,
}

impl Origin {
    /// The place that a problem with the setting `name` is reported at.
    pub(super) fn place(&self, name: &str) -> Place {
        match self {
            Origin::Environment => Place::Variable(variable(name)),
            Origin::File(place) => place.clone(),
            Origin::Flag | Origin::Default => Place::Flag(flag(name)),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.pad("flag"),
            Origin::Environment => f.pad("environment"),
            Origin::File(place) => f.pad(&place.to_string()),
            Origin::Default => f.pad("default"),
        }
    }
}

/// `--grpc-port` of `grpc_port`.
pub(crate) fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// `PLIMSOLL_GRPC_PORT` of `grpc_port`.
pub(crate) fn variable(name: &str) -> String {
    format!("PLIMSOLL_{}", name.to_ascii_uppercase())
}

/// The environment variables of a process, as a value.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Those of this process. Variables that are not Unicode are none of ours, and left out.
    pub fn of_process() -> Environment {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Environment(std::env::vars_os().filter_map(text).collect())
    }

    /// Those of `pairs`, name and value.
    pub fn from_pairs<'p>(pairs: impl IntoIterator<Item = (&'p str, &'p str)>) -> Environment {
        Environment(pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// The value of `name`, if it is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Notes the variables that were probably meant for a setting. Others with our prefix are let be: Kubernetes makes
    /// some from the name of a service, such as PLIMSOLL_SERVICE_HOST.
    pub(super) fn note_slips(&self, problems: &mut Vec<Problem>) {
        let known: Vec<_> =
            SETTINGS.iter().map(|setting| setting.name).chain(["model", "config"]).map(variable).collect();
        for name in self.0.keys().filter(|name| name.starts_with("PLIMSOLL_") && !known.contains(name)) {
            let meant = known.iter().find(|known| strsim::osa_distance(name, known) <= 2);
            if let Some(meant) = meant {
                let message = format!("there is no such setting: did you mean {meant}?");
                problems.push(Problem { place: Place::Variable(name.clone()), message });
            }
        }
    }

    /// The folder of the user's caches: XDG_CACHE_HOME, or else `.cache` of HOME.
    pub fn cache_home(&self) -> Option<PathBuf> {
        match (self.get("XDG_CACHE_HOME"), self.get("HOME")) {
            (Some(cache), _) => Some(cache.into()),
            (None, Some(home)) => Some(Path::new(home).join(".cache")),
            (None, None) => None,
        }
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(pairs: [(&str, &str); N]) -> Environment {
        Environment::from_pairs(pairs)
    }
}

/// The text of `server.toml`; empty when there is none.
pub(super) struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// Opens the file that `--config` or PLIMSOLL_CONFIG names, or else `server.toml` in the working directory.
    ///
    /// # Errors
    /// A file that is named must be there and readable.
    pub(super) fn open(named: Option<&Path>, environment: &Environment) -> Result<File, ConfigError> {
        let named = named.or(environment.get("PLIMSOLL_CONFIG").map(Path::new));
        let path = named.unwrap_or(Path::new("server.toml")).to_owned();
        match document::read_text(&path) {
            Ok(text) => Ok(File { path, text }),
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(File { path, text: String::new() })
            }
            Err(error) => Err(ConfigError::at(&path, format!("cannot be read: {error}"))),
        }
    }

    /// Reads the whole file with `read`.
    ///
    /// # Errors
    /// All problems of the file.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Document<'_>, Section<'_>) -> T) -> Result<T, ConfigError> {
        Document::read(&self.path, &self.text, |document, section| Some(read(document, section)))
    }
}

/// All places at once. Settings are asked for one after another in the order of the table.
pub(super) struct Sources<'s> {
    pub(super) environment: &'s Environment,
    pub(super) document: &'s Document<'s>,
    pub(super) section: Section<'s>,
    /// Problems of flags and environment; those of the file are the document's.
    pub(super) problems: &'s mut Vec<Problem>,
    /// One for each setting asked for.
    pub(super) origins: Vec<Origin>,
}

impl Sources<'_> {
    /// The value of `setting` from the first place that says something. A value that is not allowed is noted, and the
    /// default stands in for it so that the rest can be looked at too.
    pub(super) fn pick<T: Written>(&mut self, setting: &'static Setting, given: Option<T>) -> T {
        // The file is asked in any case: its keys are checked even where they are overruled.
        let in_file = self.section.get::<T>(setting.name);
        let name = variable(setting.name);
        let in_environment = self.environment.get(&name).and_then(|text| match written::read::<T>(text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.problems.push(Problem { place: Place::Variable(name), message });
                None
            }
        });
        let (value, origin) = if let Some(value) = given {
            (value, Origin::Flag)
        } else if let Some(value) = in_environment {
            (value, Origin::Environment)
        } else if let Some(found) = in_file {
            (found.value, Origin::File(self.document.place(&found.span)))
        } else {
            (T::read(setting.default).expect("a test reads every default"), Origin::Default)
        };
        self.origins.push(origin);
        value
    }

    /// The `model` arguments from the first place that names any.
    pub(super) fn models(&mut self, given: &[ModelArgument]) -> (Vec<ModelArgument>, Origin) {
        let mut in_file = Vec::new();
        let mut file_origin = Origin::Default;
        for found in self.section.list("model") {
            file_origin = Origin::File(self.document.place(&found.span));
            match found.value.parse() {
                Ok(argument) => in_file.push(argument),
                Err(message) => self.document.problem(found.span, message),
            }
        }
        let mut in_environment: Vec<ModelArgument> = Vec::new();
        let name = variable("model");
        for text in self.environment.get(&name).unwrap_or_default().split([',', ' ']).filter(|text| !text.is_empty()) {
            match text.parse() {
                Ok(argument) => in_environment.push(argument),
                Err(message) => self.problems.push(Problem { place: Place::Variable(name.clone()), message }),
            }
        }
        if !given.is_empty() {
            (given.to_vec(), Origin::Flag)
        } else if !in_environment.is_empty() {
            (in_environment, Origin::Environment)
        } else {
            (in_file, file_origin)
        }
    }
}
