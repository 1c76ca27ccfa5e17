//! Text to token ids, off the async threads.

mod error;
mod encoder;
mod pool;

pub use encoder::{TextEncoder, TextRow, Truncate};
pub use error::{RowError, TokenizeError};
pub use pool::TokenizerPool;
