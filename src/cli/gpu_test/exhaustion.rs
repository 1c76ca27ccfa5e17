//! The card is really full: the step is told so, everything works afterwards, and what was cached can be had.

use anyhow::{anyhow, bail, ensure};
use candle_core::{DType, Tensor};

use super::stage::Stage;
use crate::device::Hardware;
use crate::units::{Bytes, ModelId};

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(4);
    let (weights, account) = stage.load(MODEL, |device| Tensor::ones(16, DType::F32, device))?;
    let device = stage.tensors();
    stage.hardware.trim(Bytes::ZERO);
    let free = stage.card().memory()?.free;
    // More than there is, in pieces that make it nearly full first.
    let piece = (free / 8) as usize;
    let filled = stage.step(MODEL, Bytes::MAX, || {
        let pieces: Result<Vec<_>, _> = (0..9).map(|_| Tensor::zeros(piece, DType::U8, &device)).collect();
        pieces.map(drop)
    });
    let short = match filled {
        Err(short) => short,
        Ok(_) => bail!("nine eighths of what is free were given"),
    };
    // What the step had is cached now. A neighbour of this process takes the card's last free memory; what is cached is
    // still the steps'.
    let (sum, _) = stage.must(MODEL, || weights.sum_all()?.to_scalar::<f32>())?;
    ensure!(sum == 16.0, "the card computes wrongly afterwards: {sum}");
    let cached = stage.card().allocator().workspace().cached;
    let left = stage.card().memory()?.free;
    let pointer = match left.checked_sub(1 << 30) {
        Some(most) if most > 0 => stage.card().driver().alloc_behind_the_books(most).ok(),
        _ => None,
    };
    let half = (cached.get() / 2) as usize;
    stage.must(MODEL, || Tensor::zeros(half, DType::U8, &device).map(drop))?;
    if let Some(pointer) = pointer {
        stage.card().driver().free_behind_the_books(pointer).map_err(|error| anyhow!("{error}"))?;
    }
    let returned = stage.hardware.trim(Bytes::ZERO);
    drop(weights);
    drop(account);
    let after = stage.card().memory()?.free;
    ensure!(after + (64 << 20) >= free, "{} of {} came back", Bytes::new(after), Bytes::new(free));
    Ok(format!("{} needed, {} to be had; {returned} of cache returned afterwards", short.needed, short.available))
}
