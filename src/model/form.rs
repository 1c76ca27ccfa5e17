//! What a model is made of on one kind of device and on another.

use super::layers::Kernels;
use crate::config::Dtype;
use crate::ops::card;
use crate::units::Bytes;

/// The kind of device that a model is prepared for. All that differs between kinds is decided here; a profile is
/// measured for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceForm {
    /// The host's processor: fused operations, rows laid end to end.
    Cpu,
    /// A CUDA device: fused operations over rows laid end to end in f16, bf16, int8 and fp8; in other dtypes the
    /// framework's operations over rows padded to the longest.
    Cuda,
}

/// What a form of device needs to know of a model to choose its operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelForm {
    pub(crate) dtype: Dtype,
    /// Values of a hidden state.
    pub(crate) width: usize,
    /// Values of an attention head.
    pub(crate) head_size: usize,
    /// Values between the two halves of a feed-forward block.
    pub(crate) inner: usize,
}

impl DeviceForm {
    /// The operations that models run on.
    pub(crate) fn kernels(self, model: ModelForm) -> Kernels {
        let ModelForm { dtype, width, head_size, inner } = model;
        let on_card = card::computes(width, head_size, inner)
            && match dtype {
                Dtype::F16 | Dtype::Bf16 => true,
                Dtype::Int8 | Dtype::Fp8 => card::computes_eight_bit(width, inner),
                Dtype::F32 | Dtype::Q8 => false,
            };
        match self {
            DeviceForm::Cpu => Kernels::Fused,
            DeviceForm::Cuda if on_card => Kernels::Card,
            DeviceForm::Cuda => Kernels::Framework,
        }
    }

    /// The largest step unless the configuration says otherwise, in tokens. A larger value lets the profile look
    /// further, and costs its time.
    ///
    /// A core computes MiniLM at 3,500 tokens a second: more than 8,192 would hold the processor for seconds, and batches
    /// stop gaining far below. A card computes BERT-large at 40,000 to 90,000 tokens a second by the framework's own
    /// operations, and ten times as many by ours. Its halves are measured, and those shall fill it: 33,792 are 256 for each
    /// of the 132 multiprocessors of an H100 or H200, so that products of 1,024 outputs take four whole waves of tiles of
    /// 128 x 256 at half of it, and two at a quarter.
    pub(crate) const fn step_tokens_max(self) -> u32 {
        match self {
            DeviceForm::Cpu => 8_192,
            DeviceForm::Cuda => 33_792,
        }
    }

    /// Bytes of the device beside the tensors that a load needs while it runs, and the first steps once; `pieces` is what
    /// reading takes on the host. A card gets finished tensors. Our kernels are on it before anything is loaded, scratch
    /// included, and a library's kernels for products of new shapes take some MiB at most; the framework's operations bring modules,
    /// a workspace of the libraries, and the scratch of quantized products (16 MiB and what stays below one for tiny
    /// steps).
    pub(crate) const fn load_transient(self, kernels: Kernels, pieces: Bytes) -> Bytes {
        match (self, kernels) {
            (DeviceForm::Cpu, _) => pieces,
            (DeviceForm::Cuda, Kernels::Card) => Bytes::mib(8),
            (DeviceForm::Cuda, _) => Bytes::mib(64),
        }
    }
}
