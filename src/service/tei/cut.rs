//! Whether a text that is too long is cut, and where.

use crate::model::ModelCard;
use crate::tokenize::Truncate;

/// What a client says of a text that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Whether it may be cut; `None`: nothing is said.
    pub(crate) truncate: Option<bool>,
    /// Whether its beginning goes.
    pub(crate) left: bool,
}

impl Cut {
    /// What becomes of it. Where nothing is said the model's configuration does.
    pub(super) fn of(self, card: &ModelCard) -> Truncate {
        match (self.truncate, card.truncate) {
            (Some(false), _) | (None, Truncate::No) => Truncate::No,
            (None, kept) if !self.left => kept,
            _ if self.left => Truncate::Start,
            _ => Truncate::End,
        }
    }
}
