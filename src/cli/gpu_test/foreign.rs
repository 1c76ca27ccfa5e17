//! An address that did not come from here is freed by the driver; one of nobody is the driver's error, not ours.

use anyhow::{anyhow, ensure};

use super::stage::{Stage, mib};
use crate::device::cuda::free_as_candle_does;

const BYTES: u64 = 256 << 20;

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    let card = stage.card();
    let stream = stage.tensors().as_cuda_device()?.cuda_stream();
    let (before, counted) = (card.memory()?.free, card.allocator().snapshot().foreign_frees);
    let pointer = card.driver().alloc_behind_the_books(BYTES).map_err(|error| anyhow!("{error}"))?;
    ensure!(before - card.memory()?.free >= BYTES, "the memory was not taken");
    ensure!(free_as_candle_does(&stream, pointer), "the driver did not get its own back");
    stream.synchronize()?;
    let left = before.saturating_sub(card.memory()?.free);
    ensure!(left <= 2 << 20, "{} are left", mib(left));
    ensure!(!free_as_candle_does(&stream, 0x1234_5600), "an address of nobody was freed");
    let counted = card.allocator().snapshot().foreign_frees - counted;
    ensure!(counted == 2, "{counted} were counted");
    stream.synchronize()?;
    Ok(format!("{} came back, {counted} counted", mib(BYTES)))
}
