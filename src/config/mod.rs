//! `server.toml` and `model.toml`: typed, validated, every default in one place.
//!
//! [`ServerConfig::load`] gathers flags, environment and file; [`Repository::load`] finds the models that are to be
//! served; [`source::resolve`] finds their files on this machine.

mod written;
mod kinds;
mod choices;
mod optional;
mod otlp;
mod origins;
mod device_memory;
mod error;
mod document;
mod settings;
mod server;
mod sources;
mod model;
mod argument;
mod model_file;
mod repository;
pub mod source;
pub mod files;
pub mod digest;

pub use argument::{ModelArgument, check_name};
pub use choices::{
    Allocator, Batching, DeviceKind, FailAllocations, LogFilter, LogFormat, Models, OutOfMemory, Readings, Threads,
};
pub use device_memory::{MemoryBudget, MemorySafety};
pub use error::{ConfigError, Place, Problem};
pub use kinds::{Dtype, LoadPolicy, Pooling, Task, Truncate};
pub use model::{Amount, ModelConfig, Source};
pub use optional::{OptionalAddress, OptionalFile};
pub use origins::Origins;
pub use otlp::{OptionalEndpoint, Ratio};
pub use repository::{EMBEDDED, Entry, MODEL_FILE, Repository};
pub use server::{Effective, EffectiveSetting, ServeOptions};
pub use settings::{SETTINGS, ServerConfig, Setting, SettingFlags};
pub use sources::{Environment, Origin};
