//! candle's operations on the card beside the same in f32 on the CPU.

use anyhow::ensure;
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};

use super::stage::Stage;
use crate::units::ModelId;

const F16_MIN: f64 = 0.9999;
const INT8_MIN: f64 = 0.995;

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(7);
    let (rows, width, inner) = (37, 256, 1024);
    let x = waves(&[rows, width], 0.37)?;
    let w = waves(&[inner, width], 0.11)?;
    let expected = activated(&x.matmul(&w.t()?)?)?;
    let ((x16, w16, w8, x32), account) = stage.load(MODEL, |device| {
        let half = |tensor: &Tensor| tensor.to_dtype(DType::F16)?.to_device(device);
        let quantized = QTensor::quantize(&w.to_device(device)?, GgmlDType::Q8_0)?;
        Ok((half(&x)?, half(&w)?, QMatMul::from_qtensor(quantized)?, x.to_device(device)?))
    })?;
    let (f16, _) = stage.must(MODEL, || values(&activated(&x16.matmul(&w16.t()?)?)?))?;
    let (weighed, _) = stage.must(MODEL, || values(&weighed(&x16.matmul(&w16.t()?)?)?))?;
    let (int8, _) = stage.must(MODEL, || values(&activated(&w8.forward(&x32)?)?))?;
    drop((x16, w16, w8, x32));
    drop(account);
    let softmax = values(&self::weighed(&x.matmul(&w.t()?)?)?)?;
    let expected = values(&expected)?;
    let (f16, int8) = (cosine(&f16, &expected), cosine(&int8, &expected));
    // Rows of a softmax are all positive and so alike: only what differs from the mean says something.
    let softmax = cosine(&centered(&weighed), &centered(&softmax));
    let text = format!("cosine to f32 on the CPU: f16 {f16:.6}, its softmax {softmax:.6}, int8 {int8:.6}");
    // Not `<`: what is not a number has to fail.
    ensure!(f16 >= F16_MIN && softmax >= F16_MIN && int8 >= INT8_MIN, "{text}");
    Ok(text)
}

fn activated(x: &Tensor) -> Result<Tensor> {
    x.gelu_erf()
}

fn weighed(x: &Tensor) -> Result<Tensor> {
    candle_nn::ops::softmax_last_dim(&x.contiguous()?)
}

fn centered(values: &[f32]) -> Vec<f32> {
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    values.iter().map(|value| value - mean).collect()
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// Numbers of both signs that repeat nowhere.
fn waves(shape: &[usize], step: f32) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * step).sin() * 0.2).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
