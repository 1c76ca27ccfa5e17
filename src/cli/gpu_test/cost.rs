//! What an allocation and its free cost through candle's bindings: the driver by itself, and through the books.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use candle_core::{DType, Error, Tensor};

use super::stage::Stage;
use crate::device::Hardware;
use crate::device::cuda::{Events, stock_stream, time_allocation};
use crate::units::{Bytes, ModelId};

const SIZES: [(usize, &str); 3] = [(4 << 10, "4 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")];
/// What is taken from the card once.
const GROWTH: usize = 512 << 20;
const COUNT: u32 = 2_000;
const ROUNDS: usize = 9;
const BOUND: Duration = Duration::from_nanos(1_500);

/// The driver by itself, for each size: with events, and without.
pub(super) type StockCost = [(Duration, Duration); SIZES.len()];

pub(super) fn stock(ordinal: u32) -> anyhow::Result<StockCost> {
    let mut cost = StockCost::default();
    let streams = (stock_stream(ordinal, Events::Kept)?, stock_stream(ordinal, Events::Off)?);
    for (cost, (bytes, _)) in cost.iter_mut().zip(SIZES) {
        let time = |stream| time_allocation(stream, bytes, COUNT, ROUNDS).map_err(|error| anyhow!("{error}"));
        *cost = (time(&streams.0)?, time(&streams.1)?);
    }
    Ok(cost)
}

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(1);
    let stream = stage.tensors().as_cuda_device()?.cuda_stream();
    let (weights, account) = stage.load(MODEL, |device| Tensor::zeros(16, DType::F32, device))?;
    let time = || SIZES.iter().map(|(bytes, _)| time_allocation(&stream, *bytes, COUNT, ROUNDS)).collect();
    let (times, _) = stage.must(MODEL, || {
        let times: Result<Vec<Duration>, String> = time();
        times.map_err(Error::msg)
    })?;
    // What is not cached has to be taken from the card first.
    stage.hardware.trim(Bytes::ZERO);
    let device = stage.tensors();
    let (grown, _) = stage.must(MODEL, || {
        let began = Instant::now();
        let _memory = Tensor::zeros(GROWTH, DType::U8, &device)?;
        Ok(began.elapsed())
    })?;
    stage.hardware.trim(Bytes::ZERO);
    drop(weights);
    drop(account);
    let mut lines = Vec::new();
    for ((ours, (kept, off)), (_, size)) in times.iter().zip(stage.stock).zip(SIZES) {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        lines.push(format!(
            "  {size:>6}: {:.2} us through the books; the driver by itself {:.2} us, with events {:.2} us",
            us(*ours),
            us(off),
            us(kept)
        ));
    }
    lines.push(format!("  {} that are not cached: {:.1} ms", Bytes::new(GROWTH as u64), grown.as_secs_f64() * 1e3));
    let worst = times.iter().max().copied().unwrap_or_default();
    ensure!(worst <= BOUND, "{worst:?}\n{}", lines.join("\n"));
    Ok(format!("{:.2} us at worst\n{}", worst.as_secs_f64() * 1e6, lines.join("\n")))
}
