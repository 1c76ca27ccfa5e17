//! Load, run, unload, twenty times: the same answer, the same bytes.

use anyhow::ensure;
use candle_core::{DType, Tensor};

use super::stage::{Stage, mib};
use crate::device::Hardware;
use crate::units::{Bytes, ModelId};

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(5);
    const TIMES: usize = 20;
    let mut reserved = Vec::new();
    let mut free = Vec::new();
    let mut answers = Vec::new();
    let mut loaded = 0;
    for _ in 0..TIMES {
        let (weights, account) = stage.load(MODEL, |device| {
            (0..24).map(|layer| Tensor::full(layer as f32 / 1e4, (1024, 4096), device)?.to_dtype(DType::F16)).collect()
        })?;
        let weights: Vec<Tensor> = weights;
        loaded = stage.hardware.resident(&account).weights.get();
        let (answer, _) = stage.must(MODEL, || {
            let mut sum = 0.0;
            for layer in &weights {
                sum += layer.matmul(&layer.t()?)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
            }
            Ok(sum)
        })?;
        answers.push(answer);
        drop(weights);
        let left = stage.hardware.close(account);
        stage.hardware.settle();
        ensure!(left == Bytes::ZERO, "{left} are left of the model");
        reserved.push(stage.card().allocator().reserved().get());
        free.push(stage.card().memory()?.free);
    }
    ensure!(
        answers.iter().all(|answer| *answer == answers[0] && answer.is_finite()),
        "the answers differ: {answers:?}"
    );
    ensure!(reserved[1..].iter().all(|bytes| *bytes == reserved[1]), "reserved after each: {reserved:?}");
    let drift = free[TIMES - 1].abs_diff(free[1]);
    Ok(format!(
        "{} of weights each time; {} reserved after each; the card's free memory moved by {}",
        mib(loaded),
        mib(reserved[TIMES - 1]),
        mib(drift)
    ))
}
