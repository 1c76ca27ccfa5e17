//! Attention over ragged rows, by the fastest of the kernels that a card can run.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};
use cudarc::driver::sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use cudarc::driver::{CudaFunction, CudaModule, PushKernelArg};

use super::layout::Layout;
use super::operations::{Chip, Operations, launch};
use super::tensors::{address, address_of};
use super::{HEAD_SIZES, TILE};
use crate::ops::Sight;

/// Keys of a tile, of which there are two, and two of their values, beside the queries (Hopper's: of two tiles).
const KEYS: usize = 64;

/// What computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionKernels {
    /// `kernels/attention.cu`: every card, every size of heads.
    General,
    /// `kernels/attention_hopper.cu`: by Hopper's own instructions, heads of 64.
    Hopper,
}

impl AttentionKernels {
    /// Those that a card of this compute capability can run with heads of this size, the fastest first: the place for
    /// kernels that are written for one kind of card.
    pub(crate) const fn of(capability: (i32, i32), size: usize) -> &'static [AttentionKernels] {
        match (capability, size) {
            ((9, 0), 64) => &[AttentionKernels::Hopper, AttentionKernels::General],
            (_, _) => &[AttentionKernels::General],
        }
    }
}

/// The kernels for one dtype and one size of heads, by what they are.
pub(super) struct Attention(Vec<(AttentionKernels, Forms)>);

/// Both forms: see [`tiles`](super::tiles).
struct Forms {
    short: Tiled,
    long: Tiled,
}

/// A form of attention.
struct Tiled {
    function: CudaFunction,
    threads: u32,
    shared_bytes: u32,
    /// As many blocks as the card holds at once, where each computes one tile after the other; else a block is for one.
    at_once: Option<usize>,
}

/// Where the kernels are.
pub(super) struct Modules<'a> {
    pub(super) general: &'a Arc<CudaModule>,
    pub(super) hopper: &'a Arc<CudaModule>,
}

impl Attention {
    /// Loads those for a dtype, by its name in kernels, in the order of [`HEAD_SIZES`].
    pub(super) fn load(modules: &Modules, dtype: &str, chip: Chip) -> Result<Vec<Attention>> {
        let of_size = |size: usize| {
            let forms = |kernels: &AttentionKernels| {
                Ok((*kernels, Forms::load(modules, *kernels, dtype, size, chip.processors)?))
            };
            Ok(Attention(AttentionKernels::of(chip.capability, size).iter().map(forms).collect::<Result<_>>()?))
        };
        HEAD_SIZES.into_iter().map(of_size).collect()
    }
}

impl Forms {
    fn load(
        modules: &Modules,
        kernels: AttentionKernels,
        dtype: &str,
        size: usize,
        processors: usize,
    ) -> Result<Forms> {
        let tiled = |long: bool| -> Result<Tiled> {
            let (end, queries) = if long { ("_long", 2 * TILE) } else { ("", TILE) };
            // Threads, and bytes: queries and four tiles, in rows with 8 elements between them or swizzled and aligned.
            let (module, name, threads, bytes) = match kernels {
                AttentionKernels::General => {
                    // Of 64 values a warp of the long form has 32 queries, else 16.
                    let threads = if long && size != 64 { 256 } else { 128 };
                    (modules.general, "attention", threads, (queries + 4 * KEYS) * (size + 8) * 2)
                }
                AttentionKernels::Hopper => {
                    (modules.hopper, "attention_hopper", 2 * queries, (2 * queries + 4 * KEYS) * size * 2 + 1024)
                }
            };
            let name = format!("{name}_{dtype}_{size}{end}");
            let function =
                module.load_function(&name).map_err(|error| candle_core::Error::msg(format!("{name}: {error}")))?;
            function
                .set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes as i32)
                .map_err(candle_core::Error::wrap)?;
            let (threads, shared_bytes) = (threads as u32, bytes as u32);
            let at_once = match kernels {
                AttentionKernels::General => None,
                AttentionKernels::Hopper => {
                    let blocks = function.occupancy_max_active_blocks_per_multiprocessor(threads, bytes, None);
                    Some(blocks.map_err(candle_core::Error::wrap)? as usize * processors)
                }
            };
            Ok(Tiled { function, threads, shared_bytes, at_once })
        };
        Ok(Forms { short: tiled(false)?, long: tiled(true)? })
    }
}

/// Attention of every position to what it sees of its row. `qkv` is (tokens, 3 * heads * size) with its biases, `out`
/// (tokens, heads * size).
pub(crate) fn attention(
    operations: &Operations,
    qkv: &Tensor,
    layout: &Layout,
    heads: usize,
    sight: Sight,
    out: &Tensor,
) -> Result<()> {
    attention_by(operations, None, qkv, layout, heads, sight, out)
}

/// The same by some of the card's kernels, for comparing; `None`: by the fastest.
pub(crate) fn attention_by(
    operations: &Operations,
    kernels: Option<AttentionKernels>,
    qkv: &Tensor,
    layout: &Layout,
    heads: usize,
    sight: Sight,
    out: &Tensor,
) -> Result<()> {
    let (tokens, width) = out.dims2()?;
    let (size, dtype) = (width / heads, out.dtype());
    let Attention(known) = operations.attention_of(dtype, size)?;
    if layout.tiles == 0 {
        return Ok(());
    }
    if 3 * width * tokens > u32::MAX as usize {
        bail!("{tokens} tokens are more than attention indexes");
    }
    let found = known.iter().find(|(known, _)| kernels.is_none_or(|wanted| wanted == *known));
    let Some((_, forms)) = found else {
        bail!("heads of {size} have no such kernels of attention on this card: {kernels:?}");
    };
    let tiled = if layout.long { &forms.long } else { &forms.short };
    let (qkv, out) = (address_of(qkv, dtype, &[tokens, 3 * width])?, address(out, dtype)?);
    let (tiles, key_heads, stride) = (layout.tile_list(), heads as i32, 3 * width as u32);
    // The kernel's exponents are of 2.
    let scale = std::f32::consts::LOG2_E / (size as f32).sqrt();
    let reach = sight.reach() as i32;
    let tile_count = i32::try_from(layout.tiles).map_err(candle_core::Error::wrap)?;
    // Where a block computes several tiles, more blocks than there is room for would only wait for it.
    let of_head = tiled.at_once.map_or(layout.tiles, |blocks| layout.tiles.min((blocks / heads).max(1)));
    let config = launch((heads, of_head), tiled.threads, tiled.shared_bytes)?;
    let mut arguments = operations.stream.launch_builder(&tiled.function);
    arguments.arg(&qkv).arg(&out).arg(&tiles).arg(&key_heads).arg(&stride).arg(&scale);
    arguments.arg(&reach).arg(&reach);
    if tiled.at_once.is_some() {
        arguments.arg(&tile_count);
    }
    // SAFETY: the arguments are those that the kernel declares; the tensors have the shapes that it reads and writes, as
    // far as the tiles say, which are inside the rows.
    unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
    Ok(())
}

impl Operations {
    /// The kernels of attention for heads of this size, the one that is used first.
    ///
    /// # Errors
    /// If there are none for this dtype and size.
    pub(crate) fn attention_kernels(&self, dtype: DType, size: usize) -> Result<Vec<AttentionKernels>> {
        Ok(self.attention_of(dtype, size)?.0.iter().map(|(kernels, _)| *kernels).collect())
    }

    fn attention_of(&self, dtype: DType, size: usize) -> Result<&Attention> {
        let Some(index) = HEAD_SIZES.iter().position(|known| *known == size) else {
            bail!("attention is compiled for heads of {HEAD_SIZES:?} values, not of {size}");
        };
        Ok(&self.functions(dtype)?.attention[index])
    }
}
