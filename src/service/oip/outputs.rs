//! From a model's vectors to output tensors, always as raw blobs.

use prost::bytes::{BufMut, Bytes, BytesMut};

use super::parameters::{Parameters, Value};
use crate::config::Task;
use crate::model::ModelCard;
use crate::service::errors::Problem;
use crate::service::proto::inference::model_infer_request::InferRequestedOutputTensor;
use crate::service::proto::inference::model_infer_response::InferOutputTensor;
use crate::service::results::{self, Finish};
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
}

/// The outputs of a model by name, in the order in which they are answered; each is `[rows, card.dimensions]`.
pub(crate) fn published(card: &ModelCard) -> &'static [(&'static str, Kind)] {
    match card.task {
        Task::Embed => &[("embedding", Kind::Embedding)],
        Task::Classify | Task::Rerank => &[("scores", Kind::Scores), ("logits", Kind::Logits)],
    }
}

/// One output that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    name: &'static str,
    kind: Kind,
    /// The best so many as text, instead of all as numbers.
    classification: Option<usize>,
}

/// The outputs of a request, checked.
#[derive(Clone, Debug)]
pub(crate) struct Outputs {
    wanted: Vec<Wanted>,
    finish: Finish,
}

impl Outputs {
    /// Checks what is asked for; nothing means everything.
    pub(crate) fn read(
        card: &ModelCard,
        asked: &[InferRequestedOutputTensor],
        parameters: &Parameters,
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
            wanted.push(Wanted { name, kind: *kind, classification: classification(&field, output)? });
        }
        if asked.is_empty() {
            wanted.extend(published.iter().map(|(name, kind)| Wanted { name, kind: *kind, classification: None }));
        }
        if card.task != Task::Embed && (parameters.dimensions != 0 || parameters.normalize.is_some()) {
            return Err(Problem::invalid(
                "parameters",
                format!("dimensions and normalize do not apply to a {}", card.task),
            ));
        }
        let normalize = parameters.normalize.unwrap_or(card.normalize);
        let finish = Finish::new("parameters['dimensions']", parameters.dimensions, card.dimensions, normalize)?;
        Ok(Outputs { wanted, finish })
    }

    /// Bytes of the numbers in the answer for so many rows.
    pub(crate) fn bytes(&self, rows: usize) -> units::Bytes {
        let numbers = self.wanted.iter().filter(|wanted| wanted.classification.is_none()).count();
        units::Bytes::new(rows as u64) * (self.finish.dimensions as u64) * 4 * numbers as u64
    }

    /// Tensors and blobs of the answer.
    pub(crate) fn write(&self, card: &ModelCard, vectors: Vec<Vec<f32>>) -> (Vec<InferOutputTensor>, Vec<Bytes>) {
        self.wanted.iter().map(|wanted| self.write_one(card, *wanted, &vectors)).unzip()
    }

    fn write_one(&self, card: &ModelCard, wanted: Wanted, vectors: &[Vec<f32>]) -> (InferOutputTensor, Bytes) {
        let columns = wanted.classification.map_or(self.finish.dimensions, |best| best.min(self.finish.dimensions));
        let mut blob = BytesMut::with_capacity(vectors.len() * columns * size_of::<f32>());
        for vector in vectors {
            let mut values = vector.clone();
            match wanted.kind {
                Kind::Embedding => self.finish.apply(&mut values),
                Kind::Logits => {}
                Kind::Scores if card.task == Task::Classify => results::softmax(&mut values),
                Kind::Scores => values.iter_mut().for_each(|value| *value = results::sigmoid(*value)),
            }
            match wanted.classification {
                None => values.iter().for_each(|value| blob.put_f32_le(*value)),
                Some(best) => {
                    for (index, score) in results::top(&values, best) {
                        let text = match card.labels.get(index) {
                            Some(label) => format!("{score:.6}:{index}:{label}"),
                            None => format!("{score:.6}:{index}"),
                        };
                        blob.put_u32_le(text.len() as u32);
                        blob.put_slice(text.as_bytes());
                    }
                }
            }
        }
        let datatype = if wanted.classification.is_some() { "BYTES" } else { "FP32" };
        let tensor = InferOutputTensor {
            name: wanted.name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![vectors.len() as i64, columns as i64],
            ..InferOutputTensor::default()
        };
        (tensor, blob.freeze())
    }
}

fn classification(field: &str, output: &InferRequestedOutputTensor) -> Result<Option<usize>, Problem> {
    let mut best = None;
    for (name, parameter) in &output.parameters {
        match name.as_str() {
            "classification" => {
                let count = Value { name, choice: parameter.parameter_choice.as_ref() }.count()?;
                if count == 0 {
                    return Err(Problem::invalid(field, "classification is 0: ask for the best 1 or more"));
                }
                best = Some(usize::try_from(count).unwrap_or(usize::MAX));
            }
            "shared_memory_region" => {
                return Err(Problem::NotOffered("shared memory is not offered: take the output from the answer"));
            }
            theirs if theirs.starts_with("binary_data") => {}
            other => {
                let text = format!("its parameter '{other}' is not known; there is: classification");
                return Err(Problem::invalid(field, text));
            }
        }
    }
    Ok(best)
}
