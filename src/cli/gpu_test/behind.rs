//! 100 MiB taken behind the books' back are seen, to the MiB, as the others'.

use anyhow::{anyhow, ensure};

use super::stage::{Stage, mib};

const BYTES: u64 = 100 << 20;
const TOLERANCE: u64 = 2 << 20;

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    let (card, driver) = (stage.card(), stage.card().driver());
    let before = card.parts()?;
    let pointer = driver.alloc_behind_the_books(BYTES).map_err(|error| anyhow!("{error}"))?;
    let during = card.parts()?;
    driver.free_behind_the_books(pointer).map_err(|error| anyhow!("{error}"))?;
    let after = card.parts()?;
    let seen = during.others.saturating_sub(before.others);
    ensure!(seen.abs_diff(BYTES) <= TOLERANCE, "{} were seen of {}", mib(seen), mib(BYTES));
    ensure!(after.others.abs_diff(before.others) <= TOLERANCE, "{} stayed", mib(after.others.abs_diff(before.others)));
    let ours = match (before.unattributed, during.unattributed) {
        (Some(before), Some(during)) => format!(", {} of it unattributed", mib((during - before).max(0) as u64)),
        _ => String::new(),
    };
    Ok(format!("{} seen of {}{ours}", mib(seen), mib(BYTES)))
}
