//! Text to token ids, off the async threads.

mod error;
mod charsmap;
mod encoder;
mod place;
mod pool;
mod words;

pub use crate::config::Truncate;
pub use encoder::{FirstPart, Piece, TextEncoder, TextRow};
pub use error::{RowError, TokenizeError};
pub use place::Place;
pub use pool::TokenizerPool;
