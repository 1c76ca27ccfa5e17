//! A step that wants more than its ceiling is stopped by the books, with numbers; the card never hears of it.

use anyhow::{anyhow, bail, ensure};
use candle_core::{DType, Tensor};

use super::stage::Stage;
use crate::units::{Bytes, ModelId};

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(3);
    const CEILING: Bytes = Bytes::mib(64);
    let (weights, account) = stage.load(MODEL, |device| Tensor::zeros(16, DType::F32, device))?;
    let device = stage.tensors();
    let zeros = |mib: usize| Tensor::zeros(mib << 20, DType::U8, &device);
    let (reserved, free) = (stage.card().allocator().reserved(), stage.card().memory()?.free);
    let result = stage.step(MODEL, CEILING, || {
        let _half = zeros(40)?;
        let _more = zeros(25)?;
        Ok(())
    });
    let short = match result {
        Err(short) => short,
        Ok(_) => bail!("65 MiB were given under a ceiling of {CEILING}"),
    };
    ensure!(short.needed == Bytes::mib(65) && short.available == CEILING, "{short:?}");
    let grown = stage.card().allocator().reserved().saturating_sub(reserved);
    ensure!(grown <= Bytes::mib(64), "{grown} were taken from the card");
    // Just as much as is allowed.
    let just = || {
        let _all = (zeros(40)?, zeros(24)?);
        Ok(())
    };
    let (result, used) =
        stage.step(MODEL, CEILING, just).map_err(|short| anyhow!("{} of {CEILING} were refused", short.needed))?;
    result?;
    ensure!(used.peak == CEILING && !used.overrun, "{used:?}");
    drop(weights);
    drop(account);
    let taken = free.saturating_sub(stage.card().memory()?.free);
    Ok(format!("65 MiB refused at {CEILING}, 64 MiB given; {} taken from the card", Bytes::new(taken)))
}
