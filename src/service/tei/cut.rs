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

    /// The same of token ids. Special ones among them are the client's, as all are: none is kept or put there.
    pub(super) fn ids(self, mut ids: Vec<u32>, card: &ModelCard) -> Vec<u32> {
        let most = card.length_max as usize;
        match self.of(card) {
            Truncate::No => {}
            Truncate::End => ids.truncate(most),
            Truncate::Start => drop(ids.drain(..ids.len().saturating_sub(most))),
        }
        ids
    }
}
