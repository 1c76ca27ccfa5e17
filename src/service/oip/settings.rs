//! The trace and log settings: they can be read; they are set where the server is started.

use std::collections::HashMap;

use tracing::level_filters::LevelFilter;

use crate::service::errors::Problem;
use crate::service::proto::inference::log_settings_response::SettingValue as LogValue;
use crate::service::proto::inference::log_settings_response::setting_value::ParameterChoice;
use crate::service::proto::inference::trace_setting_response::SettingValue as TraceValue;
use crate::service::proto::inference::{
    LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse,
};

/// Why trace settings cannot be set.
pub(crate) const NO_TRACES: Problem = Problem::NotOffered(
    "trace settings are chosen where the server is started (--otlp-endpoint, --otlp-sample), not by a call",
);

/// Why log settings cannot be set.
pub(crate) const NO_LOG_SETTINGS: Problem =
    Problem::NotOffered("log settings are chosen where the server is started, not by a call");

/// The trace settings, which are about files: none are written here.
pub(crate) fn trace(request: TraceSettingRequest) -> Result<TraceSettingResponse, Problem> {
    // A setting without values asks for the default, which is in force.
    if request.settings.values().any(|setting| !setting.value.is_empty()) {
        return Err(NO_TRACES);
    }
    let off = TraceValue { value: vec!["OFF".to_owned()] };
    Ok(TraceSettingResponse { settings: HashMap::from([("trace_level".to_owned(), off)]) })
}

/// The log settings in force.
pub(crate) fn log(request: LogSettingsRequest) -> Result<LogSettingsResponse, Problem> {
    if !request.settings.is_empty() {
        return Err(NO_LOG_SETTINGS);
    }
    let level = LevelFilter::current();
    let flag = |needed| ParameterChoice::BoolParam(level >= needed);
    let settings = [
        ("log_error", flag(LevelFilter::ERROR)),
        ("log_warning", flag(LevelFilter::WARN)),
        ("log_info", flag(LevelFilter::INFO)),
        ("log_verbose_level", ParameterChoice::Uint32Param(u32::from(level >= LevelFilter::DEBUG))),
    ];
    let value = |choice| LogValue { parameter_choice: Some(choice) };
    Ok(LogSettingsResponse { settings: settings.map(|(name, choice)| (name.to_owned(), value(choice))).into() })
}
