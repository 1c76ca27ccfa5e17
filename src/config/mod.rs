//! server.toml and model.toml: typed, validated, every default in one place.

mod kinds;
mod model;

pub use kinds::{Dtype, LoadPolicy, Pooling, Task};
pub use model::{Amount, ModelConfig, Source};
