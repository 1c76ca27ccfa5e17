//! Products of 8-bit codes on Hopper's tensor cores by a kernel of ours (`kernels/product.cu`): scales, bias and activation in the same
//! pass, while the tensor cores work on.

use std::mem::MaybeUninit;
use std::sync::Arc;

use candle_core::{Result, bail};
use cudarc::driver::sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle, cuTensorMapEncodeTiled,
};
use cudarc::driver::{CudaFunction, CudaModule, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};

use super::tensors::Address;

/// Of `kernels/product.cu`: rows and columns of a tile of results, and bytes of a row of each operand's tile.
const TILE: usize = 128;
/// Blocks of a cluster, which share the weights.
const BLOCKS: usize = 2;
const THREADS: u32 = 384;
const STAGES: usize = 6;
/// Tiles of both operands for each stage, what aligns them, and two barriers for each stage.
const SHARED_BYTES: usize = STAGES * 2 * TILE * TILE + 1024 + 2 * STAGES * size_of::<u64>();

/// Rows of an operand begin at multiples of so many bytes, and so do rows of results.
const ALIGNMENT: usize = 16;

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int8,
    E4m3,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Int8, Kind::E4m3];

    fn name(self) -> &'static str {
        match self {
            Kind::Int8 => "int8",
            Kind::E4m3 => "e4m3",
        }
    }
}

/// What follows a product in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    Gelu,
    Relu,
}

impl After {
    const ALL: [After; 3] = [After::Nothing, After::Gelu, After::Relu];

    fn end_of_name(self) -> &'static str {
        match self {
            After::Nothing => "",
            After::Gelu => "_gelu",
            After::Relu => "_relu",
        }
    }
}

/// One product: `y = after(scale * (x * weight transposed) + bias)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) kind: Kind,
    pub(super) after: After,
    pub(super) tokens: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// (tokens, inputs) of the kind, a byte each.
    pub(super) x: Address,
    /// (outputs, inputs) of the kind.
    pub(super) weight: Address,
    /// Of each token and of each output, f32.
    pub(super) scales: [Address; 2],
    /// (outputs), f16, or 0: none.
    pub(super) bias: Address,
    /// (tokens, outputs), of the same dtype.
    pub(super) y: Address,
}

/// The kernels, loaded on a card of compute capability 9.0.
pub(super) struct Hopper {
    /// By kind, then by what follows.
    functions: Vec<Vec<CudaFunction>>,
    /// The card's multiprocessors: as many blocks run at once.
    processors: usize,
}

impl Hopper {
    /// `module` is that of `product`; the card is of compute capability 9.0 and has so many multiprocessors.
    pub(super) fn new(module: &Arc<CudaModule>, processors: usize) -> Result<Hopper> {
        let find = |kind: Kind, after: After| -> Result<CudaFunction> {
            let name = format!("product_{}{}", kind.name(), after.end_of_name());
            let function =
                module.load_function(&name).map_err(|error| candle_core::Error::msg(format!("{name}: {error}")))?;
            function
                .set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, SHARED_BYTES as i32)
                .map_err(candle_core::Error::wrap)?;
            Ok(function)
        };
        let of = |kind: Kind| After::ALL.into_iter().map(|after| find(kind, after)).collect::<Result<Vec<_>>>();
        let functions = Kind::ALL.into_iter().map(of).collect::<Result<Vec<_>>>()?;
        Ok(Hopper { functions, processors })
    }

    /// Whether it can multiply matrices of these sizes.
    fn takes(&self, inputs: usize, outputs: usize) -> bool {
        inputs > 0 && inputs.is_multiple_of(ALIGNMENT) && outputs.is_multiple_of(8)
    }

    /// Queues a product.
    ///
    /// # Errors
    /// If a size is not one that the kernel can take, or the driver refuses.
    pub(super) fn run(&self, product: Product, stream: &CudaStream) -> Result<()> {
        let Product { kind, after, tokens, inputs, outputs, x, weight, scales, bias, y } = product;
        if tokens == 0 {
            return Ok(());
        }
        let sizes = [tokens, inputs, outputs].map(i32::try_from);
        let [Ok(rows), Ok(bytes), Ok(results)] = sizes else { bail!("{product:?} is larger than the kernel counts") };
        if !self.takes(inputs, outputs) {
            bail!("the kernel takes rows in multiples of {ALIGNMENT} bytes: {product:?}");
        }
        let x_map = Map::new(x, tokens, inputs, TILE)?;
        let weight_map = Map::new(weight, outputs, inputs, TILE / BLOCKS)?;
        let tiles = tokens.div_ceil(BLOCKS * TILE) * outputs.div_ceil(TILE) * BLOCKS;
        let blocks = tiles.min(self.processors / BLOCKS * BLOCKS);
        let function = &self.functions[kind as usize][after as usize];
        let config = LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: SHARED_BYTES as u32,
        };
        let mut arguments = stream.launch_builder(function);
        arguments.arg(&x_map).arg(&weight_map).arg(&y).arg(&scales[0]).arg(&scales[1]).arg(&bias);
        arguments.arg(&rows).arg(&bytes).arg(&results);
        // SAFETY: the arguments are those that the kernel declares; what it reads and writes lies inside the matrices that
        // the caller's addresses are of, by the maps and by the sizes.
        unsafe { arguments.launch(config) }.map_err(candle_core::Error::wrap)?;
        Ok(())
    }
}

/// Where the copy engine finds the boxes of a matrix of bytes.
#[repr(transparent)]
struct Map(CUtensorMap);

// SAFETY: it is plain data that a kernel takes by value.
unsafe impl DeviceRepr for Map {}

impl Map {
    /// Of (rows, columns) bytes at `address`, in boxes of `box_rows` rows of [`TILE`] bytes.
    fn new(address: Address, rows: usize, columns: usize, box_rows: usize) -> Result<Map> {
        let mut map = MaybeUninit::<CUtensorMap>::uninit();
        let (sizes, strides) = ([columns as u64, rows as u64], [columns as u64]);
        let (boxes, steps) = ([TILE as u32, box_rows as u32], [1u32, 1]);
        // SAFETY: all arrays are as long as a matrix of two dimensions needs them, and the map is aligned as its type is.
        unsafe {
            cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                sizes.len() as u32,
                address as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(candle_core::Error::wrap)?;
        // SAFETY: the driver has filled it.
        Ok(Map(unsafe { map.assume_init() }))
    }
}
