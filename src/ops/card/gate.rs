//! Gated activations on a card.

use candle_core::{Result, Tensor};
use cudarc::driver::PushKernelArg;

use super::VECTOR;
use super::operations::{Operations, launch};
use super::tensors::{address, address_of};
use crate::ops::Activation;

/// Rows that a thread takes.
const ROWS: usize = 4;

/// `planes[0] = activation(planes[0] + bias) * (planes[1] + gate_bias)`, in place; `planes` is (2, rows, width).
pub(crate) fn gate(
    operations: &Operations,
    activation: Activation,
    planes: &Tensor,
    bias: Option<&Tensor>,
    gate_bias: Option<&Tensor>,
) -> Result<()> {
    let (two, rows, width) = planes.dims3()?;
    assert_eq!(two, 2, "what is activated, and its gates");
    if rows == 0 {
        return Ok(());
    }
    let dtype = planes.dtype();
    let function = &operations.functions(dtype)?.gated[activation as usize];
    let (x, gates) = (address(&planes.get(0)?, dtype)?, address(&planes.get(1)?, dtype)?);
    let bias_of = |bias: Option<&Tensor>| bias.map_or(Ok(0), |bias| address_of(bias, dtype, &[width]));
    let (bias, gate_bias) = (bias_of(bias)?, bias_of(gate_bias)?);
    // A thread for each 8 columns, of a whole number of warps and of no more than 4: more blocks hide more.
    let columns = width.div_ceil(VECTOR);
    let threads = columns.next_multiple_of(32).min(128);
    let config = launch((rows.div_ceil(ROWS), columns.div_ceil(threads)), threads as u32, 0)?;
    let (rows, width) = (rows as i32, width as i32);
    let mut arguments = operations.stream.launch_builder(function);
    arguments.arg(&x).arg(&x).arg(&gates).arg(&bias).arg(&gate_bias).arg(&rows).arg(&width);
    // SAFETY: the arguments are those that the kernel declares; it reads and writes `rows` rows of `width` values, whose
    // number is a multiple of 8: both planes begin at multiples of 16 bytes, which `address` has checked.
    unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
    Ok(())
}
