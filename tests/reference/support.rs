//! What the tests of this folder share.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use plimsoll::config::{Dtype, ModelConfig, Source};
use plimsoll::model::{Batch, Blueprint, Model, ModelFiles, Output, TokenRow};
use serde_json::Value;

/// The dtypes that a CPU has.
pub(crate) const ON_A_CPU: [Dtype; 5] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8, Dtype::Int8];

/// A configuration that leaves everything to the model's own files.
pub(crate) fn config(name: &str, dtype: Dtype) -> ModelConfig {
    ModelConfig { dtype, ..ModelConfig::new(name, Source::Embedded(name.to_owned())) }
}

/// The blueprint of an embedded model.
pub(crate) fn embedded(name: &str, dtype: Dtype) -> Blueprint {
    Blueprint::new(&config(name, dtype), ModelFiles::embedded(name).unwrap()).unwrap()
}

/// The blueprint of a model in a folder.
pub(crate) fn folder(path: &Path, dtype: Dtype) -> Blueprint {
    Blueprint::new(&config("folder", dtype), ModelFiles::open(path).unwrap()).unwrap()
}

/// The reference outputs of a model.
pub(crate) fn reference(name: &str) -> Value {
    let path = format!("{}/tests/reference/data/{name}.reference.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Loads on the CPU.
pub(crate) fn load(blueprint: &Blueprint) -> Box<dyn Model> {
    blueprint.load(&Device::Cpu).unwrap()
}

/// One step.
pub(crate) fn step(model: &mut dyn Model, rows: &[TokenRow]) -> Vec<Vec<f32>> {
    let batch = Batch::Tokens(rows.iter().cloned().map(Arc::new).collect());
    let vectors = model.step(&batch).and_then(Output::vectors).unwrap();
    assert_eq!(vectors.len(), rows.len());
    vectors
}

/// A field of a reference as numbers.
pub(crate) fn numbers<T>(value: &Value, convert: impl Fn(f64) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(|number| convert(number.as_f64().unwrap())).collect()
}

/// The cosine of the angle between two vectors.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    assert_eq!(a.len(), b.len());
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The largest difference of two vectors.
pub(crate) fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
}
