//! What the server and its models say about themselves.

use std::collections::HashMap;

use super::outputs::{Kind, published};
use super::parameters::PRIORITY_LEVELS;
use crate::config::{ModelConfig as Configuration, Task};
use crate::model::ModelCard;
use crate::scheduler::Priority;
use crate::service::limits::Limits;
use crate::service::proto::inference::model_config::SchedulingChoice;
use crate::service::proto::inference::model_metadata_response::TensorMetadata;
use crate::service::proto::inference::model_version_policy::{PolicyChoice, Specific};
use crate::service::proto::inference::{
    DataType, ModelConfig, ModelDynamicBatching, ModelInput, ModelMetadataResponse, ModelOutput, ModelParameter,
    ModelTransactionPolicy, ModelVersionPolicy, ServerMetadataResponse,
};

/// What runs the models, in the words of `platform` and `backend`.
const PLATFORM: &str = "plimsoll_candle";

/// Extensions of the protocol that are implemented: no more, as clients act on each.
const EXTENSIONS: [&str; 7] = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
];

/// The server's name, version and extensions.
pub(crate) fn server() -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: "plimsoll".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.map(str::to_owned).to_vec(),
    }
}

/// The inputs that are published: the texts. Token ids are accepted as well, but clients that make up data for every
/// published input could not fill both; the properties tell of them. A text is published as `[rows, 1]`, since load
/// generators cannot send an input that has no dimension besides the rows; `[rows]` is taken as well.
pub(super) fn inputs(card: &ModelCard) -> &'static [&'static str] {
    match card.task {
        Task::Embed | Task::Classify | Task::TokenClassify => &["TEXT"],
        Task::Rerank => &["TEXT", "TEXT_PAIR"],
    }
}

/// Inputs and outputs of a model. The first dimension of every shape is the rows.
pub(crate) fn model(card: &ModelCard) -> ModelMetadataResponse {
    let tensor = |name: &str, datatype: &str, shape: Vec<i64>| TensorMetadata {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape,
    };
    let outputs = published(card).iter();
    ModelMetadataResponse {
        name: card.name.clone(),
        versions: vec![card.version.to_string()],
        platform: PLATFORM.to_owned(),
        inputs: inputs(card).iter().map(|name| tensor(name, "BYTES", vec![-1, 1])).collect(),
        outputs: outputs
            .map(|(name, kind)| tensor(name, kind.datatype(), [&[-1], &*kind.dimensions(card)].concat()))
            .collect(),
    }
}

/// What else is known of a model: in its metadata over HTTP, among its configuration's parameters over gRPC.
pub(super) fn properties(card: &ModelCard) -> HashMap<String, String> {
    let mut properties = HashMap::from([
        ("task".to_owned(), card.task.to_string()),
        ("dtype".to_owned(), card.dtype.to_string()),
        ("architecture".to_owned(), card.architecture.clone()),
        ("length_max".to_owned(), card.length_max.to_string()),
        (
            "token_inputs".to_owned(),
            "instead of texts: input_ids, attention_mask (optional), token_type_ids (optional), \
             each INT64 or INT32 [-1, -1]"
                .to_owned(),
        ),
    ]);
    if !card.labels.is_empty() {
        properties.insert("labels".to_owned(), card.labels.join(","));
    }
    if !card.prompts.is_empty() {
        let names: Vec<&str> = card.prompts.keys().map(String::as_str).collect();
        properties.insert("prompts".to_owned(), names.join(","));
    }
    properties
}

/// The configuration of a model as the extension reports it. Dimensions leave the rows out.
pub(crate) fn config(card: &ModelCard, configuration: &Configuration, limits: &Limits) -> ModelConfig {
    let default_level = PRIORITY_LEVELS.iter().position(|level| *level == Priority::default()).unwrap_or_default() + 1;
    let input = |name: &&str| ModelInput {
        name: (*name).to_owned(),
        data_type: DataType::TypeString.into(),
        // One text a row. perf_analyzer cannot drive an input without a dimension beside the batch's.
        dims: vec![1],
        optional: false,
    };
    let output = |(name, kind): &(&str, Kind)| ModelOutput {
        name: (*name).to_owned(),
        data_type: if kind.datatype() == "FP32" { DataType::TypeFp32 } else { DataType::TypeInt64 }.into(),
        dims: kind.dimensions(card),
        label_filename: String::new(),
    };
    let parameters = properties(card).into_iter();
    ModelConfig {
        name: card.name.clone(),
        platform: PLATFORM.to_owned(),
        backend: PLATFORM.to_owned(),
        version_policy: Some(ModelVersionPolicy {
            policy_choice: Some(PolicyChoice::Specific(Specific { versions: vec![i64::from(card.version)] })),
        }),
        // Rows of a request. How many of them share a step is chosen anew for every step.
        max_batch_size: i32::try_from(limits.request_rows).unwrap_or(i32::MAX),
        input: inputs(card).iter().map(input).collect(),
        output: published(card).iter().map(output).collect(),
        scheduling_choice: Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching {
            preferred_batch_size: Vec::new(),
            max_queue_delay_microseconds: configuration.max_linger.get(),
            preserve_ordering: false,
            priority_levels: PRIORITY_LEVELS.len() as u64,
            default_priority_level: default_level as u64,
        })),
        parameters: parameters.map(|(name, value)| (name, ModelParameter { string_value: value })).collect(),
        // One answer follows every request.
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: false }),
    }
}
