//! cublasLt's descriptors of a product, which end with it.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::CudaStream;

use super::gemm::Gemm;
use super::product::{Elements, Epilogue, Key};
use super::tensors::Address;

/// One of cublasLt's ways to compute a product.
pub(super) type Algorithm = sys::cublasLtMatmulAlgo_t;

/// Where the parts of a product lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// (tokens, inputs)
    pub(super) x: Address,
    /// (outputs, inputs)
    pub(super) weight: Address,
    /// (outputs), for epilogues that add it.
    pub(super) bias: Address,
    /// (tokens, outputs): what comes out, and what it is added to, where it is.
    pub(super) y: Address,
    /// f32 (tokens) and (outputs), for elements that have them.
    pub(super) x_scales: Address,
    pub(super) weight_scales: Address,
}

/// cublasOperation_t's name for "transposed".
const TRANSPOSED: i32 = 1;

/// Descriptors' attributes that toolkits before 12.8 have no name for: what A's and B's scales are.
const A_SCALE_MODE: u32 = 31;
const B_SCALE_MODE: u32 = 32;

/// One for each row of A or column of B. Libraries before 12.9 refuse it.
const OUTER_VECTOR: i32 = 3;

unsafe extern "C" {
    /// The function of the bindings, for attributes that theirs cannot say.
    fn cublasLtMatmulDescSetAttribute(
        operation: sys::cublasLtMatmulDesc_t,
        attribute: u32,
        value: *const c_void,
        bytes: usize,
    ) -> sys::cublasStatus_t;
}

/// What is multiplied, in cublasLt's terms.
pub(super) struct Shape {
    operation: sys::cublasLtMatmulDesc_t,
    weight: Layout,
    x: Layout,
    y: Layout,
    elements: Elements,
    epilogue: Epilogue,
    onto: bool,
}

impl Shape {
    pub(super) fn new(key: Key) -> Result<Shape, CublasError> {
        use sys::cudaDataType as Type;
        let Key { elements, tokens, inputs, outputs, epilogue, onto } = key;
        let (from, to) = match elements {
            Elements::F16 => (Type::CUDA_R_16F, Type::CUDA_R_16F),
            Elements::Bf16 => (Type::CUDA_R_16BF, Type::CUDA_R_16BF),
            Elements::Int8 => (Type::CUDA_R_8I, Type::CUDA_R_32I),
            Elements::Fp8 => (Type::CUDA_R_8F_E4M3, Type::CUDA_R_32F),
            Elements::Fp8ToF16 => (Type::CUDA_R_8F_E4M3, Type::CUDA_R_16F),
            Elements::Fp8ToBf16 => (Type::CUDA_R_8F_E4M3, Type::CUDA_R_16BF),
        };
        let weight = Layout::new(from, inputs, outputs)?;
        let x = Layout::new(from, inputs, tokens)?;
        let y = Layout::new(to, outputs, tokens)?;
        use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32I};
        let operation = match elements {
            Elements::Int8 => result::create_matmul_desc(CUBLAS_COMPUTE_32I, Type::CUDA_R_32I)?,
            _ => result::create_matmul_desc(CUBLAS_COMPUTE_32F, Type::CUDA_R_32F)?,
        };
        let shape = Shape { operation, weight, x, y, elements, epilogue, onto };
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        shape.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        let kind = match epilogue {
            Epilogue::None => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::BiasGelu => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS,
            Epilogue::BiasRelu => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        shape.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &kind)?;
        if elements.are_scaled() {
            for mode in [A_SCALE_MODE, B_SCALE_MODE] {
                let value = std::ptr::from_ref(&OUTER_VECTOR).cast();
                // SAFETY: the descriptor is alive, and cublasLt copies the number.
                unsafe { cublasLtMatmulDescSetAttribute(operation, mode, value, size_of::<i32>()) }.result()?;
            }
        }
        Ok(shape)
    }

    /// Tells the descriptor what it is told by address.
    fn point(&self, places: Places) -> Result<(), CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        if self.epilogue != Epilogue::None {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &places.bias)?;
        }
        if self.elements.are_scaled() {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &places.weight_scales)?;
            self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &places.x_scales)?;
        }
        Ok(())
    }

    /// Ways to compute it, the one that cublasLt believes in most first.
    pub(super) fn guesses(&self, gemm: &Gemm, places: Places) -> Result<Vec<Algorithm>, CublasError> {
        const MOST: usize = 4;
        self.point(places)?;
        let preference = Preference::new(gemm.scratch(self.elements).1)?;
        let mut found = [MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit(); MOST];
        let mut count = 0;
        // SAFETY: all descriptors are alive, and there is room for `MOST` results. What is there before lies where the result
        // goes: C has D's layout.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                gemm.handle,
                self.operation,
                self.weight.0,
                self.x.0,
                self.y.0,
                self.y.0,
                preference.0,
                MOST as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            )
            .result()?;
        }
        // SAFETY: as many as it counted are there.
        let found = found.into_iter().take(count as usize).map(|result| unsafe { result.assume_init() });
        let works = |result: &sys::cublasLtMatmulHeuristicResult_t| result.state.result().is_ok();
        Ok(found.filter(works).map(|result| result.algo).collect())
    }

    /// Queues a product of `tokens` rows.
    pub(super) fn queue(
        &self,
        gemm: &Gemm,
        algorithm: &Algorithm,
        tokens: usize,
        places: Places,
        stream: &CudaStream,
    ) -> Result<(), CublasError> {
        let Places { x, weight, y, .. } = places;
        self.point(places)?;
        self.x.set_columns(tokens)?;
        self.y.set_columns(tokens)?;
        let (real, whole) = ([0f32, 1.0], [0i32, 1]);
        let factor = |one: bool| -> *const c_void {
            match self.elements {
                Elements::Int8 => (&raw const whole[usize::from(one)]).cast(),
                _ => (&raw const real[usize::from(one)]).cast(),
            }
        };
        let (scratch, scratch_bytes) = gemm.scratch(self.elements);
        // SAFETY: the caller's addresses hold what the layouts say; scratch is large enough for the algorithm, which was
        // chosen with its size for at least as many tokens.
        unsafe {
            result::matmul(
                gemm.handle,
                self.operation,
                factor(true),
                factor(self.onto),
                weight as *const c_void,
                self.weight.0,
                x as *const c_void,
                self.x.0,
                y as *const c_void,
                self.y.0,
                y as *mut c_void,
                self.y.0,
                algorithm,
                scratch as *mut c_void,
                scratch_bytes,
                stream.cu_stream().cast(),
            )
        }
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), CublasError> {
        let value = std::ptr::from_ref(value).cast::<c_void>();
        // SAFETY: the descriptor is alive, and cublasLt copies as many bytes as the value has.
        unsafe { result::set_matmul_desc_attribute(self.operation, attribute, value, size_of::<T>()) }
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        // SAFETY: it was created with the shape; queued products do not read it.
        let _ = unsafe { result::destroy_matmul_desc(self.operation) };
    }
}

/// The layout of a column-major matrix without gaps.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(dtype: sys::cudaDataType, rows: usize, columns: usize) -> Result<Layout, CublasError> {
        Ok(Layout(result::create_matrix_layout(dtype, rows as u64, columns as u64, rows as i64)?))
    }

    fn set_columns(&self, columns: usize) -> Result<(), CublasError> {
        let (columns, attribute) = (columns as u64, sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS);
        // SAFETY: the layout is alive, and cublasLt copies the number.
        unsafe { result::set_matrix_layout_attribute(self.0, attribute, (&raw const columns).cast(), size_of::<u64>()) }
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it was created here, and nothing uses it any more.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// How much scratch an algorithm may take.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(scratch_bytes: usize) -> Result<Preference, CublasError> {
        let preference = Preference(result::create_matmul_pref()?);
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the preference is alive, and cublasLt copies the number.
        unsafe {
            result::set_matmul_pref_attribute(
                preference.0,
                attribute,
                (&raw const scratch_bytes).cast(),
                size_of::<usize>(),
            )?;
        }
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was created here, and nothing uses it any more.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
