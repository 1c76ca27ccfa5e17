//! What is multiplied with a matrix of weights, where it lies, and what follows it in the same pass.

use candle_core::{DType, Result, bail};

use super::cublas_lt::Places;
use super::hopper::{self, After, Kind};
use crate::ops::Activation;

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
    pub(super) fn are_summed(self) -> bool {
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
