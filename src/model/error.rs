//! Why a model cannot be loaded.

/// One clear reason: the place, what was found there, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A file or tensor that is needed is not there.
    #[error("{place} is missing: {needed}")]
    Missing {
        /// The file, or the file and the tensor.
        place: String,
        /// What it is needed for, or what to do instead.
        needed: String,
    },
    /// Something is there and cannot be used.
    #[error("{place}: found {found}; allowed: {allowed}")]
    Invalid {
        /// The file and the key or tensor in it.
        place: String,
        /// What was found.
        found: String,
        /// What would be accepted.
        allowed: String,
    },
    /// The operating system could not read a file.
    #[error("{place} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        place: String,
        /// The system's words.
        reason: String,
    },
    /// A file's contents are not those that the configuration names.
    #[error("{place}: its sha256 is {found}, the configuration says {expected}")]
    Digest {
        /// The file.
        place: String,
        /// The digest of what is there.
        found: String,
        /// The digest in the configuration.
        expected: String,
    },
    /// The device refused: out of memory, or lost.
    #[error("the device could not take the weights: {reason}")]
    Device {
        /// What it said.
        reason: String,
    },
}

impl ModelError {
    pub(crate) fn invalid(place: impl Into<String>, found: impl ToString, allowed: impl ToString) -> ModelError {
        ModelError::Invalid { place: place.into(), found: found.to_string(), allowed: allowed.to_string() }
    }

    pub(crate) fn missing(place: impl Into<String>, needed: impl Into<String>) -> ModelError {
        ModelError::Missing { place: place.into(), needed: needed.into() }
    }

    pub(crate) fn unreadable(place: impl Into<String>, reason: impl ToString) -> ModelError {
        ModelError::Unreadable { place: place.into(), reason: reason.to_string() }
    }
}

impl From<candle_core::Error> for ModelError {
    fn from(error: candle_core::Error) -> ModelError {
        ModelError::Device { reason: error.to_string() }
    }
}
