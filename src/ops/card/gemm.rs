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

use candle_core::{Result, bail};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::CudaStream;

use super::cublas_lt::{Algorithm, Shape};
use super::hopper::Hopper;
use super::operations::note_made;
use super::product::{Elements, Key, Product};
use super::tensors::Address;

/// Small numbers of tokens that share a plan differ by less than this, and larger ones by less than an eighth.
const TOKEN_STEP: usize = 64;

/// However many tokens: a plan is for so many rows of tiles. Which tiles fill the card best changes with each of them: on an
/// H200, BERT-large at 8,360 tokens with a plan for 9,216 takes 9 % longer than with its own.
const TOKEN_STEP_MAX: usize = 128;

/// Products are prepared for no more tokens: steps of more are not worth having on any card, but may be configured.
const PREPARED_MAX: usize = 65_536;

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
    ///
    /// What is added to what is there is not queued a second time after a failure: a part of it may have been.
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
        let mut refusal = None;
        if let Some(known) = plans.known.get(&key) {
            let Some(Plan { shape, algorithm }) = known else { return Ok(false) };
            match shape.queue(self, algorithm, tokens, product.places, stream) {
                Ok(()) => return Ok(true),
                Err(error) if onto && !is_no_way(error) => return Err(failed(error, stream)),
                // What was chosen with few tokens may yet be refused with more: then it is chosen anew.
                Err(error) => refusal = Some(error),
            }
        }
        note_made();
        match (self.queue_planned(key, product, stream)?, refusal) {
            // There was a way, and there will be again.
            (Choice::None, Some(error)) => Err(failed(error, stream)),
            (Choice::None, None) => {
                plans.known.insert(key, None);
                Ok(false)
            }
            (Choice::Best(plan), _) => {
                plans.known.insert(key, Some(plan));
                Ok(true)
            }
            (Choice::Makeshift, _) => Ok(true),
        }
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
    /// tokens that are there. Where the card has no room for one, it ends there: steps choose the rest, and the next load may
    /// come farther.
    fn prepare(&self, plans: &mut Plans, key: Key, product: Product, most: usize, stream: &CudaStream) {
        let mut places = product.places;
        if product.onto {
            // What is there would be added to. Over a few tokens no algorithm has so much scratch that it gets here.
            let room = (product.outputs * product.tokens * size_of::<f32>()).next_multiple_of(256);
            places.y = self.scratch + self.scratch_bytes.saturating_sub(room) as Address;
        }
        let product = Product { places, ..product };
        let mut most_here = most.min(PREPARED_MAX);
        if key.elements.are_summed() {
            // Larger ones are queued in pieces whose sums fit into the scratch.
            most_here = most_here.min(self.sums().1 / (product.outputs * size_of::<f32>()));
        }
        let (mut launched, mut refused) = (HashSet::new(), HashSet::new());
        let mut tokens = 1;
        while tokens <= most_here {
            let key = Key { tokens: rounded(tokens), ..key };
            tokens = key.tokens + 1;
            if plans.known.contains_key(&key) {
                continue;
            }
            let Ok((guesses, shape)) = Shape::new(key).and_then(|shape| Ok((shape.guesses(self, places)?, shape)))
            else {
                continue;
            };
            for algorithm in guesses {
                if refused.contains(&algorithm.data) {
                    continue;
                }
                if !launched.contains(&algorithm.data) {
                    if let Err(error) = shape.queue(self, &algorithm, product.tokens, places, stream) {
                        if !is_no_way(error) && short_of_memory(stream).is_some() {
                            return;
                        }
                        refused.insert(algorithm.data);
                        continue;
                    }
                    launched.insert(algorithm.data);
                    note_made();
                }
                plans.known.insert(key, Some(Plan { shape, algorithm }));
                break;
            }
        }
        plans.prepared.insert(Key { tokens: 0, ..key }, most);
    }

    /// Queues a product whose plan is to be found.
    fn queue_planned(&self, key: Key, product: Product, stream: &CudaStream) -> Result<Choice> {
        let found = Shape::new(key).and_then(|shape| Ok((shape.guesses(self, product.places)?, shape)));
        let (guesses, shape) = match found {
            Ok(found) => found,
            // Not every library has such products: it is no error that this one has none.
            Err(_) if key.elements.are_scaled() => return Ok(Choice::None),
            Err(error) => return Err(candle_core::Error::wrap(error)),
        };
        // A guess may still be refused when it is queued: the first that is not is taken, and has done its work.
        let mut refusal = None;
        for algorithm in guesses {
            match shape.queue(self, &algorithm, product.tokens, product.places, stream) {
                Ok(()) if refusal.is_none() => return Ok(Choice::Best(Plan { shape, algorithm })),
                Ok(()) => return Ok(Choice::Makeshift),
                Err(error) if is_no_way(error) => {}
                Err(error) if product.onto => return Err(failed(error, stream)),
                Err(error) => refusal = Some(error),
            }
        }
        // That there is no way is for good. A refusal that may pass does not say so.
        refusal.map_or(Ok(Choice::None), |error| Err(failed(error, stream)))
    }
}

/// A plan that was chosen for a product that is queued by it.
enum Choice {
    /// cublasLt knows no way.
    None,
    /// The way that it believes in most.
    Best(Plan),
    /// Another, for this time: one that it believes in more was refused, which may pass.
    Makeshift,
}

/// Whether a refusal says that the product cannot be computed so.
fn is_no_way(CublasError(status): CublasError) -> bool {
    use sys::cublasStatus_t as Status;
    matches!(
        status,
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE | Status::CUBLAS_STATUS_ARCH_MISMATCH
    )
}

/// What a refusal means for a step.
fn failed(error: CublasError, stream: &CudaStream) -> candle_core::Error {
    match short_of_memory(stream) {
        Some(free) => candle_core::Error::msg(format!("out of memory for a kernel, {free} bytes are free: {error:?}")),
        None => candle_core::Error::wrap(error),
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
