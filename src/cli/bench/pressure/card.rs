//! A GPU that server and neighbour share: what is free on it, and taking some of it.

use crate::units::Bytes;

pub(super) use imp::{Held, free, take, total};

#[cfg(feature = "cuda")]
mod imp {
    use std::sync::Mutex;

    use anyhow::{Context, anyhow};

    use super::Bytes;
    use crate::device::cuda::{Bystander, Taken};
    use crate::device::pools::{DriverError, Memory};

    /// Memory of a GPU, given back when dropped.
    pub(in crate::cli::bench::pressure) struct Held {
        _taken: Taken,
    }

    /// Bytes of the GPU of this number that anybody could still take.
    pub(in crate::cli::bench::pressure) fn free(ordinal: u32) -> anyhow::Result<Bytes> {
        memory(ordinal).map(|memory| Bytes::new(memory.free))
    }

    /// All of its bytes.
    pub(in crate::cli::bench::pressure) fn total(ordinal: u32) -> anyhow::Result<Bytes> {
        memory(ordinal).map(|memory| Bytes::new(memory.total))
    }

    /// Takes memory; `None` when there is not so much left.
    pub(in crate::cli::bench::pressure) fn take(ordinal: u32, bytes: Bytes) -> anyhow::Result<Option<Held>> {
        match bystander(ordinal)?.take(bytes.get()) {
            Ok(taken) => Ok(Some(Held { _taken: taken })),
            Err(DriverError::OUT_OF_MEMORY) => Ok(None),
            Err(error) => Err(anyhow!("taking {bytes} of GPU {ordinal}: {error}")),
        }
    }

    fn memory(ordinal: u32) -> anyhow::Result<Memory> {
        let memory = bystander(ordinal)?.memory();
        memory.map_err(|error| anyhow!("GPU {ordinal} does not say what is free: {error}"))
    }

    /// The one context of this process: a second one would be counted as a neighbour of the first.
    fn bystander(ordinal: u32) -> anyhow::Result<Bystander> {
        static OPEN: Mutex<Option<(u32, Bystander)>> = Mutex::new(None);
        let mut open = OPEN.lock().ok().context("another thread has panicked")?;
        match &*open {
            Some((other, bystander)) if *other == ordinal => Ok(bystander.clone()),
            _ => {
                let opened = Bystander::open(ordinal as usize);
                let bystander = opened.map_err(|error| anyhow!("GPU {ordinal} cannot be used: {error}"))?;
                *open = Some((ordinal, bystander.clone()));
                Ok(bystander)
            }
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod imp {
    use anyhow::bail;

    use super::Bytes;

    /// Never made.
    pub(in crate::cli::bench::pressure) enum Held {}

    pub(in crate::cli::bench::pressure) fn free(_: u32) -> anyhow::Result<Bytes> {
        bail!("this program was built without CUDA: build it with --features cuda")
    }

    pub(in crate::cli::bench::pressure) fn total(ordinal: u32) -> anyhow::Result<Bytes> {
        free(ordinal)
    }

    pub(in crate::cli::bench::pressure) fn take(ordinal: u32, _: Bytes) -> anyhow::Result<Option<Held>> {
        free(ordinal).map(|_| None)
    }
}
