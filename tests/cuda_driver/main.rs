//! The rim to the CUDA driver, over a driver of ours: cudarc's streams come to the interposed functions, those to the
//! pools, and those to the driver's entry points. `scripts/test-cuda-rim` builds the driver and runs this; no GPU is
//! needed.

mod fake;
mod pools;
mod failures;
mod modes;
