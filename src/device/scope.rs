//! Whose memory it is.

use crate::units::ModelId;

/// What memory is for. Every block has one kind, and keeps it until it is freed or its scope ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Parameters, from load to unload.
    Weights,
    /// A generator's cache of keys and values.
    Kv,
    /// Activations: alive during one step.
    Workspace,
    /// What a step or a load left behind: a library's scratch, matrices packed at their first use.
    Library,
}

impl Kind {
    /// Every kind, in the order of tables.
    pub const ALL: [Kind; 4] = [Kind::Weights, Kind::Kv, Kind::Workspace, Kind::Library];

    /// The word for metrics, logs and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::Kv => "kv",
            Kind::Workspace => "workspace",
            Kind::Library => "library",
        }
    }
}

/// Who owns a block: a model, or nobody in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The model; `None` for what belongs to the device as a whole.
    pub model: Option<ModelId>,
    /// What it is for.
    pub kind: Kind,
}
