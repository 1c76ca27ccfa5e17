//! An inference as it is sent: JSON, and behind it the bytes of tensors.

use std::collections::HashMap;

use axum::http::HeaderMap;
use prost::bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::absent::{Given, or_default};
use super::data::Data;
use crate::service::errors::Problem;
use crate::service::http::read_json;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::service::proto::inference::{InferParameter, ModelInferRequest};

/// How long the JSON is, where bytes follow it.
pub(super) const JSON_LENGTH: &str = "inference-header-content-length";

/// How long the bytes of a tensor are.
pub(super) const BINARY_SIZE: &str = "binary_data_size";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    #[serde(default, deserialize_with = "or_default")]
    id: String,
    /// Some clients name again what the path names.
    #[serde(default, deserialize_with = "or_default")]
    model_name: String,
    #[serde(default, deserialize_with = "or_default")]
    model_version: String,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
    inputs: Vec<Input>,
    #[serde(default, deserialize_with = "or_default")]
    outputs: Vec<Output>,
}

type Parameters = Given<Parameter>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Parameter {
    Flag(bool),
    Unsigned(u64),
    Signed(i64),
    Number(f64),
    Text(String),
    /// A list, or values by name. None of ours is one.
    Structure(IgnoredAny),
}

impl From<Parameter> for InferParameter {
    fn from(parameter: Parameter) -> InferParameter {
        let choice = match parameter {
            Parameter::Flag(flag) => Some(ParameterChoice::BoolParam(flag)),
            Parameter::Unsigned(count) => Some(ParameterChoice::Uint64Param(count)),
            Parameter::Signed(number) => Some(ParameterChoice::Int64Param(number)),
            Parameter::Number(number) => Some(ParameterChoice::DoubleParam(number)),
            Parameter::Text(text) => Some(ParameterChoice::StringParam(text)),
            // gRPC has none: a parameter without a value, whose name is looked at all the same.
            Parameter::Structure(IgnoredAny) => None,
        };
        InferParameter { parameter_choice: choice }
    }
}

impl Parameters {
    /// As gRPC has them.
    fn written(self) -> HashMap<String, InferParameter> {
        self.0.into_iter().map(|(name, parameter)| (name, parameter.into())).collect()
    }
}

/// Which outputs are wanted as bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Binary {
    /// Those that are not named.
    all: bool,
    by_name: HashMap<String, bool>,
}

impl Binary {
    /// All of them.
    pub(super) fn everything() -> Binary {
        Binary { all: true, by_name: HashMap::new() }
    }

    pub(super) fn wants(&self, output: &str) -> bool {
        self.by_name.get(output).copied().unwrap_or(self.all)
    }
}

/// An inference in the terms of the protocol's messages, each input with its bytes, if it has some.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: ModelInferRequest,
    pub(super) inputs: Vec<(InferInputTensor, Option<Bytes>)>,
    pub(super) binary: Binary,
}

/// Reads what was sent for this model.
pub(super) async fn read(model: String, version: String, headers: &HeaderMap, sent: Bytes) -> Result<Asked, Problem> {
    let (written, blobs) = cut(headers, sent)?;
    let message: Message = read_json(written).await?;
    let named_again = [
        ("model_name", message.model_name.as_str(), model.as_str()),
        ("model_version", message.model_version.as_str(), version.as_str()),
    ];
    for (field, again, by_path) in named_again {
        if !again.is_empty() && !by_path.is_empty() && again != by_path {
            return Err(Problem::invalid(field, format!("it is '{again}' and the path says '{by_path}'")));
        }
    }
    let version = if version.is_empty() { message.model_version } else { version };
    let (outputs, binary) = outputs(&message.parameters, message.outputs)?;
    let request = ModelInferRequest {
        model_name: model,
        model_version: version,
        id: message.id,
        parameters: message.parameters.written(),
        outputs,
        ..ModelInferRequest::default()
    };
    Ok(Asked { request, inputs: inputs(message.inputs, blobs)?, binary })
}

/// The JSON, and the bytes behind it.
fn cut(headers: &HeaderMap, mut sent: Bytes) -> Result<(Bytes, Bytes), Problem> {
    let Some(length) = headers.get(JSON_LENGTH) else { return Ok((sent, Bytes::new())) };
    let length = length.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    let Some(length) = length.filter(|length| *length <= sent.len()) else {
        let text = format!("it has to be the length of the JSON, at most the {} bytes that were sent", sent.len());
        return Err(Problem::invalid(format!("header '{JSON_LENGTH}'"), text));
    };
    let blobs = sent.split_off(length);
    Ok((sent, blobs))
}

fn outputs(parameters: &Parameters, asked: Vec<Output>) -> Result<(Vec<InferRequestedOutputTensor>, Binary), Problem> {
    let flag = |place: &str, parameter: Option<&Parameter>| match parameter {
        None => Ok(None),
        Some(Parameter::Flag(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Problem::invalid(place, "it has to be true or false")),
    };
    let all = flag("parameters['binary_data_output']", parameters.0.get("binary_data_output"))?.unwrap_or(false);
    let mut binary = Binary { all, by_name: HashMap::new() };
    let mut outputs = Vec::with_capacity(asked.len());
    for Output { name, parameters } in asked {
        let place = format!("outputs['{name}'].parameters['binary_data']");
        if let Some(wanted) = flag(&place, parameters.0.get("binary_data"))? {
            binary.by_name.insert(name.clone(), wanted);
        }
        outputs.push(InferRequestedOutputTensor { name, parameters: parameters.written() });
    }
    Ok((outputs, binary))
}

fn inputs(inputs: Vec<Input>, mut blobs: Bytes) -> Result<Vec<(InferInputTensor, Option<Bytes>)>, Problem> {
    let mut read = Vec::with_capacity(inputs.len());
    for Input { name, datatype, shape, mut parameters, data } in inputs {
        let field = format!("inputs['{name}']");
        let size = match parameters.0.remove(BINARY_SIZE) {
            None => None,
            Some(Parameter::Unsigned(size)) => Some(size),
            Some(_) => return Err(Problem::invalid(field, format!("{BINARY_SIZE} has to be a number of bytes"))),
        };
        let (contents, raw) = match (size, data) {
            (Some(_), Some(_)) => {
                return Err(Problem::invalid(field, format!("it has data and {BINARY_SIZE}: send one of them")));
            }
            (None, None) => {
                return Err(Problem::invalid(
                    field,
                    format!("it has no data: send them, or {BINARY_SIZE} with bytes behind the JSON"),
                ));
            }
            (None, Some(data)) => (Some(data.into_contents(&field, &datatype)?), None),
            (Some(size), None) => {
                let Some(size) = usize::try_from(size).ok().filter(|size| *size <= blobs.len()) else {
                    let text = format!("{BINARY_SIZE} is {size} and {} bytes are left behind the JSON", blobs.len());
                    return Err(Problem::invalid(field, text));
                };
                (None, Some(blobs.split_to(size)))
            }
        };
        let parameters = parameters.written();
        read.push((InferInputTensor { name, datatype, shape, parameters, contents }, raw));
    }
    if !blobs.is_empty() {
        let text = format!("{} bytes behind the JSON belong to no input: each has its {BINARY_SIZE}", blobs.len());
        return Err(Problem::invalid("inputs", text));
    }
    Ok(read)
}
