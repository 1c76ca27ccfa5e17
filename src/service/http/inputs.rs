//! Texts or token ids, one or several, in the forms in which clients send them.

use serde::Deserialize;

use crate::service::tei::ask::Inputs;

/// One text, several texts, one row of token ids, several rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a text, a list of texts, a list of token ids or a list of such lists is needed")]
pub(super) enum WrittenInputs {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdRows(Vec<Vec<u32>>),
}

impl From<WrittenInputs> for Inputs {
    fn from(written: WrittenInputs) -> Inputs {
        match written {
            WrittenInputs::Text(text) => Inputs::Texts(vec![text]),
            WrittenInputs::Texts(texts) => Inputs::Texts(texts),
            WrittenInputs::Ids(ids) => Inputs::Tokens(vec![ids]),
            WrittenInputs::IdRows(rows) => Inputs::Tokens(rows),
        }
    }
}
