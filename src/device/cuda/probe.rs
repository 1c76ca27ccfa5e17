//! What a check on a real card does to it, and only this folder may: raw allocations, timed, and frees of what is not ours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::card::Unusable;
use crate::device::pools::Pointer;

/// Whether cudarc keeps events for each allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// As it does by itself.
    Kept,
    /// As this program uses it.
    Off,
}

/// A stream of a context of its own, as candle makes it. Allocations on it come from the driver as long as no card is
/// open, and from the card's allocator afterwards.
///
/// # Errors
/// The driver's.
pub fn stock_stream(ordinal: u32, events: Events) -> Result<Arc<CudaStream>, Unusable> {
    let context = CudaContext::new(ordinal as usize).map_err(Unusable::driver("no context can be made"))?;
    if events == Events::Off {
        // SAFETY: one stream is made on it.
        unsafe { context.disable_event_tracking() };
    }
    context.new_stream().map_err(Unusable::driver("no stream can be made"))
}

/// The median time of an allocation and its free, warm: of `rounds` rounds of `count` each.
///
/// # Errors
/// The driver's words.
pub fn time_allocation(stream: &Arc<CudaStream>, bytes: usize, count: u32, rounds: usize) -> Result<Duration, String> {
    let mut times = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        let started = Instant::now();
        for _ in 0..count {
            // SAFETY: nobody reads what is in it.
            let block = unsafe { stream.alloc::<u8>(bytes) }.map_err(|error| error.to_string())?;
            drop(block);
        }
        // The first round warms up.
        if round > 0 {
            times.push(started.elapsed() / count);
        }
        stream.synchronize().map_err(|error| error.to_string())?;
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Frees an address as candle's bindings do. Returns whether they report success.
pub fn free_as_candle_does(stream: &Arc<CudaStream>, pointer: Pointer) -> bool {
    // SAFETY: the caller got the address from the driver and gives it up. The worst that an address of nobody does is an
    // error, which is what is returned.
    unsafe { sys::cuMemFreeAsync(pointer, stream.cu_stream()) == sys::CUresult::CUDA_SUCCESS }
}

/// The version of the driver, as CUDA counts: (13, 0).
pub fn driver_version() -> Option<(i32, i32)> {
    let mut version = 0;
    // SAFETY: `version` lives through the call.
    let said = unsafe { sys::cuDriverGetVersion(&mut version) };
    (said == sys::CUresult::CUDA_SUCCESS).then_some((version / 1000, version % 1000 / 10))
}
