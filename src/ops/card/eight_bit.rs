//! Products of 8-bit codes: activations are quantized token by token, multiplied with a matrix of codes, and come out in
//! 16 bits with everything that follows.
//!
//! What multiplies is chosen by the card: see [`EightBitProducts`]. cublasLt gives sums (int8: i32, fp8: f32), which lie
//! in the scratch of products until a pass over them makes results: slices of tokens are as long as fits there. Where it
//! can scale fp8's sums itself, a product is a single pass.

use candle_core::{DType, Device, Result, Tensor, bail};
use cudarc::driver::PushKernelArg;

use super::cublas_lt::Places;
use super::hopper::Kind;
use super::operations::{Operations, launch};
use super::product::{Elements, Epilogue, Product};
use super::tensors::{Address, address, address_of, memory};
use super::{EIGHT_BIT_STEP, VECTOR};
use crate::ops::matrix::Held;
use crate::ops::{EightBit, Matrix};

/// Rows that a block of the pass over sums takes, and its most threads.
const DEQUANTIZE_ROWS: usize = 4;
const DEQUANTIZE_THREADS: usize = 128;

/// Slices of tokens are multiples of this, so that their places are as even as those of whole matrices.
const SLICE_STEP: usize = 128;

/// What multiplies codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EightBitProducts {
    /// cublasLt, and our pass over its sums.
    CublasLt,
    /// The kernel of ours for Hopper: all in one pass.
    Hopper,
}

impl EightBitProducts {
    /// The variable of the environment that names what is used instead of a card's first: for comparing.
    pub(super) const VARIABLE: &str = "PLIMSOLL_EIGHT_BIT_PRODUCTS";

    /// Those that a card of this compute capability can run, the one that is used first: the place for kernels that are
    /// written for one kind of card.
    pub(super) const fn of(capability: (i32, i32)) -> &'static [EightBitProducts] {
        match capability {
            (9, 0) => &[EightBitProducts::Hopper, EightBitProducts::CublasLt],
            (_, _) => &[EightBitProducts::CublasLt],
        }
    }

    /// Its name in the environment and in tables.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            EightBitProducts::CublasLt => "cublaslt",
            EightBitProducts::Hopper => "hopper",
        }
    }

    /// Whether results can have this dtype.
    pub(crate) const fn give(self, dtype: DType) -> bool {
        match self {
            EightBitProducts::CublasLt => matches!(dtype, DType::F16 | DType::BF16),
            EightBitProducts::Hopper => matches!(dtype, DType::F16),
        }
    }

    /// The one that is named, or else the first.
    pub(super) fn chosen(possible: &[EightBitProducts], named: Option<&str>) -> Result<EightBitProducts> {
        let found = possible.iter().find(|products| named.is_none_or(|name| products.as_str() == name));
        let names: Vec<_> = possible.iter().map(|products| products.as_str()).collect();
        match found {
            Some(products) => Ok(*products),
            None => bail!("{}: on this card it is one of {}", Self::VARIABLE, names.join(", ")),
        }
    }
}

/// Memory for the activations of one product at a time in 8 bits.
pub(crate) struct Codes {
    pub(super) form: EightBit,
    /// u8, `tokens` * the widest input.
    values: Tensor,
    /// f32, (tokens).
    scales: Tensor,
}

impl Codes {
    /// For rows of up to `width` values.
    pub(crate) fn new(form: EightBit, tokens: usize, width: usize, device: &Device) -> Result<Codes> {
        let (values, scales) = (memory(tokens * width, DType::U8, device)?, memory(tokens, DType::F32, device)?);
        Ok(Codes { form, values, scales })
    }

    /// All memory of it.
    pub(crate) fn all(&self) -> [&Tensor; 2] {
        [&self.values, &self.scales]
    }

    /// The codes of `tokens` rows of `width` values, and the scale of each: for comparing.
    pub(crate) fn parts(&self, tokens: usize, width: usize) -> Result<(Tensor, Tensor)> {
        Ok((self.values.narrow(0, 0, tokens * width)?.reshape((tokens, width))?, self.scales.narrow(0, 0, tokens)?))
    }

    /// Of the codes and of the scales of `tokens` rows of `width` values.
    pub(super) fn addresses(&self, tokens: usize, width: usize) -> Result<(Address, Address)> {
        let enough = self.values.elem_count() >= tokens * width && self.scales.elem_count() >= tokens;
        assert!(enough, "there is memory for every code");
        Ok((address(&self.values, DType::U8)?, address(&self.scales, DType::F32)?))
    }
}

/// Writes the codes of `x` (tokens, width) and the scale of each token.
pub(crate) fn quantize(operations: &Operations, x: &Tensor, codes: &Codes) -> Result<()> {
    let (tokens, width) = x.dims2()?;
    if tokens == 0 {
        return Ok(());
    }
    let dtype = x.dtype();
    let (function, config) = operations.functions(dtype)?.quantize(codes.form, tokens, width)?;
    let ((to, scales), from) = (codes.addresses(tokens, width)?, address(x, dtype)?);
    let (rows, columns) = (tokens as i32, width as i32);
    let mut arguments = operations.stream.launch_builder(function);
    arguments.arg(&to).arg(&scales).arg(&from).arg(&rows).arg(&columns);
    // SAFETY: the arguments are those that the kernel declares; it reads `tokens` rows of `width` values and writes as many
    // codes and a scale for each row.
    unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
    Ok(())
}

/// `y = x * weight transposed`, and what follows, of activations whose codes were written last: see
/// [`linear`](super::linear). `y` (tokens, outputs) is f16 or bf16, as the bias is.
pub(crate) fn linear_eight_bit(
    operations: &Operations,
    products: EightBitProducts,
    x: &Codes,
    weight: &Matrix,
    bias: Option<&Tensor>,
    epilogue: Epilogue,
    y: &Tensor,
) -> Result<()> {
    let Held::Codes { form, codes, scales } = weight.held() else { bail!("the matrix is not held as codes") };
    let ((tokens, outputs), inputs, dtype) = (y.dims2()?, weight.columns(), y.dtype());
    assert_eq!((outputs, x.form), (weight.rows(), *form), "a product's matrices fit");
    if !inputs.is_multiple_of(EIGHT_BIT_STEP) || !outputs.is_multiple_of(EIGHT_BIT_STEP) {
        bail!("a matrix of {outputs} x {inputs}: 8-bit products are of multiples of {EIGHT_BIT_STEP}");
    }
    if !products.give(dtype) {
        bail!("{} gives no results in {dtype:?}", products.as_str());
    }
    if tokens == 0 {
        return Ok(());
    }
    let bias = match (epilogue, bias) {
        (Epilogue::None, _) => 0,
        (_, Some(bias)) => address_of(bias, dtype, &[outputs])?,
        (_, None) => bail!("there is no bias to add"),
    };
    let (x, x_scales) = x.addresses(tokens, inputs)?;
    let places = Places {
        x,
        weight: address_of(codes, DType::U8, &[outputs, inputs])?,
        bias,
        y: address(y, dtype)?,
        x_scales,
        weight_scales: address_of(scales, DType::F32, &[outputs])?,
    };
    let asked = Asked { form: *form, dtype, tokens, inputs, outputs, epilogue, places };
    match products {
        EightBitProducts::CublasLt => asked.by_cublas_lt(operations),
        EightBitProducts::Hopper => asked.on_hopper(operations),
    }
}

/// A product, whatever computes it.
#[derive(Clone, Copy)]
struct Asked {
    form: EightBit,
    /// Of the bias and of what comes out.
    dtype: DType,
    tokens: usize,
    inputs: usize,
    outputs: usize,
    epilogue: Epilogue,
    places: Places,
}

impl Asked {
    fn on_hopper(self, operations: &Operations) -> Result<()> {
        let Some(hopper) = operations.gemm.hopper() else { bail!("the card is not of compute capability 9.0") };
        let (kind, elements) = match self.form {
            EightBit::Int8 => (Kind::Int8, Elements::Int8),
            EightBit::Fp8 => (Kind::E4m3, Elements::Fp8),
        };
        hopper.run(self.product(elements).as_kind(kind), &operations.stream)
    }

    fn product(self, elements: Elements) -> Product {
        let Asked { tokens, inputs, outputs, epilogue, places, .. } = self;
        Product { elements, tokens, inputs, outputs, epilogue, onto: false, places }
    }

    fn by_cublas_lt(self, operations: &Operations) -> Result<()> {
        let Asked { form, dtype, tokens, outputs, .. } = self;
        let elements = match (form, dtype) {
            (EightBit::Int8, _) => Elements::Int8,
            (EightBit::Fp8, DType::BF16) => Elements::Fp8ToBf16,
            (EightBit::Fp8, _) => Elements::Fp8ToF16,
        };
        if elements.are_scaled() && operations.gemm.run_if_known(self.product(elements), &operations.stream)? {
            return Ok(());
        }
        let (sums, bytes) = operations.gemm.sums();
        let slice = bytes / (size_of::<f32>() * outputs) / SLICE_STEP * SLICE_STEP;
        if slice == 0 {
            bail!("the sums of {outputs} outputs do not fit into the scratch of products");
        }
        for first in (0..tokens).step_by(slice) {
            let piece = self.slice(first, slice.min(tokens - first));
            let elements = if form == EightBit::Int8 { Elements::Int8 } else { Elements::Fp8 };
            let places = Places { y: sums, ..piece.places };
            let product = Asked { epilogue: Epilogue::None, places, ..piece }.product(elements);
            operations.gemm.run(product, &operations.stream)?;
            piece.dequantize(operations, sums)?;
        }
        Ok(())
    }

    /// The product of some of its tokens.
    fn slice(self, first: usize, tokens: usize) -> Asked {
        let behind = |address: Address, bytes: usize| address + (first * bytes) as Address;
        let places = Places {
            x: behind(self.places.x, self.inputs),
            y: behind(self.places.y, self.outputs * self.dtype.size_in_bytes()),
            x_scales: behind(self.places.x_scales, size_of::<f32>()),
            ..self.places
        };
        Asked { tokens, places, ..self }
    }

    /// Results of sums.
    fn dequantize(self, operations: &Operations, sums: Address) -> Result<()> {
        let Asked { form, dtype, tokens, outputs, epilogue, places, .. } = self;
        let function = operations.functions(dtype)?.dequantize(form, epilogue);
        let threads = outputs.div_ceil(VECTOR).next_multiple_of(32).min(DEQUANTIZE_THREADS);
        let blocks = (tokens.div_ceil(DEQUANTIZE_ROWS), outputs.div_ceil(VECTOR * threads));
        let config = launch(blocks, threads as u32, 0)?;
        let (rows, columns) = (tokens as i32, outputs as i32);
        let mut arguments = operations.stream.launch_builder(function);
        arguments.arg(&places.y).arg(&sums).arg(&places.x_scales).arg(&places.weight_scales).arg(&places.bias);
        arguments.arg(&rows).arg(&columns);
        // SAFETY: the arguments are those that the kernel declares; it reads `tokens` rows of `outputs` sums, which the
        // product before it wrote, and writes as many results.
        unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_uses_the_first_unless_another_is_named() -> Result<()> {
        for capability in [(8, 0), (8, 9), (9, 0), (12, 0)] {
            let possible = EightBitProducts::of(capability);
            assert_eq!(EightBitProducts::chosen(possible, None)?, possible[0]);
            for products in possible {
                assert_eq!(EightBitProducts::chosen(possible, Some(products.as_str()))?, *products);
            }
            let refused = EightBitProducts::chosen(possible, Some("abacus")).expect_err("no card has one").to_string();
            assert!(refused.contains(EightBitProducts::VARIABLE) && refused.contains("cublaslt"), "{refused}");
        }
        Ok(())
    }
}
