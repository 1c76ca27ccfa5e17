//! Products with matrices of weights through cublasLt.
//!
//! Row-major `y = x * w transposed` is column-major `y' = w * x'`, with the outputs as rows: so the bias runs along the
//! rows, as cublasLt's epilogues want it, and nothing is transposed in memory.
//!
//! What has to be found out for a product (descriptors, and cublasLt's guess which of its kernels is fastest) is kept by
//! shape. A step's number of tokens is anything; which kernel is fastest changes slowly with it, so that one answer serves
//! a range of them. Nothing is tried out: on an H200 at its power limit the first guess is within 1 % of the best of nine
//! ways, and trying them loads all their kernels, which takes a step that meets a new range some 50 ms. And the same step
//! has the same bits in every process.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Result, bail};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::CudaStream;

use super::cublas_lt::{Algorithm, Places, Shape};
use super::hopper::{self, After, Hopper, Kind};
use super::operations::note_made;
use super::tensors::Address;
use crate::ops::Activation;

/// Small numbers of tokens that share a plan differ by less than this, and larger ones by less than an eighth.
const TOKEN_STEP: usize = 64;

/// However many tokens: a plan is for so many rows of tiles. Which tiles fill the card best changes with each of them: on an
/// H200, BERT-large at 8,360 tokens with a plan for 9,216 takes 9 % longer than with its own.
const TOKEN_STEP_MAX: usize = 128;

/// A kernel that cannot be loaded where less than this is free may have lacked the memory.
const KERNEL_ROOM: usize = 16 << 20;

/// The part of the scratch that holds the sums of 8-bit products; the rest is cublasLt's own meanwhile. Of 32 MiB it is
/// enough for 1,536 tokens of 4,096 outputs at a time.
const SUMS_PARTS: (usize, usize) = (3, 4);

/// The number of tokens that a plan for so many is made for.
fn rounded(tokens: usize) -> usize {
    let eighth = tokens.next_power_of_two() / 16;
    tokens.next_multiple_of(eighth.clamp(TOKEN_STEP, TOKEN_STEP_MAX))
}

/// What follows a product in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Epilogue {
    /// Nothing.
    None,
    /// The bias of each output.
    Bias,
    /// The bias, then GELU by its tanh formula. It differs from the exact one by less than 5e-4, half of what one unit in
    /// the last place of f16 is at 1.
    BiasGelu,
    /// The bias, then max(x, 0).
    BiasRelu,
}

impl From<Activation> for Epilogue {
    fn from(activation: Activation) -> Epilogue {
        match activation {
            Activation::Gelu | Activation::GeluTanh => Epilogue::BiasGelu,
            Activation::Relu => Epilogue::BiasRelu,
        }
    }
}

/// What is multiplied and what comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Elements {
    /// All matrices and the bias; sums are f32.
    F16,
    /// The same.
    Bf16,
    /// Signed bytes; what comes out is sums, i32. No epilogue.
    Int8,
    /// fp8 (e4m3); what comes out is sums, f32. No epilogue.
    Fp8,
    /// fp8; each sum by the scales of its token and its output, in f16 as the bias is. Not every card and library can.
    Fp8ToF16,
    /// The same in bf16.
    Fp8ToBf16,
}

impl Elements {
    /// Those of matrices and a bias that all have this dtype.
    pub(super) fn of(dtype: DType) -> Result<Elements> {
        match dtype {
            DType::F16 => Ok(Elements::F16),
            DType::BF16 => Ok(Elements::Bf16),
            other => bail!("products here are of f16 or bf16, not of {other:?}"),
        }
    }

    /// Whether tokens and outputs have scales that the product takes in.
    pub(super) fn are_scaled(self) -> bool {
        matches!(self, Elements::Fp8ToF16 | Elements::Fp8ToBf16)
    }

    /// Whether what comes out lies in the scratch.
    fn are_summed(self) -> bool {
        matches!(self, Elements::Int8 | Elements::Fp8)
    }
}

/// One product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) elements: Elements,
    pub(super) tokens: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) epilogue: Epilogue,
    /// Whether it is added to what is where it goes; else that is not read.
    pub(super) onto: bool,
    pub(super) places: Places,
}

impl Product {
    /// The same in the terms of the kernel of ours, which adds to nothing.
    pub(super) fn as_kind(self, kind: Kind) -> hopper::Product {
        assert!(!self.onto, "the kernel of ours writes what it computes");
        let Product { tokens, inputs, outputs, epilogue, places, .. } = self;
        let (after, bias) = match epilogue {
            Epilogue::None => (After::Nothing, 0),
            Epilogue::Bias => (After::Nothing, places.bias),
            Epilogue::BiasGelu => (After::Gelu, places.bias),
            Epilogue::BiasRelu => (After::Relu, places.bias),
        };
        let Places { x, weight, y, x_scales, weight_scales, .. } = places;
        let scales = [x_scales, weight_scales];
        hopper::Product { kind, after, tokens, inputs, outputs, x, weight, scales, bias, y }
    }
}

/// What a product is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) elements: Elements,
    /// Rounded up.
    pub(super) tokens: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) epilogue: Epilogue,
    pub(super) onto: bool,
}

/// cublasLt, with scratch of ours.
pub(super) struct Gemm {
    pub(super) handle: sys::cublasLtHandle_t,
    scratch: Address,
    scratch_bytes: usize,
    /// Where the card is one.
    hopper: Option<Hopper>,
    plans: Mutex<Plans>,
    /// Up to how many tokens products are prepared for when they are queued; 0: for their own only.
    preparing: AtomicUsize,
}

#[derive(Default)]
struct Plans {
    /// `None`: cublasLt knows no way.
    known: HashMap<Key, Option<Plan>>,
    /// Products that are prepared, whatever their tokens, and up to how many.
    prepared: HashMap<Key, usize>,
}

// SAFETY: cublasLt's handle may be used from any thread; descriptors are only reached through the lock.
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

/// Everything about products of one range of shapes.
struct Plan {
    shape: Shape,
    algorithm: Algorithm,
}

impl Gemm {
    /// `scratch` is memory on the card that nobody else uses while a product runs.
    pub(super) fn new(scratch: Address, scratch_bytes: usize, hopper: Option<Hopper>) -> Result<Gemm> {
        let handle = result::create_handle().map_err(candle_core::Error::wrap)?;
        let (plans, preparing) = (Mutex::default(), AtomicUsize::new(0));
        Ok(Gemm { handle, scratch, scratch_bytes, hopper, plans, preparing })
    }

    /// The kernel of ours, where the card is one for it.
    pub(super) fn hopper(&self) -> Option<&Hopper> {
        self.hopper.as_ref()
    }

    /// Where sums lie until they become results, and how many bytes there are for them: between a product and the pass
    /// over its sums nothing else may be queued that uses the scratch.
    pub(super) fn sums(&self) -> (Address, usize) {
        (self.scratch, self.scratch_bytes / SUMS_PARTS.1 * SUMS_PARTS.0)
    }

    /// cublasLt's own part of the scratch.
    pub(super) fn scratch(&self, elements: Elements) -> (Address, usize) {
        let sums = if elements.are_summed() { self.sums().1 } else { 0 };
        (self.scratch + sums as Address, self.scratch_bytes - sums)
    }

    /// Queues a product.
    pub(super) fn run(&self, product: Product, stream: &CudaStream) -> Result<()> {
        match self.run_if_known(product, stream)? {
            true => Ok(()),
            false => bail!("cublasLt knows no way to multiply {product:?}"),
        }
    }

    /// The same; `false` if cublasLt knows no way.
    pub(super) fn run_if_known(&self, product: Product, stream: &CudaStream) -> Result<bool> {
        let Product { elements, tokens, inputs, outputs, epilogue, onto, .. } = product;
        if tokens == 0 {
            return Ok(true);
        }
        let key = Key { elements, tokens: rounded(tokens), inputs, outputs, epilogue, onto };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.preparing.load(Ordering::Relaxed);
        if plans.prepared.get(&Key { tokens: 0, ..key }).is_none_or(|before| *before < most) && most > 0 {
            self.prepare(&mut plans, key, product, most, stream);
        }
        if let Some(known) = plans.known.get(&key) {
            let Some(Plan { shape, algorithm }) = known else { return Ok(false) };
            if shape.queue(self, algorithm, tokens, product.places, stream).is_ok() {
                return Ok(true);
            }
            // What was chosen with few tokens may yet be refused with more: then it is chosen anew.
        }
        note_made();
        let plan = self.queue_planned(key, product, stream)?;
        let works = plan.is_some();
        plans.known.insert(key, plan);
        Ok(works)
    }

    /// Prepares the products that `body` queues for every number of tokens up to `tokens_max`: which way they are computed
    /// is chosen, and the kernels for that are loaded. So no step waits for that (50 ms where it meets a new kernel), and
    /// what kernels take of the card does not grow while models are served.
    pub(super) fn preparing<R>(&self, tokens_max: usize, body: impl FnOnce() -> R) -> R {
        self.preparing.store(tokens_max, Ordering::Relaxed);
        let _ends = Preparing(&self.preparing);
        body()
    }

    /// Chooses plans for up to `most` tokens. A library loads a kernel when it is first launched, so each is, over the few
    /// tokens that are there. Where the card has no room for one, a step may try again.
    fn prepare(&self, plans: &mut Plans, key: Key, product: Product, most: usize, stream: &CudaStream) {
        plans.prepared.insert(Key { tokens: 0, ..key }, most);
        let mut places = product.places;
        if product.onto {
            // What is there would be added to. Over a few tokens no algorithm has so much scratch that it gets here.
            let room = (product.outputs * product.tokens * size_of::<f32>()).next_multiple_of(256);
            places.y = self.scratch + self.scratch_bytes.saturating_sub(room) as Address;
        }
        let product = Product { places, ..product };
        let mut launched = HashSet::new();
        let mut tokens = 1;
        while tokens <= most {
            let key = Key { tokens: rounded(tokens), ..key };
            tokens = key.tokens + 1;
            if plans.known.contains_key(&key) {
                continue;
            }
            let Ok((guesses, shape)) = Shape::new(key).and_then(|shape| Ok((shape.guesses(self, places)?, shape)))
            else {
                continue;
            };
            let mut works = |guess: &Algorithm| {
                let known = launched.contains(&guess.data);
                let works = known || shape.queue(self, guess, product.tokens, places, stream).is_ok();
                works && (known || launched.insert(guess.data))
            };
            if let Some(algorithm) = guesses.into_iter().find(|guess| works(guess)) {
                note_made();
                plans.known.insert(key, Some(Plan { shape, algorithm }));
            }
        }
    }

    /// Queues a product whose plan is to be found. `None` if cublasLt knows no way.
    fn queue_planned(&self, key: Key, product: Product, stream: &CudaStream) -> Result<Option<Plan>> {
        let found = Shape::new(key).and_then(|shape| Ok((shape.guesses(self, product.places)?, shape)));
        let (guesses, shape) = match found {
            Ok(found) => found,
            // Not every library has such products: it is no error that this one has none.
            Err(_) if key.elements.are_scaled() => return Ok(None),
            Err(error) => return Err(candle_core::Error::wrap(error)),
        };
        // A guess may still be refused when it is queued: the first that is not is taken, and has done its work, which a
        // second time would be added to the first.
        let mut refusal = None;
        for algorithm in guesses {
            match shape.queue(self, &algorithm, product.tokens, product.places, stream) {
                Ok(()) => return Ok(Some(Plan { shape, algorithm })),
                Err(error) => refusal = Some(error),
            }
        }
        // That there is no way is for good. A refusal that may pass does not say so.
        match refusal {
            None | Some(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
            Some(error) => match short_of_memory(stream) {
                Some(free) => bail!("out of memory for a kernel, {free} bytes are free: {error:?}"),
                None if key.elements.are_scaled() => Ok(None),
                None => Err(candle_core::Error::wrap(error)),
            },
        }
    }
}

/// What is free, where a kernel that could not be loaded may have lacked memory: the library does not say so.
fn short_of_memory(stream: &CudaStream) -> Option<usize> {
    let (free, _) = stream.context().mem_get_info().ok()?;
    (free < KERNEL_ROOM).then_some(free)
}

/// Ends the preparing, also where a model panics.
struct Preparing<'a>(&'a AtomicUsize);

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        // SAFETY: it was created here, and nothing uses it any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_numbers_of_tokens_have_plans_of_their_own() {
        let all: std::collections::BTreeSet<usize> = (1..=32_768).map(rounded).collect();
        assert!(all.len() <= 280, "{} plans", all.len());
        for tokens in 1..=32_768 {
            let plan = rounded(tokens);
            assert!(
                plan >= tokens && plan < tokens + (tokens / 8).clamp(TOKEN_STEP, TOKEN_STEP_MAX),
                "{tokens}: {plan}"
            );
        }
    }
}
