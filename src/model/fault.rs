//! What can go wrong inside a step.

/// An unexpected failure of a model or a device. Its step's requests get it; the next step runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The model's code returned an error.
    #[error("the model failed: {message}")]
    Model {
        /// The error, for the log.
        message: String,
    },
    /// The model's code panicked.
    #[error("the model panicked: {message}")]
    Panicked {
        /// The panic's text, for the log.
        message: String,
    },
    /// A result holds NaN or an infinity.
    #[error("row {row} of the result is not finite")]
    NotFinite {
        /// Index of the first such row in the step.
        row: usize,
    },
    /// The device is lost; the process has to end.
    #[error("the device is lost: {message}")]
    DeviceLost {
        /// What the driver said.
        message: String,
    },
}

impl From<candle_core::Error> for Fault {
    fn from(error: candle_core::Error) -> Fault {
        Fault::Model { message: error.to_string() }
    }
}
