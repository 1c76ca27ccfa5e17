//! From a model's vectors to output tensors, always as raw blobs.

use prost::bytes::{BufMut, Bytes, BytesMut};

use super::inputs::Padded;
use super::of_tokens::OfTokens;
use super::parameters::{Parameters, Value};
use crate::config::Task;
use crate::model::ModelCard;
use crate::service::errors::Problem;
use crate::service::proto::inference::model_infer_request::InferRequestedOutputTensor;
use crate::service::proto::inference::model_infer_response::InferOutputTensor;
use crate::service::results::{self, Finish};
use crate::tokenize::Place;
use crate::units;

/// What an output tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An embedding, finished as the request says.
    Embedding,
    /// Probabilities: the softmax over labels, or the logistic function of a reranker's logit.
    Scores,
    /// The model's last values as they are.
    Logits,
    /// Where each token is in its text.
    Offsets,
    /// How many tokens a row has.
    Tokens,
}

impl Kind {
    /// Its datatype, as numbers.
    pub(crate) const fn datatype(self) -> &'static str {
        match self {
            Kind::Embedding | Kind::Scores | Kind::Logits => "FP32",
            Kind::Offsets | Kind::Tokens => "INT64",
        }
    }

    /// Its dimensions behind the rows; -1: as the request's rows are long.
    pub(crate) fn dimensions(self, card: &ModelCard) -> Vec<i64> {
        let values = i64::from(card.dimensions);
        match (self, card.task) {
            (Kind::Offsets, _) => vec![-1, 2],
            (Kind::Tokens, _) => vec![1],
            (_, Task::TokenClassify) => vec![-1, values],
            (_, Task::Embed | Task::Classify | Task::Rerank) => vec![values],
        }
    }
}

/// The outputs of a model by name, in the order in which they are answered.
pub(crate) fn published(card: &ModelCard) -> &'static [(&'static str, Kind)] {
    match card.task {
        Task::Embed => &[("embedding", Kind::Embedding)],
        Task::Classify | Task::Rerank => &[("scores", Kind::Scores), ("logits", Kind::Logits)],
        Task::TokenClassify => {
            &[("scores", Kind::Scores), ("logits", Kind::Logits), ("offsets", Kind::Offsets), ("tokens", Kind::Tokens)]
        }
    }
}

/// One output that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The best so many as text, instead of all as numbers.
    pub(super) classification: Option<usize>,
}

impl Wanted {
    /// Its tensor, without what is in it.
    pub(super) fn tensor(self, shape: Vec<i64>) -> InferOutputTensor {
        let datatype = if self.classification.is_some() { "BYTES" } else { self.kind.datatype() };
        InferOutputTensor {
            name: self.name.to_owned(),
            datatype: datatype.to_owned(),
            shape,
            ..InferOutputTensor::default()
        }
    }
}

/// The outputs of a request, checked.
#[derive(Clone, Debug)]
pub(crate) struct Outputs {
    wanted: Vec<Wanted>,
    finish: Finish,
    padded: Option<Padded>,
}

impl Outputs {
    /// Checks what is asked for of rows of text, or of token ids; nothing means everything that there is.
    pub(crate) fn read(
        card: &ModelCard,
        asked: &[InferRequestedOutputTensor],
        parameters: &Parameters,
        padded: Option<Padded>,
    ) -> Result<Outputs, Problem> {
        let published = published(card);
        let mut wanted: Vec<Wanted> = Vec::with_capacity(published.len());
        for output in asked {
            let field = format!("outputs['{}']", output.name);
            let Some((name, kind)) = published.iter().find(|(name, _)| *name == output.name) else {
                let known: Vec<_> = published.iter().map(|(name, _)| *name).collect();
                return Err(Problem::invalid(
                    field,
                    format!("there is no such output; there are: {}", known.join(", ")),
                ));
            };
            if wanted.iter().any(|other| other.name == *name) {
                return Err(Problem::invalid(field, "it is asked for twice"));
            }
            if *kind == Kind::Offsets && padded.is_some() {
                return Err(Problem::invalid(field, "token ids are nowhere in a text: send texts, or leave it out"));
            }
            let classification = classification(&field, output)?;
            if classification.is_some() && !matches!(kind, Kind::Embedding | Kind::Scores | Kind::Logits) {
                return Err(Problem::invalid(field, "it has no classes: leave classification out"));
            }
            wanted.push(Wanted { name, kind: *kind, classification });
        }
        if asked.is_empty() {
            let there = published.iter().filter(|(_, kind)| *kind != Kind::Offsets || padded.is_none());
            wanted.extend(there.map(|(name, kind)| Wanted { name, kind: *kind, classification: None }));
        }
        if card.task != Task::Embed && (parameters.dimensions != 0 || parameters.normalize.is_some()) {
            return Err(Problem::invalid(
                "parameters",
                format!("dimensions and normalize do not apply to a {}", card.task),
            ));
        }
        let normalize = parameters.normalize.unwrap_or(card.normalize);
        let finish = Finish::new("parameters['dimensions']", parameters.dimensions, card.dimensions, normalize)?;
        Ok(Outputs { wanted, finish, padded })
    }

    /// Bytes that the answer for rows of so many tokens has at least: numbers are counted to the byte, a class as the
    /// shortest text that it can be.
    pub(crate) fn bytes(&self, card: &ModelCard, tokens: &[u32]) -> units::Bytes {
        let rows = tokens.len() as u64;
        let vectors = rows * self.columns(card, tokens) as u64;
        let filled = match card.task {
            Task::TokenClassify => tokens.iter().copied().map(u64::from).sum(),
            Task::Embed | Task::Classify | Task::Rerank => rows,
        };
        let of_one = |wanted: &Wanted| match (wanted.kind, wanted.classification) {
            (Kind::Tokens, _) => rows * 8,
            (Kind::Offsets, _) => vectors * 2 * 8,
            (Kind::Embedding | Kind::Scores | Kind::Logits, None) => vectors * self.finish.dimensions as u64 * 4,
            (Kind::Embedding | Kind::Scores | Kind::Logits, Some(best)) => {
                let padding = vectors.saturating_sub(filled);
                (filled * shortest_class(card) + padding * 4) * best.min(self.finish.dimensions) as u64
            }
        };
        units::Bytes::new(self.wanted.iter().map(of_one).sum())
    }

    /// Vectors of each row in the answer: 1, or where they are tokens' as many as the longest row has.
    pub(crate) fn columns(&self, card: &ModelCard, tokens: &[u32]) -> usize {
        match (card.task, &self.padded) {
            (Task::Embed | Task::Classify | Task::Rerank, _) => 1,
            (Task::TokenClassify, Some(padded)) => padded.columns,
            (Task::TokenClassify, None) => tokens.iter().max().map_or(0, |longest| *longest as usize),
        }
    }

    /// Tensors and blobs of the answer.
    pub(crate) fn write(&self, card: &ModelCard, rows: Answered) -> (Vec<InferOutputTensor>, Vec<Bytes>) {
        if card.task == Task::TokenClassify {
            let firsts = self.padded.as_ref().map(|padded| padded.firsts.as_slice());
            let columns = self.columns(card, &rows.tokens);
            let of_tokens = OfTokens { card, rows: &rows, columns, firsts };
            return self.wanted.iter().map(|wanted| of_tokens.write(*wanted)).unzip();
        }
        self.wanted.iter().map(|wanted| self.write_one(card, *wanted, &rows.vectors)).unzip()
    }

    fn write_one(&self, card: &ModelCard, wanted: Wanted, vectors: &[Vec<f32>]) -> (InferOutputTensor, Bytes) {
        let columns = wanted.classification.map_or(self.finish.dimensions, |best| best.min(self.finish.dimensions));
        let mut blob = BytesMut::with_capacity(vectors.len() * columns * size_of::<f32>());
        for vector in vectors {
            let mut values = vector.clone();
            match wanted.kind {
                Kind::Embedding => self.finish.apply(&mut values),
                Kind::Logits | Kind::Offsets | Kind::Tokens => {}
                Kind::Scores if card.task == Task::Classify => results::softmax(&mut values),
                Kind::Scores => values.iter_mut().for_each(|value| *value = results::sigmoid(*value)),
            }
            match wanted.classification {
                None => values.iter().for_each(|value| blob.put_f32_le(*value)),
                Some(best) => put_best(&mut blob, card, &values, best),
            }
        }
        (wanted.tensor(vec![vectors.len() as i64, columns as i64]), blob.freeze())
    }
}

/// What was computed of a request's rows.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) places: Vec<Vec<Place>>,
}

/// Bytes of the shortest text that a class can be, with the length before it.
fn shortest_class(card: &ModelCard) -> u64 {
    let label = card.labels.iter().map(|label| 1 + label.len()).min().unwrap_or(0);
    (size_of::<u32>() + "0.000000:0".len() + label) as u64
}

/// The best so many values as text, in the form that the classification extension has for them.
pub(super) fn put_best(blob: &mut BytesMut, card: &ModelCard, values: &[f32], best: usize) {
    for (index, score) in results::top(values, best) {
        let text = match card.labels.get(index) {
            Some(label) => format!("{score:.6}:{index}:{label}"),
            None => format!("{score:.6}:{index}"),
        };
        blob.put_u32_le(text.len() as u32);
        blob.put_slice(text.as_bytes());
    }
}

fn classification(field: &str, output: &InferRequestedOutputTensor) -> Result<Option<usize>, Problem> {
    let mut best = None;
    for (name, parameter) in &output.parameters {
        let value = Value { of: field, name, choice: parameter.parameter_choice.as_ref() };
        match name.as_str() {
            "classification" => {
                let count = value.count()?;
                if count == 0 {
                    return Err(Problem::invalid(field, "classification is 0: ask for the best 1 or more"));
                }
                best = Some(usize::try_from(count).unwrap_or(usize::MAX));
            }
            shared if shared.starts_with("shared_memory_") => {
                return Err(Problem::NotOffered("shared memory is not offered: take the output from the answer"));
            }
            _ if value.is_theirs()? => {}
            _ => return Err(value.invalid("it is not known; there are: classification, content_type")),
        }
    }
    Ok(best)
}
