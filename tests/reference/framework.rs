//! The operations of the framework, which a CUDA device runs, against the fused ones: here both on the CPU.

use candle_core::Device;
use plimsoll::config::{Dtype, ModelConfig, Pooling};
use plimsoll::memory::{Shape, ShapeKind};
use plimsoll::model::{Batch, Blueprint, DeviceForm, Kernels, ModelFiles, TokenRow};

use crate::support::{ON_A_CPU, config, cosine, difference, embedded, load, step};

fn row(length: u32) -> TokenRow {
    TokenRow::new((0..length).map(|at| 5 + at * 31 % 8_000).collect(), Vec::new())
}

/// Rows of mixed lengths with much padding among them, rows of one length, and single rows on both sides of the switch
/// of quantized products.
fn batches() -> Vec<Vec<TokenRow>> {
    vec![[1, 64, 65, 200].map(row).to_vec(), vec![row(12); 3], vec![row(8)], vec![row(9)], vec![row(1); 9]]
}

/// How far results in this dtype may be from the same weights' results in f32: the largest difference beside the
/// largest value, and the cosine.
fn tolerance(dtype: Dtype) -> (f32, f64) {
    match dtype {
        Dtype::F32 => (1e-5, 0.999_999),
        Dtype::F16 => (0.01, 0.9999),
        Dtype::Bf16 => (0.1, 0.999),
        // Activations are quantized too, in blocks of 32.
        Dtype::Q8 | Dtype::Int8 => (0.05, 0.9995),
        Dtype::Fp8 => unreachable!("neither of the two has it"),
    }
}

fn check(blueprint: &Blueprint) {
    let card = blueprint.card().clone();
    let (most, least_cosine) = tolerance(card.dtype);
    let mut fused = load(blueprint);
    let mut framework = load(&blueprint.clone().for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework));
    for batch in batches() {
        let expected = step(&mut *fused, &batch);
        let found = step(&mut *framework, &batch);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let place = || format!("{} {}, row {at} of {}", card.name, card.dtype, batch.len());
            let scale = expected.iter().fold(1f32, |largest, value| largest.max(value.abs()));
            let worst = difference(found, expected) / scale;
            assert!(worst <= most, "{}: off by {worst}", place());
            if expected.len() > 1 {
                let cosine = cosine(found, expected);
                assert!(cosine >= least_cosine, "{}: cosine {cosine}", place());
            }
        }
    }
}

#[test]
fn framework_agrees_with_fused_in_every_dtype_and_task() {
    for name in ["tiny-embed", "tiny-rerank", "tiny-section"] {
        for dtype in &ON_A_CPU {
            check(&embedded(name, *dtype));
        }
    }
}

#[test]
fn framework_agrees_with_fused_for_every_pooling() {
    for pooling in Pooling::ALL {
        let config = ModelConfig { pooling: Some(*pooling), ..config("tiny-embed", Dtype::F16) };
        check(&Blueprint::new(&config, ModelFiles::embedded("tiny-embed").unwrap()).unwrap());
    }
}

/// In f32 neither the padding nor the batch around a row changes it beyond the order of sums.
#[test]
fn a_row_is_itself_whatever_pads_it() {
    let mut model =
        load(&embedded("tiny-embed", Dtype::F32).for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework));
    let alone = step(&mut *model, &[row(5)]).remove(0);
    for other in [6, 30, 250] {
        let together = step(&mut *model, &[row(other), row(5)]).remove(1);
        assert!(difference(&alone, &together) < 5e-5, "beside {other} tokens");
    }
}

#[test]
fn plain_steps_agree_padded_and_ragged() {
    let blueprint = embedded("tiny-section", Dtype::F32).with_kernels(Kernels::Plain);
    let rows = [1, 250, 16].map(row);
    let ragged = step(&mut *load(&blueprint), &rows);
    let padded = step(&mut *load(&blueprint.with_form(ShapeKind::Padded)), &rows);
    for (ragged, padded) in ragged.iter().zip(&padded) {
        assert!(difference(ragged, padded) < 2e-5);
    }
}

#[test]
fn axes_and_keys_follow_the_kind_of_device() {
    let cpu = embedded("tiny-embed", Dtype::Q8);
    let cuda = cpu.clone().for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework);
    assert_ne!(cpu.content_key(), cuda.content_key());
    assert_eq!(cuda.clone().for_device(DeviceForm::Cpu).content_key(), cpu.content_key());
    assert_eq!((cpu.axes().kind, cuda.axes().kind), (ShapeKind::Ragged, ShapeKind::Padded));
    assert_eq!((cpu.axes().step_tokens_max, cuda.axes().step_tokens_max), (8_192, 33_792));
    assert_eq!((cuda.axes().batch.splits, cuda.axes().extent.splits), (vec![8], vec![8]), "quantized products switch");
    let f16 = embedded("tiny-embed", Dtype::F16).for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework);
    assert!(f16.axes().batch.splits.is_empty() && cpu.axes().batch.splits.is_empty());
    assert_eq!(load(&cuda).axes(), cuda.axes(), "the loaded model says the same");
}

#[test]
fn a_model_made_for_a_cards_own_operations_is_loaded_nowhere_else() {
    let of = |dtype| embedded("tiny-embed", dtype).for_device(DeviceForm::Cuda);
    for (dtype, kind) in [
        (Dtype::F16, ShapeKind::Ragged),
        (Dtype::Bf16, ShapeKind::Ragged),
        (Dtype::F32, ShapeKind::Padded),
        (Dtype::Q8, ShapeKind::Padded),
        (Dtype::Int8, ShapeKind::Ragged),
        (Dtype::Fp8, ShapeKind::Ragged),
    ] {
        assert_eq!(of(dtype).axes().kind, kind, "{dtype}");
    }
    let refused = of(Dtype::F16).load(&Device::Cpu).err().expect("there is no card").to_string();
    assert!(refused.contains("prepared for a GPU"), "{refused}");
    assert!(of(Dtype::F32).load(&Device::Cpu).is_ok(), "the framework's operations run everywhere");
}

/// Scores of `heads * length` values for each token: with 3 heads and 256 tokens a kernel's 32 bits index 2,796,202
/// tokens, whatever the configuration says.
#[test]
fn no_step_is_larger_than_kernels_can_index() {
    let of = |step_tokens_max: u32| {
        let config = ModelConfig { step_tokens_max: Some(step_tokens_max), ..config("tiny-embed", Dtype::F16) };
        Blueprint::new(&config, ModelFiles::embedded("tiny-embed").unwrap())
            .unwrap()
            .for_device(DeviceForm::Cuda)
            .with_kernels(Kernels::Framework)
    };
    let blueprint = of(u32::MAX);
    let most = u64::from(blueprint.axes().step_tokens_max);
    assert!(most < u64::from(u32::MAX));
    let width = u64::from(blueprint.card().dimensions);
    assert!(most * 4 * width <= i32::MAX as u64, "{most} tokens: the feed-forward block's values are indexed");
    assert_eq!(of(16_384).axes().step_tokens_max, 16_384);
    assert_eq!(of(16_384).axes().measured_tokens_min, 16_384);
}

#[test]
fn vectors_and_matrices_take_what_was_said() {
    // Twice the bytes for vectors in f32 as in f16; q8_0 with f16 vectors.
    let resident = |dtype, device| embedded("tiny-embed", dtype).for_device(device).resident().get();
    assert_eq!(resident(Dtype::F32, DeviceForm::Cpu), resident(Dtype::F32, DeviceForm::Cuda));
    assert!(resident(Dtype::F16, DeviceForm::Cuda) * 2 == resident(Dtype::F32, DeviceForm::Cuda));
    assert!(resident(Dtype::Q8, DeviceForm::Cuda) < resident(Dtype::Q8, DeviceForm::Cpu));
    assert_eq!(resident(Dtype::Q8, DeviceForm::Cpu), resident(Dtype::Int8, DeviceForm::Cpu));
}

#[test]
fn a_made_up_batch_of_the_axes_corner_runs() {
    let blueprint = embedded("tiny-embed", Dtype::F16).for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework);
    let longest = blueprint.axes().extent.max;
    let mut model = blueprint.load(&Device::Cpu).unwrap();
    model.step(&Batch::made_up(Shape::Padded { rows: 2, length: longest })).unwrap();
}
