//! The answer to an inference: JSON, and behind it the bytes of those outputs that are wanted so.

use std::io;

use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use prost::bytes::{Buf, Bytes};
use serde::Serialize;
use serde::ser::{Error, SerializeSeq, Serializer};

use super::message::{Binary, JSON_LENGTH};
use crate::service::aside::{VALUES_IN_PASSING, aside};
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::http::{respond_bytes, write_json};
use crate::service::port::Inference;
use crate::service::proto::inference::ModelInferResponse;
use crate::units;

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

/// Bytes that are kept up to a limit, and only counted beyond it: numbers take several times as many in JSON as they have.
struct Counted {
    bytes: Vec<u8>,
    count: usize,
    limit: usize,
}

impl io::Write for Counted {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.count = self.count.saturating_add(piece.len());
        if self.count <= self.limit {
            self.bytes.extend_from_slice(piece);
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The response with its outputs as they are wanted.
///
/// # Errors
/// It is longer than a message may be.
pub(super) async fn write<E: Inference>(
    context: &Context<E>,
    response: ModelInferResponse,
    binary: Binary,
) -> Result<Response, Problem> {
    let values = response.raw_output_contents.iter().map(Bytes::len).sum::<usize>() / size_of::<f32>();
    let limit = context.limits.message_size();
    let write = move || write_within(&response, &binary, limit);
    let (written, json_length) = aside(values > VALUES_IN_PASSING, write).await??;
    context.check_answer(units::Bytes::new(written.count as u64))?;
    let Some(length) = json_length else {
        return Ok(respond_bytes(StatusCode::OK, "application/json", written.bytes));
    };
    let mut response = respond_bytes(StatusCode::OK, "application/octet-stream", written.bytes);
    response.headers_mut().insert(JSON_LENGTH, HeaderValue::from(length));
    Ok(response)
}

/// JSON and what follows it, and if something does how long the JSON is.
fn write_within(
    response: &ModelInferResponse,
    binary: &Binary,
    limit: usize,
) -> Result<(Counted, Option<usize>), Problem> {
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
    let mut written = Counted { bytes: Vec::new(), count: 0, limit };
    write_json(&mut written, &answer)?;
    let json = written.count;
    let mut behind = response.outputs.iter().zip(blobs).filter(|(output, _)| binary.wants(&output.name)).peekable();
    let json_length = behind.peek().map(|_| json);
    for (_, blob) in behind {
        io::Write::write_all(&mut written, blob).map_err(|_| Problem::Panicked)?;
    }
    Ok((written, json_length))
}
