//! The operations: each checks what it is given and queues its kernel.

use candle_core::{DType, Result, Tensor, bail};
use cudarc::driver::PushKernelArg;

use super::cublas_lt::Places;
use super::eight_bit::Codes;
use super::layout::Layout;
use super::operations::{Operations, launch};
use super::product::{Elements, Epilogue, Product};
use super::tensors::{address, address_of, memory};
use crate::config::Pooling;
use crate::ops::label::operation;
use crate::ops::matrix::Held;
use crate::ops::{Matrix, Norm, Tables};

/// Threads of a block that pools a row.
const POOL_THREADS: u32 = 512;

/// `y = x * weight transposed`, and what follows: the bias of each output, an activation. `x` (tokens, inputs)
/// and `y` (tokens, outputs) are of the dtype of the weights.
pub(crate) fn linear(
    operations: &Operations,
    x: &Tensor,
    weight: &Matrix,
    bias: Option<&Tensor>,
    epilogue: Epilogue,
    y: &Tensor,
) -> Result<()> {
    product(operations, x, weight, bias, (epilogue, false), y)
}

/// `y = y + x * weight transposed + bias`: what [`linear`] would give, taken up by a sum.
pub(crate) fn add_linear(
    operations: &Operations,
    x: &Tensor,
    weight: &Matrix,
    bias: Option<&Tensor>,
    y: &Tensor,
) -> Result<()> {
    let epilogue = if bias.is_some() { Epilogue::Bias } else { Epilogue::None };
    product(operations, x, weight, bias, (epilogue, true), y)
}

/// `onto`: see [`Product::onto`].
fn product(
    operations: &Operations,
    x: &Tensor,
    weight: &Matrix,
    bias: Option<&Tensor>,
    (epilogue, onto): (Epilogue, bool),
    y: &Tensor,
) -> Result<()> {
    let Held::Rows(weights) = weight.held() else { bail!("the matrix is not of 16 bits a weight") };
    let (tokens, inputs) = x.dims2()?;
    let (outputs, dtype) = (weight.rows(), weights.dtype());
    assert_eq!(inputs, weight.columns(), "a product's matrices fit");
    let bias = match (epilogue, bias) {
        (Epilogue::None, _) => 0,
        (_, Some(bias)) => address_of(bias, dtype, &[outputs])?,
        (_, None) => bail!("there is no bias to add"),
    };
    let places = Places {
        x: address(x, dtype)?,
        weight: address_of(weights, dtype, &[outputs, inputs])?,
        bias,
        y: address_of(y, dtype, &[tokens, outputs])?,
        x_scales: 0,
        weight_scales: 0,
    };
    let product = Product { elements: Elements::of(dtype)?, tokens, inputs, outputs, epilogue, onto, places };
    operations.gemm.run(product, &operations.stream)
}

/// What a norm is taken of, and where it goes. All but the bias are (tokens, width).
#[derive(Clone, Copy)]
pub(crate) struct Summed<'a> {
    /// Becomes the norm, or the sum where the norm goes elsewhere.
    pub(crate) x: &'a Tensor,
    /// What is added to it, and the bias of that.
    pub(crate) delta: Option<(&'a Tensor, Option<&'a Tensor>)>,
    /// Where the norm goes instead: may be `delta`.
    pub(crate) out: Option<&'a Tensor>,
}

/// `norm(x + delta + bias)`, row by row, or `norm(x)`. With `codes` those of the result are written in the same pass, as
/// [`quantize`](super::quantize) does.
pub(crate) fn add_norm(
    operations: &Operations,
    norm: &Norm,
    summed: Summed<'_>,
    layout: &Layout,
    codes: Option<&Codes>,
) -> Result<()> {
    let Summed { x, delta, out } = summed;
    let (rows, width) = x.dims2()?;
    let dtype = x.dtype();
    assert!(layout.tokens <= rows, "there is a row for every token");
    if layout.tokens == 0 {
        return Ok(());
    }
    let form = codes.map(|codes| codes.form);
    let (function, config) = operations.functions(dtype)?.add_norm(form, layout.tokens, width)?;
    let codes = codes.map(|codes| codes.addresses(layout.tokens, width)).transpose()?;
    let x = address(x, dtype)?;
    let (out, sum) = match out {
        // Where nothing is added the sum is there already.
        Some(out) => (address_of(out, dtype, &[rows, width])?, if delta.is_some() { x } else { 0 }),
        None => (x, 0),
    };
    // The kernel takes what may be missing second.
    let (first, second, bias) = match delta {
        Some((delta, bias)) => {
            let bias = bias.map_or(Ok(0), |bias| address_of(bias, dtype, &[width]))?;
            (address_of(delta, dtype, &[rows, width])?, x, bias)
        }
        None => (x, 0, 0),
    };
    let (weight, offset) = (address_of(&norm.weight, dtype, &[width])?, address_of(&norm.bias, dtype, &[width])?);
    let (tokens, width) = (layout.tokens as i32, width as i32);
    let mut arguments = operations.stream.launch_builder(function);
    arguments.arg(&out).arg(&sum);
    if let Some((codes, scales)) = &codes {
        arguments.arg(codes).arg(scales);
    }
    arguments.arg(&first).arg(&second).arg(&bias).arg(&weight).arg(&offset);
    arguments.arg(&tokens).arg(&width).arg(&norm.epsilon);
    // SAFETY: the arguments are those that the kernel declares; it reads and writes `tokens` rows of `width` values.
    unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
    Ok(())
}

/// The normalized sum of word, position and type embeddings into `out` (tokens, width), and its codes as [`add_norm`]
/// writes them.
pub(crate) fn embed(
    operations: &Operations,
    tables: &Tables,
    norm: &Norm,
    layout: &Layout,
    out: &Tensor,
    codes: Option<&Codes>,
) -> Result<()> {
    let (rows, width) = out.dims2()?;
    let dtype = out.dtype();
    assert!(layout.tokens <= rows, "there is a row for every token");
    if layout.tokens == 0 {
        return Ok(());
    }
    let form = codes.map(|codes| codes.form);
    let (function, config) = operations.functions(dtype)?.embed(form, layout.tokens, width)?;
    let codes = codes.map(|codes| codes.addresses(layout.tokens, width)).transpose()?;
    let table = |matrix: Option<&Matrix>| match matrix.map(|matrix| (matrix.held(), matrix.rows())) {
        Some((Held::Rows(held), rows)) => Ok((address_of(held, dtype, &[rows, width])?, rows as u32)),
        Some(_) => bail!("the table is not held as it is read"),
        None => Ok((0, 0)),
    };
    let [word_ids, position_ids, type_ids] = layout.ids();
    let words = table(Some(&tables.words))?;
    let (positions, types) = (table(tables.positions.as_ref())?, table(tables.types.as_ref())?);
    let (weight, offset) = (address_of(&norm.weight, dtype, &[width])?, address_of(&norm.bias, dtype, &[width])?);
    let (out, tokens, width) = (address(out, dtype)?, layout.tokens as i32, width as i32);
    let mut arguments = operations.stream.launch_builder(function);
    arguments.arg(&out);
    if let Some((codes, scales)) = &codes {
        arguments.arg(codes).arg(scales);
    }
    arguments.arg(&words.0).arg(&word_ids).arg(&words.1);
    arguments.arg(&positions.0).arg(&position_ids).arg(&positions.1);
    arguments.arg(&types.0).arg(&type_ids).arg(&types.1);
    arguments.arg(&weight).arg(&offset).arg(&tokens).arg(&width).arg(&norm.epsilon);
    // SAFETY: the arguments are those that the kernel declares; ids outside their table are read as its last row.
    unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
    Ok(())
}

/// Memory for one vector for each row of the layout, as wide as hidden states.
pub(crate) fn vectors(layout: &Layout, hidden: &Tensor) -> Result<Tensor> {
    let (rows, width) = (layout.rows, hidden.dim(1)?);
    operation("results", &[rows, width], || memory(rows * width, DType::F32, hidden.device()))?.reshape((rows, width))
}

/// One vector for each row, (rows, width) in f32.
pub(crate) fn pool(operations: &Operations, hidden: &Tensor, layout: &Layout, pooling: Pooling) -> Result<Tensor> {
    let out = vectors(layout, hidden)?;
    pool_into(operations, hidden, layout, pooling, &out)?;
    layout.results(&out)
}

/// The same into `out`, with a vector of zeros for each row of the layout that has no tokens.
pub(crate) fn pool_into(
    operations: &Operations,
    hidden: &Tensor,
    layout: &Layout,
    pooling: Pooling,
    out: &Tensor,
) -> Result<()> {
    let (tokens, width) = hidden.dims2()?;
    let dtype = hidden.dtype();
    assert!(layout.tokens <= tokens, "there is a row for every token");
    if layout.rows == 0 {
        return Ok(());
    }
    let function = &operations.functions(dtype)?.pool;
    let config = launch((layout.rows, 1), POOL_THREADS, 0)?;
    let to = address_of(out, DType::F32, &[layout.rows, width])?;
    let (from, starts) = (address(hidden, dtype)?, layout.starts());
    let which = match pooling {
        Pooling::Mean => 0i32,
        Pooling::Cls => 1,
        Pooling::Last => 2,
    };
    let (columns, as_it_is) = (width as i32, 0i32);
    let mut arguments = operations.stream.launch_builder(function);
    arguments.arg(&to).arg(&from).arg(&starts).arg(&columns).arg(&which).arg(&as_it_is);
    // SAFETY: the arguments are those that the kernel declares; rows end inside the tokens.
    unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
    Ok(())
}
