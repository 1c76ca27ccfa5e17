//! What the operations of one card are launched through: compiled kernels, cublasLt, the stream.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{CudaDevice, DType, Device, Result, Tensor, bail};
use cudarc::driver::sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, LaunchConfig};
use cudarc::nvrtc::Ptx;

use super::attention::{Attention, Modules};
use super::eight_bit::EightBitProducts;
use super::fetch::Pages;
use super::gemm::Gemm;
use super::hopper::Hopper;
use super::product::Epilogue;
use super::tensors::{Address, ordinal};
use super::{QUANTIZED_WIDTHS, VECTOR, WIDTHS};
use crate::ops::{Activation, EightBit};

/// The kernels, compiled for every architecture that the build was told of.
macro_rules! compiled {
    ($($name:literal),+) => { [$(($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")))),+] };
}

static KERNELS: [(&str, &[u8]); 9] =
    compiled!["attention", "attention_hopper", "embed", "norm", "pool", "product", "quantize", "rotary", "activation"];

/// All that runs on one card. One stream, used by one thread at a time.
pub(crate) struct Operations {
    pub(super) stream: Arc<CudaStream>,
    pub(super) gemm: Gemm,
    /// What may multiply codes of 8 bits: all that this card has, or the one that is named.
    /// The first is what does.
    pub(crate) eight_bit: Vec<EightBitProducts>,
    /// Where results go on the host.
    pub(super) pages: Pages,
    f16: Functions,
    bf16: Functions,
}

/// What has been made at its first use and takes memory of the driver's: kernels of products, recordings; and their end.
static MADE: AtomicU64 = AtomicU64::new(0);

/// How much that is: when it has grown, so has what is in no book.
pub(crate) fn made() -> u64 {
    MADE.load(Ordering::Relaxed)
}

/// Counts one more.
pub(super) fn note_made() {
    MADE.fetch_add(1, Ordering::Relaxed);
}

/// By the card's number. A process has one set for each card that it uses, from the first use to its end.
static OPERATIONS: OnceLock<Mutex<HashMap<usize, Arc<Operations>>>> = OnceLock::new();

impl Operations {
    /// Loads everything onto a card, so that no step has to. `scratch` is memory of it that is used by nobody but one
    /// product at a time, for as long as the process lives; of several for one card the last is used.
    ///
    /// # Errors
    /// If the card is of an architecture that the kernels were not compiled for, or has no room for them.
    pub(crate) fn prepare(device: &CudaDevice, number: usize, scratch: (Address, usize)) -> Result<()> {
        let stream = device.cuda_stream();
        let modules = KERNELS
            .iter()
            .map(|(name, code)| {
                let module = stream.context().load_module(Ptx::from_binary(code.to_vec()));
                module.map_err(|error| candle_core::Error::msg(format!("the kernels of {name}: {error}")))
            })
            .collect::<Result<Vec<Arc<CudaModule>>>>()?;
        let (chip, product) = (Chip::of(stream.context()).map_err(candle_core::Error::wrap)?, &modules[5]);
        let hopper = match chip.capability {
            (9, 0) => Some(Hopper::new(product, chip.processors)?),
            _ => None,
        };
        let possible = EightBitProducts::of(chip.capability);
        let named = std::env::var(EightBitProducts::VARIABLE).ok();
        let chosen = EightBitProducts::chosen(possible, named.as_deref())?;
        let operations = Operations {
            gemm: Gemm::new(scratch.0, scratch.1, hopper)?,
            eight_bit: if named.is_some() { vec![chosen] } else { possible.to_vec() },
            pages: Pages::default(),
            f16: Functions::load(&modules, "f16", chip)?,
            bf16: Functions::load(&modules, "bf16", chip)?,
            stream,
        };
        let all = OPERATIONS.get_or_init(Mutex::default);
        all.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(operations));
        Ok(())
    }

    /// Those of the card that a tensor is on.
    ///
    /// # Errors
    /// If it is on none that was prepared.
    pub(crate) fn of(tensor: &Tensor) -> Result<Arc<Operations>> {
        Operations::on(tensor.device())
    }

    fn on(device: &Device) -> Result<Arc<Operations>> {
        let found = ordinal(device).and_then(|number| {
            let all = OPERATIONS.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&number).cloned()
        });
        match found {
            Some(operations) => Ok(operations),
            None => bail!("the tensor is not on a card that was prepared for operations of ours"),
        }
    }

    /// Has what `body` queues on a card prepared for steps of up to `tokens_max` tokens: see [`Gemm::preparing`].
    ///
    /// # Errors
    /// If the device is no card that was prepared for operations of ours.
    pub(crate) fn preparing<R>(device: &Device, tokens_max: usize, body: impl FnOnce() -> R) -> Result<R> {
        Ok(Operations::on(device)?.gemm.preparing(tokens_max, body))
    }

    /// The kernels for activations of a dtype.
    pub(super) fn functions(&self, dtype: DType) -> Result<&Functions> {
        match dtype {
            DType::F16 => Ok(&self.f16),
            DType::BF16 => Ok(&self.bf16),
            other => bail!("there are kernels for f16 and bf16, not for {other:?}"),
        }
    }
}

/// What kernels are chosen by, and how many blocks of them run at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chip {
    pub(super) capability: (i32, i32),
    /// Its multiprocessors.
    pub(super) processors: usize,
}

impl Chip {
    fn of(context: &CudaContext) -> std::result::Result<Chip, DriverError> {
        let processors = context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        Ok(Chip { capability: context.compute_capability()?, processors })
    }
}

/// The compute capability of a card.
///
/// # Errors
/// If the device is none.
pub(crate) fn capability(device: &Device) -> Result<(i32, i32)> {
    let stream = device.as_cuda_device()?.cuda_stream();
    stream.context().compute_capability().map_err(candle_core::Error::wrap)
}

/// Up to this width a row is a warp's, and a block has four.
const WARP_WIDTH: usize = 1024;

/// Threads of a block over rows.
const ROW_THREADS: u32 = 128;

/// The same where the widest rows are quantized.
const WIDEST_THREADS: u32 = 256;

/// The kernels for one dtype.
pub(super) struct Functions {
    /// In the order of [`HEAD_SIZES`](super::HEAD_SIZES).
    pub(super) attention: Vec<Attention>,
    /// In the order of [`WIDTHS`].
    add_norm: Vec<CudaFunction>,
    embed: Vec<CudaFunction>,
    pub(super) pool: CudaFunction,
    pub(super) rotary: CudaFunction,
    /// In the order of [`Activation`].
    pub(super) gated: [CudaFunction; 3],
    int8: Codings,
    fp8: Codings,
}

/// To 8 bits and back.
struct Codings {
    /// In the order of [`QUANTIZED_WIDTHS`].
    quantize: Vec<CudaFunction>,
    /// Passes that write the codes of their result too, in the order of [`WIDTHS`].
    add_norm: Vec<CudaFunction>,
    embed: Vec<CudaFunction>,
    /// Nothing or a bias behind the scales, then GELU by its tanh formula, then max(x, 0).
    plain: CudaFunction,
    gelu: CudaFunction,
    relu: CudaFunction,
}

impl Functions {
    fn load(modules: &[Arc<CudaModule>], dtype: &str, chip: Chip) -> Result<Functions> {
        let [general, hopper, embed, norm, pool, _, quantize, rotary, activation] = modules else {
            unreachable!("there are nine modules")
        };
        let find = |module: &Arc<CudaModule>, name: String| {
            module.load_function(&name).map_err(|error| candle_core::Error::msg(format!("{name}: {error}")))
        };
        let by_widths = |module: &Arc<CudaModule>, name: &str, widths: &[usize]| {
            widths.iter().map(|width| find(module, format!("{name}_{dtype}_{width}"))).collect::<Result<Vec<_>>>()
        };
        let by_width = |module: &Arc<CudaModule>, name: &str| by_widths(module, name, &WIDTHS);
        let codings = |form: &str| -> Result<Codings> {
            let dequantize = |name: &str| find(quantize, format!("dequantize_{name}{form}_{dtype}"));
            Ok(Codings {
                quantize: by_widths(quantize, &format!("quantize_{form}"), &QUANTIZED_WIDTHS)?,
                add_norm: by_width(norm, &format!("add_norm_{form}"))?,
                embed: by_width(embed, &format!("embed_{form}"))?,
                plain: dequantize("")?,
                gelu: dequantize("gelu_tanh_")?,
                relu: dequantize("relu_")?,
            })
        };
        let gated = |function: Activation| {
            let name = match function {
                Activation::Gelu => "gelu",
                Activation::GeluTanh => "gelu_tanh",
                Activation::Relu => "relu",
            };
            find(activation, format!("{name}_gated_{dtype}"))
        };
        Ok(Functions {
            attention: Attention::load(&Modules { general, hopper }, dtype, chip)?,
            add_norm: by_width(norm, "add_norm")?,
            embed: by_width(embed, "embed")?,
            pool: find(pool, format!("pool_{dtype}"))?,
            rotary: find(rotary, format!("rotary_{dtype}"))?,
            gated: [gated(Activation::Gelu)?, gated(Activation::GeluTanh)?, gated(Activation::Relu)?],
            int8: codings("i8")?,
            fp8: codings("f8")?,
        })
    }

    /// The norm for rows of this width, and its launch over so many. With a form it writes codes too.
    pub(super) fn add_norm(
        &self,
        form: Option<EightBit>,
        rows: usize,
        width: usize,
    ) -> Result<(&CudaFunction, LaunchConfig)> {
        let functions = form.map_or(&self.add_norm, |form| &self.codings(form).add_norm);
        by_width(functions, &WIDTHS, rows, width)
    }

    /// The embeddings for rows of this width, and their launch over so many. With a form they write codes too.
    pub(super) fn embed(
        &self,
        form: Option<EightBit>,
        rows: usize,
        width: usize,
    ) -> Result<(&CudaFunction, LaunchConfig)> {
        let functions = form.map_or(&self.embed, |form| &self.codings(form).embed);
        by_width(functions, &WIDTHS, rows, width)
    }

    /// The quantization of rows of this width, and its launch over so many.
    pub(super) fn quantize(&self, form: EightBit, rows: usize, width: usize) -> Result<(&CudaFunction, LaunchConfig)> {
        let (function, mut config) = by_width(&self.codings(form).quantize, &QUANTIZED_WIDTHS, rows, width)?;
        if width > QUANTIZED_WIDTHS[1] {
            config.block_dim.0 = WIDEST_THREADS;
        }
        Ok((function, config))
    }

    /// The pass over sums.
    pub(super) fn dequantize(&self, form: EightBit, epilogue: Epilogue) -> &CudaFunction {
        let Codings { plain, gelu, relu, .. } = self.codings(form);
        match epilogue {
            Epilogue::None | Epilogue::Bias => plain,
            Epilogue::BiasGelu => gelu,
            Epilogue::BiasRelu => relu,
        }
    }

    fn codings(&self, form: EightBit) -> &Codings {
        match form {
            EightBit::Int8 => &self.int8,
            EightBit::Fp8 => &self.fp8,
        }
    }
}

/// The function for rows of this width of those that are compiled for `widths`.
fn by_width<'a>(
    functions: &'a [CudaFunction],
    widths: &[usize],
    rows: usize,
    width: usize,
) -> Result<(&'a CudaFunction, LaunchConfig)> {
    let fitting = widths.iter().position(|largest| width <= *largest).filter(|_| width.is_multiple_of(VECTOR));
    let Some(index) = fitting else {
        bail!("rows of {width} values: multiples of 8 up to {} are possible", widths[widths.len() - 1])
    };
    let blocks = if width <= WARP_WIDTH { rows.div_ceil(ROW_THREADS as usize / 32) } else { rows };
    Ok((&functions[index], launch((blocks, 1), ROW_THREADS, 0)?))
}

/// A launch of `grid` (x, y) blocks.
pub(super) fn launch((x, y): (usize, usize), threads: u32, shared_bytes: u32) -> Result<LaunchConfig> {
    let (Ok(x), Ok(y @ ..=65_535)) = (u32::try_from(x), u32::try_from(y)) else {
        bail!("a launch of {x} x {y} blocks is larger than a card can do");
    };
    Ok(LaunchConfig { grid_dim: (x, y, 1), block_dim: (threads, 1, 1), shared_mem_bytes: shared_bytes })
}
