//! The trace and log settings: they can be read; they are set where the server is started. Who sets them to what they are
//! is told what they are.

use std::collections::HashMap;

use tracing::level_filters::LevelFilter;

use crate::service::errors::Problem;
use crate::service::proto::inference::log_settings_request::setting_value::ParameterChoice as Asked;
use crate::service::proto::inference::log_settings_response::SettingValue as LogValue;
use crate::service::proto::inference::log_settings_response::setting_value::ParameterChoice;
use crate::service::proto::inference::trace_setting_response::SettingValue as TraceValue;
use crate::service::proto::inference::{
    LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse, log_settings_request,
    trace_setting_request,
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
    let off = TraceValue { value: vec!["OFF".to_owned()] };
    let now = HashMap::from([("trace_level".to_owned(), off)]);
    // A setting without values asks for the default, which is in force.
    let kept = |(name, asked): (&String, &trace_setting_request::SettingValue)| {
        asked.value.is_empty() || now.get(name).is_some_and(|now| now.value == asked.value)
    };
    match request.settings.iter().all(kept) {
        true => Ok(TraceSettingResponse { settings: now }),
        false => Err(NO_TRACES),
    }
}

/// The log settings in force.
pub(crate) fn log(request: LogSettingsRequest) -> Result<LogSettingsResponse, Problem> {
    let level = LevelFilter::current();
    let flag = |needed| ParameterChoice::BoolParam(level >= needed);
    let settings = [
        ("log_error", flag(LevelFilter::ERROR)),
        ("log_warning", flag(LevelFilter::WARN)),
        ("log_info", flag(LevelFilter::INFO)),
        ("log_verbose_level", ParameterChoice::Uint32Param(u32::from(level >= LevelFilter::DEBUG))),
    ];
    let same = |asked: &log_settings_request::SettingValue, now: &ParameterChoice| match (&asked.parameter_choice, now)
    {
        (Some(Asked::BoolParam(asked)), ParameterChoice::BoolParam(now)) => asked == now,
        (Some(Asked::Uint32Param(asked)), ParameterChoice::Uint32Param(now)) => asked == now,
        _ => false,
    };
    for (name, asked) in &request.settings {
        if !settings.iter().any(|(known, now)| known == name && same(asked, now)) {
            return Err(NO_LOG_SETTINGS);
        }
    }
    let value = |choice| LogValue { parameter_choice: Some(choice) };
    Ok(LogSettingsResponse { settings: settings.map(|(name, choice)| (name.to_owned(), value(choice))).into() })
}
