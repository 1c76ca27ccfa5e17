//! Small steps, queued as one.
//!
//! A step of one text is a hundred kernels of a few microseconds each, and queueing each of them takes the host as long.
//! So what small steps queue is recorded once, and queued from then on as a whole: a CUDA graph.
//!
//! A recording holds the addresses that the kernels were given. It is used again only where all of them are the same:
//! steps set aside all memory before they queue anything, and a pool that serves one step after another gives the same
//! requests the same places. Nothing is allocated while recording, so that a recording owns no memory of the card but
//! what the driver keeps for its launches: about 160 KiB for a BERT-large (H200). Where so little counts none is made.

use std::collections::HashMap;

use candle_core::{DType, Result, Tensor, bail};
use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::operations::{Operations, note_made};
use super::tensors::{Address, address};

/// More are not kept: what the driver keeps for one is in nobody's books. All go together, since what is in use is soon
/// back.
const KEPT_MAX: usize = 32;

/// Where less of the card is free, nothing is recorded: a step needs it more. Where still less is, what is recorded goes. Far
/// enough apart that the workspace of a large step, which comes and goes, does not take what the next one makes anew.
const RECORDS_FROM: usize = 96 << 20;
const KEEPS_FROM: usize = 32 << 20;

/// Recordings that a model may make before they have to pay: from then on, one for each time that one was used. A pool in
/// which addresses keep changing costs a model so many, and no more.
const ON_TRUST: u64 = 128;

/// The recorded steps of one model.
#[derive(Default)]
pub(crate) struct Recordings {
    kept: HashMap<Key, CudaGraph>,
    made: u64,
    used: u64,
}

/// What a step is queued the same by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// What shapes launches: tokens, rows, tiles of attention.
    pub(super) shape: [usize; 3],
    /// Of all memory that the step sets aside.
    pub(super) addresses: Vec<Address>,
}

impl Key {
    /// The same for a step that writes to this as well, in f32.
    pub(crate) fn and(mut self, memory: &Tensor) -> Result<Key> {
        self.addresses.push(address(memory, DType::F32)?);
        Ok(self)
    }
}

impl Recordings {
    /// Queues what `body` queues: by calling it, or as it was recorded. `body` allocates nothing, waits for nothing, and
    /// queues the same for equal keys.
    pub(crate) fn run(&mut self, operations: &Operations, key: Key, body: impl Fn() -> Result<()>) -> Result<()> {
        if let Some(graph) = self.kept.get(&key) {
            self.used += 1;
            return graph.launch().map_err(candle_core::Error::wrap);
        }
        // The first time everything is loaded and chosen that needs to be, which cannot be recorded.
        body()?;
        if self.made >= ON_TRUST + self.used {
            return Ok(());
        }
        let free = operations.stream.context().mem_get_info().map_or(0, |(free, _)| free);
        let records = free >= RECORDS_FROM;
        if (records && self.kept.len() >= KEPT_MAX) || (free < KEEPS_FROM && !self.kept.is_empty()) {
            // One of them may be running.
            operations.stream.synchronize().map_err(candle_core::Error::wrap)?;
            self.kept.clear();
            note_made();
        }
        if records {
            self.made += 1;
            self.kept.insert(key, record(operations, body)?);
            note_made();
        }
        Ok(())
    }
}

fn record(operations: &Operations, body: impl Fn() -> Result<()>) -> Result<CudaGraph> {
    let stream = &operations.stream;
    // Other threads go on asking the driver for what is free, which is no business of the recording.
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(candle_core::Error::wrap)?;
    let queued = body();
    // Ended in any case: a stream that records computes nothing.
    let recorded = stream.end_capture(CUgraphInstantiate_flags(0));
    queued?;
    match recorded.map_err(candle_core::Error::wrap)? {
        Some(graph) => Ok(graph),
        None => bail!("the driver has recorded nothing"),
    }
}
