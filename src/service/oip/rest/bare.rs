//! A text by itself, without JSON around it: the raw request of the extension for tensors as bytes.

use axum::http::HeaderMap;
use prost::bytes::Bytes;

use super::message::{Asked, Binary, JSON_LENGTH};
use crate::model::ModelCard;
use crate::service::errors::Problem;
use crate::service::oip::metadata;
use crate::service::proto::inference::model_infer_request::InferInputTensor;
use crate::service::proto::inference::{InferTensorContents, ModelInferRequest};

/// Whether a message has no JSON, which its header says and not its bytes.
pub(super) fn is_meant(headers: &HeaderMap) -> bool {
    headers.get(JSON_LENGTH).is_some_and(|length| length == "0")
}

/// One row for a model that takes single texts. The answer is bytes too.
pub(super) fn read(card: &ModelCard, version: String, sent: Bytes) -> Result<Asked, Problem> {
    let &[input] = metadata::inputs(card) else {
        let text = format!(
            "it is 0 and model '{}' takes {}: a JSON header is needed that says which bytes are whose",
            card.name,
            metadata::inputs(card).join(" and ")
        );
        return Err(Problem::invalid(format!("header '{JSON_LENGTH}'"), text));
    };
    let contents = InferTensorContents { bytes_contents: vec![sent], ..InferTensorContents::default() };
    let tensor = InferInputTensor {
        name: input.to_owned(),
        datatype: "BYTES".to_owned(),
        shape: vec![1],
        contents: Some(contents),
        ..InferInputTensor::default()
    };
    let request =
        ModelInferRequest { model_name: card.name.clone(), model_version: version, ..ModelInferRequest::default() };
    Ok(Asked { request, inputs: vec![(tensor, None)], binary: Binary::everything() })
}
