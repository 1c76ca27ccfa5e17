//! Rotary position embedding on a card.

use candle_core::{DType, Result, Tensor, bail};
use cudarc::driver::PushKernelArg;

use super::VECTOR;
use super::layout::Layout;
use super::operations::{Operations, launch};
use super::tensors::{address, address_of};
use crate::ops::Rotation;

/// Turns the queries and keys in `qkv`, (tokens, 3 * heads * size) with their biases, by their positions, in place.
pub(crate) fn rotate(
    operations: &Operations,
    qkv: &Tensor,
    rotation: &Rotation,
    layout: &Layout,
    heads: usize,
) -> Result<()> {
    let (tokens, all) = qkv.dims2()?;
    let (size, dtype) = (all / 3 / heads, qkv.dtype());
    assert!(layout.tokens <= tokens && all == 3 * heads * size, "there are three heads of each kind for every token");
    if !size.is_multiple_of(2 * VECTOR) {
        bail!("heads of {size} values cannot be turned: multiples of {} are possible", 2 * VECTOR);
    }
    if layout.tokens == 0 {
        return Ok(());
    }
    let (limit, half) = rotation.cosines.dims2()?;
    assert_eq!(half, size / 2, "the tables are for heads of this size");
    let cosines = address_of(&rotation.cosines, DType::F32, &[limit, half])?;
    let sines = address_of(&rotation.sines, DType::F32, &[limit, half])?;
    let (x, [_, positions, _]) = (address(qkv, dtype)?, layout.ids());
    // A thread for each 8 pairs of a token's queries and keys, as far as a block goes.
    let threads = (2 * heads * size / (2 * VECTOR)).next_multiple_of(32).min(1024);
    let config = launch((layout.tokens, 1), threads as u32, 0)?;
    let (limit, heads, size) = (limit as u32, heads as i32, size as i32);
    let mut arguments = operations.stream.launch_builder(&operations.functions(dtype)?.rotary);
    arguments.arg(&x).arg(&cosines).arg(&sines).arg(&positions).arg(&limit);
    arguments.arg(&heads).arg(&heads).arg(&size);
    // SAFETY: the arguments are those that the kernel declares; positions outside the tables are read as the last.
    unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
    Ok(())
}
