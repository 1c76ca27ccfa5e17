//! Choosing and starting a device.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use super::cpu::CpuDevice;
use super::pools::{Failures, Mode};
use super::{Device, Report};
use crate::memory::Readings;
use crate::model::DeviceForm;

/// Which device is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The processor.
    Cpu,
    /// The GPU of this number, and nothing else.
    Cuda(u32),
    /// The first GPU if it can be used, else the processor.
    Auto,
}

/// How a device is started.
#[derive(Clone, Debug, PartialEq)]
pub struct StartOptions {
    /// Which.
    pub choice: Choice,
    /// Whether a step looks at what is free before it starts.
    pub live: Readings,
    /// Where a GPU's memory comes from.
    pub allocator: Mode,
    /// Which of a GPU's allocations fail on purpose.
    pub failures: Failures,
    /// A file that bounds what is free, on the CPU.
    pub reading_file: Option<PathBuf>,
}

impl StartOptions {
    /// A device for measuring: nothing else runs, so nothing is looked at.
    pub fn alone(choice: Choice) -> StartOptions {
        StartOptions {
            choice,
            live: Readings::Off,
            allocator: Mode::Pools,
            failures: Failures::Never,
            reading_file: None,
        }
    }
}

/// Starts a device. `reports` is called on its thread; `epoch` is the engine's start.
///
/// # Errors
/// What is wrong with the device that was asked for, and what to do about it.
pub fn start(
    options: StartOptions,
    epoch: Instant,
    reports: impl FnMut(Report) + Send + 'static,
) -> io::Result<Box<dyn Device>> {
    let bounded = options.reading_file.is_some();
    let device = match options.choice {
        Choice::Cpu => cpu(options, epoch, reports),
        Choice::Cuda(ordinal) => gpu(ordinal, options, epoch, reports),
        Choice::Auto => first_that_works(options, epoch, reports),
    }?;
    if bounded && device.form() != DeviceForm::Cpu {
        tracing::warn!("memory_reading_file bounds the memory of a CPU; {} is asked itself", device.name());
    }
    tracing::info!("models run on {}", device.name());
    Ok(device)
}

fn cpu(
    options: StartOptions,
    epoch: Instant,
    reports: impl FnMut(Report) + Send + 'static,
) -> io::Result<Box<dyn Device>> {
    Ok(Box::new(CpuDevice::start_beside(options.reading_file, options.live, epoch, reports)?))
}

#[cfg(feature = "cuda")]
fn settings(ordinal: u32, options: &StartOptions) -> super::cuda::CardSettings {
    super::cuda::CardSettings { ordinal, mode: options.allocator, failures: options.failures }
}

#[cfg(feature = "cuda")]
fn gpu(
    ordinal: u32,
    options: StartOptions,
    epoch: Instant,
    reports: impl FnMut(Report) + Send + 'static,
) -> io::Result<Box<dyn Device>> {
    use super::cuda::CudaDevice;

    let device = CudaDevice::start(settings(ordinal, &options), options.live, epoch, reports)
        .map_err(|error| io::Error::other(format!("the GPU cannot be used: {error}; --device cpu does without")))?;
    Ok(Box::new(device))
}

#[cfg(feature = "cuda")]
fn first_that_works(
    options: StartOptions,
    epoch: Instant,
    reports: impl FnMut(Report) + Send + 'static,
) -> io::Result<Box<dyn Device>> {
    use super::cuda::CudaDevice;

    match CudaDevice::open(settings(0, &options)) {
        Ok((card, tensors)) => Ok(Box::new(CudaDevice::on(card, tensors, options.live, epoch, reports)?)),
        Err(unusable) => {
            tracing::warn!("no GPU can be used, so the CPU runs the models: {unusable}");
            cpu(options, epoch, reports)
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: u32, _: StartOptions, _: Instant, _: impl FnMut(Report) + Send + 'static) -> io::Result<Box<dyn Device>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this program was built without CUDA: build it with --features cuda, or use --device cpu",
    ))
}

#[cfg(not(feature = "cuda"))]
fn first_that_works(
    options: StartOptions,
    epoch: Instant,
    reports: impl FnMut(Report) + Send + 'static,
) -> io::Result<Box<dyn Device>> {
    cpu(options, epoch, reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_nobody_can_use_is_refused_with_what_to_do() {
        // There is no card with this number, and in a build without CUDA none at all.
        let refused = start(StartOptions::alone(Choice::Cuda(4_095)), Instant::now(), |_| ()).err().expect("no card");
        assert!(refused.to_string().contains("--device cpu"), "{refused}");
    }

    #[test]
    fn the_processor_is_always_there() {
        let device = start(StartOptions::alone(Choice::Cpu), Instant::now(), |_| ()).unwrap();
        assert!(device.name().starts_with("cpu"), "{}", device.name());
    }
}
