//! The output tensors of a classifier of tokens: `[rows, tokens, ...]`, in which every row is as long as the longest, or as
//! the client has padded it.

use prost::bytes::{BufMut, Bytes, BytesMut};

use super::outputs::{Answered, Kind, Wanted, put_best};
use crate::model::ModelCard;
use crate::service::proto::inference::model_infer_response::InferOutputTensor;
use crate::service::results;

/// Rows that are to be written.
pub(super) struct OfTokens<'a> {
    pub(super) card: &'a ModelCard,
    pub(super) rows: &'a Answered,
    /// Tokens of each row with its padding.
    pub(super) columns: usize,
    /// The column of each row's first token; `None`: 0.
    pub(super) firsts: Option<&'a [usize]>,
}

/// What stands in `offsets` where no text is: for special tokens and padding.
const NOWHERE: i64 = -1;

impl OfTokens<'_> {
    pub(super) fn write(&self, wanted: Wanted) -> (InferOutputTensor, Bytes) {
        let rows = self.rows.vectors.len() as i64;
        let (shape, blob) = match wanted.kind {
            Kind::Tokens => (vec![rows, 1], self.counts()),
            Kind::Offsets => (vec![rows, self.columns as i64, 2], self.offsets()),
            Kind::Scores | Kind::Logits | Kind::Embedding => {
                let labels = self.card.labels.len();
                let values = wanted.classification.map_or(labels, |best| best.min(labels));
                (vec![rows, self.columns as i64, values as i64], self.values(wanted, values))
            }
        };
        (wanted.tensor(shape), blob)
    }

    fn counts(&self) -> Bytes {
        let mut blob = BytesMut::with_capacity(self.rows.tokens.len() * size_of::<i64>());
        self.rows.tokens.iter().for_each(|tokens| blob.put_i64_le(i64::from(*tokens)));
        blob.freeze()
    }

    /// The number of the row's token in each column, where there is one.
    fn tokens_of(&self, row: usize) -> impl Iterator<Item = Option<usize>> + use<> {
        let (first, tokens) = (self.firsts.map_or(0, |firsts| firsts[row]), self.rows.tokens[row] as usize);
        (0..self.columns).map(move |column| column.checked_sub(first).filter(|token| *token < tokens))
    }

    fn offsets(&self) -> Bytes {
        let mut blob = BytesMut::with_capacity(self.rows.tokens.len() * self.columns * 2 * size_of::<i64>());
        for row in 0..self.rows.tokens.len() {
            for token in self.tokens_of(row) {
                let place = token.and_then(|token| self.rows.places.get(row)?.get(token));
                let ends = match place.filter(|place| place.word.is_some()) {
                    Some(place) => [i64::from(place.start), i64::from(place.end)],
                    None => [NOWHERE; 2],
                };
                ends.into_iter().for_each(|end| blob.put_i64_le(end));
            }
        }
        blob.freeze()
    }

    /// So many values, or texts, for each column; those of padding are 0, or empty.
    fn values(&self, wanted: Wanted, values: usize) -> Bytes {
        let labels = self.card.labels.len();
        let mut blob = BytesMut::with_capacity(self.rows.vectors.len() * self.columns * values * size_of::<f32>());
        for (row, vectors) in self.rows.vectors.iter().enumerate() {
            for token in self.tokens_of(row) {
                let Some(token) = token else {
                    // Four bytes either way: 0.0, or the length of an empty text.
                    blob.put_bytes(0, values * size_of::<f32>());
                    continue;
                };
                let mut logits = vectors[token * labels..][..labels].to_vec();
                if wanted.kind == Kind::Scores {
                    results::softmax(&mut logits);
                }
                match wanted.classification {
                    None => logits.iter().for_each(|value| blob.put_f32_le(*value)),
                    Some(best) => put_best(&mut blob, self.card, &logits, best),
                }
            }
        }
        blob.freeze()
    }
}
