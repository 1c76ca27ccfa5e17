//! The memory of a card: its parts, the pools in it, the blocks in those.

use std::fmt::{self, Write};

use crate::device::Owner;
use crate::device::pools::{Action, Hits, PoolsSnapshot};
use crate::units::{Bytes, ModelId};

/// A part of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CardPart {
    /// Its name: one of `free`, the kinds of memory, `unpooled`, `fixed`, `graphs`, `others`.
    pub part: &'static str,
    /// Its bytes. All parts together are the card.
    pub bytes: u64,
}

/// A memory pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CardPool {
    /// Whose; none for pools that are everybody's.
    pub model: Option<u32>,
    /// What for.
    pub kind: &'static str,
    /// Bytes that it holds.
    pub reserved_bytes: u64,
    /// The part that something lives in.
    pub used_bytes: u64,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CardBlock {
    /// Whose.
    pub model: Option<u32>,
    /// What for.
    pub kind: &'static str,
    /// Its bytes.
    pub bytes: u64,
}

/// An allocation that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CardEvent {
    /// Counts all of them.
    pub number: u64,
    /// What was done.
    pub action: Action,
    /// For whom.
    pub model: Option<u32>,
    /// What for.
    pub kind: &'static str,
    /// Bytes of the block.
    pub bytes: u64,
    /// What its owner had afterwards.
    pub live_bytes: u64,
}

/// A card and what is on it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CardUse {
    /// Where every byte is.
    pub parts: Vec<CardPart>,
    /// Bytes that the driver counts as this process's and that are in no book; `None` where it does not say.
    pub unattributed_bytes: Option<i64>,
    /// Every pool.
    pub pools: Vec<CardPool>,
    /// The largest blocks, the largest first.
    pub blocks: Vec<CardBlock>,
    /// Recorded allocations, the oldest first; empty unless recording is on.
    pub allocations: Vec<CardEvent>,
    /// Frees of addresses that came from elsewhere.
    pub foreign_frees: u64,
    /// Allocations that failed on purpose.
    pub failed_on_purpose: Hits,
}

impl CardUse {
    /// What the allocator says, beside the parts.
    pub fn new(
        parts: Vec<(&'static str, u64)>,
        unattributed_bytes: Option<i64>,
        snapshot: &PoolsSnapshot,
        failed_on_purpose: Hits,
    ) -> CardUse {
        let number = |owner: Owner| owner.model.map(ModelId::get);
        let pools = snapshot.pools.iter().map(|pool| CardPool {
            model: number(pool.owner),
            kind: pool.owner.kind.as_str(),
            reserved_bytes: pool.reserved.get(),
            used_bytes: pool.used.get(),
        });
        let blocks = snapshot.blocks.iter().map(|block| CardBlock {
            model: number(block.owner),
            kind: block.owner.kind.as_str(),
            bytes: block.bytes.get(),
        });
        let allocations = snapshot.events.iter().map(|event| CardEvent {
            number: event.number,
            action: event.action,
            model: number(event.owner),
            kind: event.owner.kind.as_str(),
            bytes: event.bytes,
            live_bytes: event.live,
        });
        CardUse {
            parts: parts.into_iter().map(|(part, bytes)| CardPart { part, bytes }).collect(),
            unattributed_bytes,
            pools: pools.collect(),
            blocks: blocks.collect(),
            allocations: allocations.collect(),
            foreign_frees: snapshot.foreign_frees,
            failed_on_purpose,
        }
    }

    pub(super) fn write_table(&self, out: &mut String, name: &impl Fn(ModelId) -> String) -> fmt::Result {
        let parts: Vec<_> = self.parts.iter().map(|part| format!("{} {}", part.part, Bytes::new(part.bytes))).collect();
        writeln!(out, "card: {}", parts.join(" + "))?;
        if let Some(unattributed) = self.unattributed_bytes {
            writeln!(out, "unattributed: {:.1} MiB", unattributed as f64 / f64::from(1 << 20))?;
        }
        for pool in &self.pools {
            let owner = pool.model.map_or_else(|| "everybody".to_owned(), |model| name(ModelId::new(model)));
            let (reserved, used) = (Bytes::new(pool.reserved_bytes), Bytes::new(pool.used_bytes));
            writeln!(out, "pool of {owner} for {}: {used} used of {reserved}", pool.kind)?;
        }
        Ok(())
    }
}
