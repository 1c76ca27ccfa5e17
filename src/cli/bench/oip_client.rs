//! Calls in the Open Inference Protocol, so that other servers can be measured by the same load.
//!
//! Models are told apart by their metadata: an input `TEXT_PAIR` makes a reranker, an output `embedding` an embedder,
//! `logits` or `scores` a classifier.

use anyhow::{Context, bail};
use tonic::Status;

use super::answer::Answer;
use super::client::{Call, MESSAGE_BYTES_MAX, ModelFacts, Reply, Rows, Urgency, request};
use super::connect::Connection;
use crate::config::{Dtype, Task};
use crate::service::proto::inference as wire;
use wire::grpc_inference_service_client::GrpcInferenceServiceClient as Service;
use wire::infer_parameter::ParameterChoice;
use wire::model_infer_request::InferInputTensor;

/// The protocol does not tell the longest row: rows are drawn for a position table of ordinary size.
const LENGTH_MAX: u32 = 512;

pub(super) async fn models(channel: Connection) -> anyhow::Result<Vec<ModelFacts>> {
    let mut service = Service::new(channel);
    let index = service.repository_index(wire::RepositoryIndexRequest::default()).await.context("RepositoryIndex")?;
    let mut models = Vec::new();
    for listed in index.into_inner().models {
        let ready = listed.state == "READY";
        if !ready {
            continue; // nothing is known of its tensors
        }
        let asked = wire::ModelMetadataRequest { name: listed.name.clone(), version: String::new() };
        let metadata = service.model_metadata(asked).await.context("ModelMetadata")?.into_inner();
        let asked = wire::ModelConfigRequest { name: listed.name.clone(), version: String::new() };
        // Not every server has it.
        let config = service.model_config(asked).await.ok().and_then(|answer| answer.into_inner().config);
        let (task, dtype) = (task_of(&metadata)?, dtype_of(config.as_ref()));
        models.push(ModelFacts { name: listed.name, task, dtype, length_max: LENGTH_MAX, ready, settled: true });
    }
    Ok(models)
}

fn task_of(metadata: &wire::ModelMetadataResponse) -> anyhow::Result<Task> {
    let outputs: Vec<&str> = metadata.outputs.iter().map(|tensor| tensor.name.as_str()).collect();
    if metadata.inputs.iter().any(|tensor| tensor.name == "TEXT_PAIR") {
        return Ok(Task::Rerank);
    }
    if outputs.contains(&"tokens") {
        return Ok(Task::TokenClassify);
    }
    match outputs.first() {
        Some(&"embedding") => Ok(Task::Embed),
        Some(&("logits" | "scores")) => Ok(Task::Classify),
        _ => bail!("model '{}' has the outputs {outputs:?}; known are embedding, logits, scores", metadata.name),
    }
}

/// Said by our servers among the parameters. Where it is not, the widest tolerance keeps a check from crying wolf.
fn dtype_of(config: Option<&wire::ModelConfig>) -> Dtype {
    let said = config.and_then(|config| config.parameters.get("dtype"));
    said.and_then(|dtype| dtype.string_value.parse().ok()).unwrap_or(Dtype::Int8)
}

pub(super) async fn ask(channel: Connection, model: &ModelFacts, call: &Call) -> Result<Reply, Status> {
    let mut service = Service::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let (inputs, raw_input_contents): (Vec<_>, Vec<_>) = tensors(model.task, call).into_iter().unzip();
    let mut parameters = std::collections::HashMap::new();
    if let Some(priority) = priority(call.urgency) {
        let choice = ParameterChoice::Int64Param(priority);
        parameters.insert("priority".to_owned(), wire::InferParameter { parameter_choice: Some(choice) });
    }
    let message = wire::ModelInferRequest {
        model_name: model.name.clone(),
        parameters,
        inputs,
        raw_input_contents,
        ..Default::default()
    };
    let response = service.model_infer(request(message, call)).await?.into_inner();
    let answer = Answer { rows: decode(&response, call.rows.len())? };
    Ok(Reply { answer, tokens: 0, steps: Vec::new() })
}

/// 1 is the most urgent; nothing is the server's default.
fn priority(urgency: Urgency) -> Option<i64> {
    match urgency {
        Urgency::High => Some(1),
        Urgency::Normal => None,
        Urgency::Low => Some(3),
    }
}

/// The inputs of a call, each with its raw contents.
fn tensors(task: Task, call: &Call) -> Vec<(InferInputTensor, prost::bytes::Bytes)> {
    let rows = call.rows.len();
    match &call.rows {
        Rows::Texts(texts) => {
            let mut blobs = vec![("TEXT", bytes_tensor(texts.iter().map(String::as_str)))];
            if task == Task::Rerank {
                // The query is the first of the pair in every row.
                let query = bytes_tensor(std::iter::repeat_n(call.query.as_str(), rows));
                blobs = vec![("TEXT", query), ("TEXT_PAIR", blobs.remove(0).1)];
            }
            blobs.into_iter().map(|(name, blob)| (tensor(name, "BYTES", vec![rows as i64]), blob)).collect()
        }
        Rows::Tokens(rows) => {
            let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
            let padded = |value: &dyn Fn(&[u32], usize) -> i64| {
                let cells = rows.iter().flat_map(|row| (0..longest).map(move |at| value(row, at).to_le_bytes()));
                cells.flatten().collect::<Vec<u8>>().into()
            };
            let ids = padded(&|row, at| row.get(at).copied().unwrap_or(0).into());
            let mask = padded(&|row, at| (at < row.len()).into());
            let shape = vec![rows.len() as i64, longest as i64];
            vec![(tensor("input_ids", "INT64", shape.clone()), ids), (tensor("attention_mask", "INT64", shape), mask)]
        }
    }
}

fn tensor(name: &str, datatype: &str, shape: Vec<i64>) -> InferInputTensor {
    InferInputTensor { name: name.to_owned(), datatype: datatype.to_owned(), shape, ..Default::default() }
}

/// Each text with its length before it, as the protocol packs BYTES.
fn bytes_tensor<'a>(texts: impl Iterator<Item = &'a str>) -> prost::bytes::Bytes {
    let mut packed = Vec::new();
    for text in texts {
        packed.extend((text.len() as u32).to_le_bytes());
        packed.extend(text.as_bytes());
    }
    packed.into()
}

/// The first output, FP32, as one vector for each row.
fn decode(response: &wire::ModelInferResponse, rows: usize) -> Result<Vec<Vec<f32>>, Status> {
    let broken = |what: &str| Status::internal(format!("the response has {what}"));
    let output = response.outputs.first().ok_or_else(|| broken("no output"))?;
    if output.datatype != "FP32" {
        return Err(broken(&format!("the datatype {}; this client reads FP32", output.datatype)));
    }
    let values: Vec<f32> = match (response.raw_output_contents.first(), &output.contents) {
        (Some(raw), _) => raw
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("a chunk has four bytes")))
            .collect(),
        (None, Some(contents)) => contents.fp32_contents.clone(),
        (None, None) => return Err(broken("an output without contents")),
    };
    if rows == 0 || values.is_empty() || !values.len().is_multiple_of(rows) {
        return Err(broken(&format!("{} values for {rows} rows", values.len())));
    }
    Ok(values.chunks_exact(values.len() / rows).map(<[f32]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(query: &str, rows: Rows) -> Call {
        let query = query.to_owned();
        Call { model: 0, query, rows, urgency: Urgency::High, deadline: None, cancel_after: None, reference: None }
    }

    #[test]
    fn texts_are_packed_with_their_lengths() {
        let texts = Rows::Texts(vec!["ab".to_owned(), "ü".to_owned()]);
        let made = tensors(Task::Embed, &call("", texts.clone()));
        assert_eq!((made.len(), made[0].0.name.as_str(), &made[0].0.shape), (1, "TEXT", &vec![2]));
        assert_eq!(made[0].1.as_ref(), b"\x02\0\0\0ab\x02\0\0\0\xc3\xbc");
        let made = tensors(Task::Rerank, &call("q", texts));
        assert_eq!(made[0].1.as_ref(), b"\x01\0\0\0q\x01\0\0\0q");
        assert_eq!((made[1].0.name.as_str(), made[1].1.len()), ("TEXT_PAIR", 12));
    }

    #[test]
    fn token_rows_are_padded_and_masked() {
        let made = tensors(Task::Embed, &call("", Rows::Tokens(vec![vec![7], vec![8, 9]])));
        let numbers = |blob: &[u8]| blob.iter().step_by(8).copied().collect::<Vec<u8>>();
        assert_eq!((numbers(&made[0].1), numbers(&made[1].1)), (vec![7, 0, 8, 9], vec![1, 0, 1, 1]));
        assert_eq!(made[1].0.shape, [2, 2]);
    }

    #[test]
    fn raw_answers_become_rows() {
        let response = |values: usize, datatype: &str| wire::ModelInferResponse {
            outputs: vec![wire::model_infer_response::InferOutputTensor {
                datatype: datatype.to_owned(),
                ..Default::default()
            }],
            raw_output_contents: vec![
                (0..values).flat_map(|value| (value as f32).to_le_bytes()).collect::<Vec<_>>().into(),
            ],
            ..Default::default()
        };
        assert_eq!(decode(&response(4, "FP32"), 2).unwrap(), [[0.0, 1.0], [2.0, 3.0]]);
        assert!(decode(&response(3, "FP32"), 2).is_err());
        assert!(decode(&response(4, "FP16"), 2).is_err());
        assert!(decode(&wire::ModelInferResponse::default(), 1).is_err());
    }
}
