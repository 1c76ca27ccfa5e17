//! The answer to an inference: JSON, and behind it the bytes of those outputs that are wanted so.

use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use prost::bytes::{Buf, Bytes};
use serde::Serialize;
use serde::ser::{Error, SerializeSeq, Serializer};

use super::message::{Binary, JSON_LENGTH};
use crate::service::http::{respond_bytes, written_json};
use crate::service::proto::inference::ModelInferResponse;

#[derive(Serialize)]
struct Answer<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    outputs: Vec<Output<'a>>,
}

#[derive(Serialize)]
struct Output<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: &'a [i64],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Elements<'a>>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

/// The elements of a blob as JSON has them, one list: FP32 and INT64 as numbers, BYTES as texts.
struct Elements<'a> {
    datatype: &'a str,
    blob: &'a Bytes,
}

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        match self.datatype {
            "BYTES" => {
                let mut left = self.blob.clone();
                // Our own writing: every length is there and fits.
                while left.remaining() >= size_of::<u32>() {
                    let length = left.get_u32_le() as usize;
                    list.serialize_element(&String::from_utf8_lossy(&left.split_to(length)))?;
                }
            }
            "INT64" => {
                for bytes in self.blob.as_chunks::<8>().0 {
                    list.serialize_element(&i64::from_le_bytes(*bytes))?;
                }
            }
            "FP32" => {
                for bytes in self.blob.as_chunks::<4>().0 {
                    list.serialize_element(&f32::from_le_bytes(*bytes))?;
                }
            }
            other => return Err(S::Error::custom(format!("no output of {other} can be written"))),
        }
        list.end()
    }
}

/// The response with its outputs as they are wanted.
pub(super) fn write(response: ModelInferResponse, binary: &Binary) -> Response {
    let blobs = &response.raw_output_contents;
    let outputs = response.outputs.iter().zip(blobs).map(|(output, blob)| {
        let as_bytes = binary.wants(&output.name);
        Output {
            name: &output.name,
            datatype: &output.datatype,
            shape: &output.shape,
            parameters: as_bytes.then_some(BinarySize { binary_data_size: blob.len() }),
            data: (!as_bytes).then_some(Elements { datatype: &output.datatype, blob }),
        }
    });
    let answer = Answer {
        model_name: &response.model_name,
        model_version: &response.model_version,
        id: &response.id,
        outputs: outputs.collect(),
    };
    let Some(mut body) = written_json(&answer) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let behind: Vec<&Bytes> = response
        .outputs
        .iter()
        .zip(blobs)
        .filter(|(output, _)| binary.wants(&output.name))
        .map(|(_, blob)| blob)
        .collect();
    if behind.is_empty() {
        return respond_bytes(StatusCode::OK, "application/json", body);
    }
    let length = HeaderValue::from(body.len());
    behind.into_iter().for_each(|blob| body.extend_from_slice(blob));
    let mut response = respond_bytes(StatusCode::OK, "application/octet-stream", body);
    response.headers_mut().insert(JSON_LENGTH, length);
    response
}
