//! The 8-bit forms that a card multiplies, computed here as their specification says: plain and slow.

use candle_core::Device;
use plimsoll::config::Dtype;
use plimsoll::model::{Blueprint, DeviceForm, Kernels, TokenRow};

use crate::support::{cosine, difference, embedded, load, step};

const FORMS: [(Dtype, f64); 2] = [(Dtype::Int8, 0.998), (Dtype::Fp8, 0.995)];

fn rows() -> Vec<TokenRow> {
    let row = |length: u32| TokenRow::new((0..length).map(|at| 5 + at * 31 % 8_000).collect(), Vec::new());
    [1, 7, 64, 65, 200].map(row).to_vec()
}

/// As on a card, where nothing but layers is 8-bit, in the host's f32.
fn specified(name: &str, dtype: Dtype) -> Blueprint {
    embedded(name, dtype).for_device(DeviceForm::Cuda).with_kernels(Kernels::Plain)
}

#[test]
fn both_forms_keep_the_sense_of_every_task() {
    for name in ["tiny-embed", "tiny-rerank", "tiny-section"] {
        let expected = step(&mut *load(&embedded(name, Dtype::F32)), &rows());
        for (dtype, least) in FORMS {
            let found = step(&mut *load(&specified(name, dtype)), &rows());
            // A score alone has no direction: all of them together have.
            let pairs: Vec<_> = match expected[0].len() {
                1 => vec![(found.concat(), expected.concat())],
                _ => found.into_iter().zip(expected.clone()).collect(),
            };
            for (found, expected) in pairs {
                let cosine = cosine(&found, &expected);
                assert!(cosine >= least, "{name} in {dtype}: cosine {cosine}");
                assert!(difference(&found, &expected) > 0.0, "{name} in {dtype} is not computed in 8 bits");
            }
        }
    }
}

/// Activations are quantized token by token: what else is in the batch changes nothing but the order of sums.
#[test]
fn a_row_is_itself_whatever_is_beside_it() {
    for (dtype, _) in FORMS {
        let mut model = load(&specified("tiny-embed", dtype));
        let together = step(&mut *model, &rows());
        for (row, together) in rows().into_iter().zip(together) {
            let alone = step(&mut *model, &[row]).remove(0);
            assert!(cosine(&alone, &together) > 0.9999, "{dtype}");
        }
    }
}

/// On a card: a byte for each weight of a layer and 4 for each of its outputs, the rest as in f16.
#[test]
fn layers_take_a_byte_for_each_weight() {
    let resident = |dtype| embedded("tiny-embed", dtype).for_device(DeviceForm::Cuda).resident().get();
    let (layers, width, inner) = (4, 192, 768);
    let weights = layers * (4 * width * width + 2 * width * inner);
    let scales = layers * 4 * (4 * width + inner + width);
    for (dtype, _) in FORMS {
        assert_eq!(resident(dtype), resident(Dtype::F16) - weights + scales, "{dtype}");
    }
}

#[test]
fn fp8_is_refused_where_nothing_multiplies_it() {
    let on_the_cpu = embedded("tiny-embed", Dtype::Fp8);
    let refused = on_the_cpu.check_form().expect_err("a CPU has no fp8").to_string();
    for part in ["'tiny-embed': dtype", "found fp8", "allowed: int8, q8_0, bf16, f16 or f32", "compute capability 8.9"]
    {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(on_the_cpu.load(&Device::Cpu).err().map(|error| error.to_string()), Some(refused));
    let on_a_card = on_the_cpu.for_device(DeviceForm::Cuda);
    assert_eq!(on_a_card.check_form(), Ok(()));
    let framework =
        on_a_card.with_kernels(Kernels::Framework).check_form().expect_err("they do not know it").to_string();
    assert!(framework.contains("multiples of 16"), "{framework}");
}
