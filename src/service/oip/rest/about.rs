//! What the server and its models say about themselves, as JSON has it.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::service::proto::inference::log_settings_response::setting_value::ParameterChoice;
use crate::service::proto::inference::model_config::SchedulingChoice;
use crate::service::proto::inference::model_metadata_response::TensorMetadata;
use crate::service::proto::inference::model_version_policy::PolicyChoice;
use crate::service::proto::inference::repository_index_response::ModelIndex;
use crate::service::proto::inference::{
    DataType, LogSettingsResponse, ModelConfig, ModelMetadataResponse, ModelStatistics, ServerMetadataResponse,
    StatisticDuration, TraceSettingResponse,
};

pub(super) fn server(about: ServerMetadataResponse) -> Value {
    json!({ "name": about.name, "version": about.version, "extensions": about.extensions })
}

pub(super) fn model(about: ModelMetadataResponse, properties: HashMap<String, String>) -> Value {
    let tensors = |tensors: Vec<TensorMetadata>| -> Vec<Value> {
        let tensor = |one: TensorMetadata| json!({ "name": one.name, "datatype": one.datatype, "shape": one.shape });
        tensors.into_iter().map(tensor).collect()
    };
    json!({
        "name": about.name,
        "versions": about.versions,
        "platform": about.platform,
        "inputs": tensors(about.inputs),
        "outputs": tensors(about.outputs),
        "properties": properties,
    })
}

pub(super) fn config(config: ModelConfig) -> Value {
    let datatype = |number: i32| DataType::try_from(number).unwrap_or(DataType::TypeInvalid).as_str_name();
    let inputs: Vec<Value> = (config.input.into_iter())
        .map(|input| {
            let data_type = datatype(input.data_type);
            json!({ "name": input.name, "data_type": data_type, "dims": input.dims, "optional": input.optional })
        })
        .collect();
    let outputs: Vec<Value> = (config.output.into_iter())
        .map(|output| json!({ "name": output.name, "data_type": datatype(output.data_type), "dims": output.dims }))
        .collect();
    let parameters = config.parameters.into_iter();
    let parameters: serde_json::Map<String, Value> =
        parameters.map(|(name, value)| (name, json!({ "string_value": value.string_value }))).collect();
    let mut told = json!({
        "name": config.name,
        "platform": config.platform,
        "backend": config.backend,
        "max_batch_size": config.max_batch_size,
        "input": inputs,
        "output": outputs,
        "parameters": parameters,
        "model_transaction_policy": { "decoupled": config.model_transaction_policy.is_some_and(|p| p.decoupled) },
    });
    if let Some(PolicyChoice::Specific(specific)) = config.version_policy.and_then(|policy| policy.policy_choice) {
        told["version_policy"] = json!({ "specific": { "versions": specific.versions } });
    }
    if let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice {
        told["dynamic_batching"] = json!({
            "preferred_batch_size": batching.preferred_batch_size,
            "max_queue_delay_microseconds": batching.max_queue_delay_microseconds,
            "preserve_ordering": batching.preserve_ordering,
            "priority_levels": batching.priority_levels,
            "default_priority_level": batching.default_priority_level,
        });
    }
    told
}

pub(super) fn statistics(counted: ModelStatistics) -> Value {
    let duration = |duration: Option<StatisticDuration>| {
        let StatisticDuration { count, ns } = duration.unwrap_or_default();
        json!({ "count": count, "ns": ns })
    };
    let inferences = counted.inference_stats.unwrap_or_default();
    let batches = counted.batch_stats.into_iter().map(|batch| {
        json!({
            "batch_size": batch.batch_size,
            "compute_input": duration(batch.compute_input),
            "compute_infer": duration(batch.compute_infer),
            "compute_output": duration(batch.compute_output),
        })
    });
    let memory = counted.memory_usage.into_iter();
    let memory = memory.map(|usage| json!({ "type": usage.r#type, "id": usage.id, "byte_size": usage.byte_size }));
    json!({
        "name": counted.name,
        "version": counted.version,
        "last_inference": counted.last_inference,
        "inference_count": counted.inference_count,
        "execution_count": counted.execution_count,
        "inference_stats": {
            "success": duration(inferences.success),
            "fail": duration(inferences.fail),
            "queue": duration(inferences.queue),
            "compute_input": duration(inferences.compute_input),
            "compute_infer": duration(inferences.compute_infer),
            "compute_output": duration(inferences.compute_output),
            "cache_hit": duration(inferences.cache_hit),
            "cache_miss": duration(inferences.cache_miss),
        },
        "batch_stats": batches.collect::<Vec<_>>(),
        "memory_usage": memory.collect::<Vec<_>>(),
    })
}

pub(super) fn index(line: ModelIndex) -> Value {
    json!({ "name": line.name, "version": line.version, "state": line.state, "reason": line.reason })
}

pub(super) fn trace(settings: TraceSettingResponse) -> Value {
    settings.settings.into_iter().map(|(name, setting)| (name, Value::from(setting.value))).collect()
}

pub(super) fn log(settings: LogSettingsResponse) -> Value {
    let value = |choice| match choice {
        Some(ParameterChoice::BoolParam(flag)) => Value::from(flag),
        Some(ParameterChoice::Uint32Param(number)) => Value::from(number),
        Some(ParameterChoice::StringParam(text)) => Value::from(text),
        None => Value::Null,
    };
    settings.settings.into_iter().map(|(name, setting)| (name, value(setting.parameter_choice))).collect()
}
