//! The books beside what `cuMemGetInfo` and `nvidia-smi` say.

use std::process::Command;

use anyhow::ensure;
use candle_core::{DType, Tensor};

use super::stage::{Stage, mib};
use crate::device::Hardware;
use crate::units::ModelId;

/// What may be in no book after everything is warm.
const UNATTRIBUTED_MAX: i64 = 4 << 20;

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(2);
    let (weights, account) = stage.load(MODEL, |device| Tensor::ones((4096, 4096), DType::F16, device))?;
    // More steps than the card counts as cold.
    for _ in 0..16 {
        stage.must(MODEL, || weights.matmul(&weights)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>())?;
    }
    let parts = stage.card().parts()?;
    let smi = nvidia_smi();
    let resident = stage.hardware.resident(&account);
    drop(weights);
    drop(account);
    let held = parts.weights + parts.kv + parts.workspace + parts.library + parts.unpooled;
    let sum = parts.free + held + parts.fixed.bytes + parts.graphs + parts.others;
    let line = |name: &str, bytes: u64| format!("  {name:<28} {:>14}", mib(bytes));
    let mut lines = vec![
        line("weights (pools)", parts.weights),
        line("  of the model by its books", resident.weights.get()),
        line("KV (pools)", parts.kv),
        line("workspace (pool)", parts.workspace),
        line("library (pool)", parts.library),
        line("outside of pools", parts.unpooled),
        line(&format!("fixed ({:?})", parts.fixed.source).to_lowercase(), parts.fixed.bytes),
        line("graphs", parts.graphs),
        line("others", parts.others),
        line("free (cuMemGetInfo)", parts.free),
        line("= total (cuMemGetInfo)", parts.total),
    ];
    lines.extend(smi.lines().map(|text| format!("  nvidia-smi: {text}")));
    let lines = lines.join("\n");
    ensure!(sum == parts.total, "the parts are {} of {}\n{lines}", mib(sum), mib(parts.total));
    match parts.unattributed {
        Some(bytes) => {
            let text = format!("{:.1} MiB unattributed", bytes as f64 / f64::from(1 << 20));
            ensure!(bytes.abs() <= UNATTRIBUTED_MAX, "{text}\n{lines}");
            Ok(format!("{text}\n{lines}"))
        }
        None => Ok(format!("the driver does not show this process to itself: fixed is estimated\n{lines}")),
    }
}

/// What the command of the driver says; a word about why if it says nothing.
fn nvidia_smi() -> String {
    let ask = |query: &str| {
        let output = Command::new("nvidia-smi").args([query, "--format=csv"]).output();
        output.map_or_else(
            |error| format!("cannot be asked: {error}\n"),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let card = ask("--query-gpu=memory.total,memory.used,memory.reserved,memory.free");
    card + &ask("--query-compute-apps=pid,used_memory") + &format!("(this process is {})\n", std::process::id())
}
