//! From files to a loaded model; everything that headers can tell is checked first.

use candle_core::Device;

use super::config::EncoderConfig;
use super::forward::{Encoder, Head};
use super::names::{Names, Part};
use crate::config::{Dtype, Pooling};
use crate::memory::Axes;
use crate::model::error::ModelError;
use crate::model::layers::{Embeddings, FeedForward, Kernels, Linear, SelfAttention, Widths};
use crate::model::weights::{Naming, Reader, Weights};
use crate::ops::{Matrix, Norm, Tables, framework, linear_scratch};

/// One tensor of the model, as it is asked for by name: all that is loaded, in one list for checking and counting.
enum Needed {
    Vector(String, usize),
    /// A layer's.
    Matrix(String, [usize; 2]),
    /// A table of embeddings, or a matrix of the head.
    Table(String, [usize; 2]),
    /// Made here: no file has it.
    Zeros([usize; 2]),
}

/// The row of the files' table of positions for a text's first token. llama.cpp leaves out the rows before it.
fn first_position(config: &EncoderConfig, weights: &Weights) -> usize {
    match weights.naming {
        Naming::HuggingFace => config.first_position,
        Naming::Gguf => 0,
    }
}

/// Every tensor that [`load`] reads or makes.
fn needed(config: &EncoderConfig, weights: &Weights, classify: bool) -> Vec<Needed> {
    let names = Names::of(weights, config.variant);
    let EncoderConfig { width, inner_width, .. } = *config;
    let mut list = vec![
        Needed::Table(names.words(), [config.vocabulary, width]),
        Needed::Table(names.positions(), [first_position(config, weights) + config.positions, width]),
        match config.types {
            Some(types) => Needed::Table(names.types(), [types, width]),
            None => Needed::Zeros([config.type_count(), width]),
        },
    ];
    let norm = |list: &mut Vec<Needed>, name: String| {
        list.push(Needed::Vector(format!("{name}.weight"), width));
        list.push(Needed::Vector(format!("{name}.bias"), width));
    };
    let linear = |list: &mut Vec<Needed>, name: &str, [outputs, inputs]: [usize; 2], matrix: fn(_, _) -> Needed| {
        list.push(matrix(format!("{name}.weight"), [outputs, inputs]));
        list.push(Needed::Vector(format!("{name}.bias"), outputs));
    };
    norm(&mut list, names.embeddings_norm());
    for layer in 0..config.layers {
        for part in [Part::Query, Part::Key, Part::Value, Part::AttentionOutput] {
            linear(&mut list, &names.of_layer(layer, part), [width, width], Needed::Matrix);
        }
        linear(&mut list, &names.of_layer(layer, Part::Up), [inner_width, width], Needed::Matrix);
        linear(&mut list, &names.of_layer(layer, Part::Down), [width, inner_width], Needed::Matrix);
        norm(&mut list, names.of_layer(layer, Part::AttentionNorm));
        norm(&mut list, names.of_layer(layer, Part::OutputNorm));
    }
    if classify {
        let [dense, output] = names.classifier();
        linear(&mut list, &dense, [width, width], Needed::Table);
        linear(&mut list, &output, [config.labels.len(), width], Needed::Table);
    }
    list
}

/// Checks that every tensor is there, has its shape and can be held as `dtype`.
pub(crate) fn check(config: &EncoderConfig, weights: &Weights, dtype: Dtype, classify: bool) -> Result<(), ModelError> {
    for needed in needed(config, weights, classify) {
        match needed {
            Needed::Vector(name, len) => weights.expect(&name, &[len])?,
            Needed::Matrix(name, shape) | Needed::Table(name, shape) => {
                // int8 too: not every device has kernels for it, and those that have none take it for q8_0.
                if matches!(dtype, Dtype::Q8 | Dtype::Int8) && shape[1] % 32 != 0 {
                    let (found, allowed) = (format!("rows of {} weights", shape[1]), "multiples of 32 for dtype");
                    return Err(ModelError::invalid(weights.place(&name), found, format!("{allowed} {dtype}")));
                }
                weights.expect(&name, &shape)?
            }
            // As wide as the words, which are checked.
            Needed::Zeros(_) => continue,
        };
    }
    Ok(())
}

/// Bytes of the tensors once loaded.
pub(crate) fn resident(
    config: &EncoderConfig,
    weights: &Weights,
    dtype: Dtype,
    kernels: Kernels,
    classify: bool,
) -> u64 {
    let vector_element = kernels.activations(dtype).size_in_bytes() as u64;
    let bytes = |needed: Needed| match needed {
        Needed::Vector(_, len) => vector_element * len as u64,
        Needed::Matrix(_, shape) => Matrix::bytes(kernels.layers(dtype), shape),
        Needed::Table(_, shape) | Needed::Zeros(shape) => Matrix::bytes(kernels.elsewhere(dtype), shape),
    };
    needed(config, weights, classify).into_iter().map(bytes).sum()
}

/// Elements for each token of a step's largest tensor, if its longest row has `length` tokens, on the framework's
/// operations.
pub(crate) fn framework_elements_per_token(config: &EncoderConfig, length: u32) -> u64 {
    let (heads, width) = (config.heads as u64, config.width as u64);
    let scores = framework::score_elements_per_token(heads, width / heads, u64::from(length));
    scores.max(3 * width).max(config.inner_width as u64)
}

/// What a load needs to know beside the files.
pub(crate) struct Plan<'a> {
    pub(crate) config: &'a EncoderConfig,
    pub(crate) weights: &'a Weights,
    pub(crate) dtype: Dtype,
    /// `None`: logits.
    pub(crate) pooling: Option<Pooling>,
    pub(crate) kernels: Kernels,
    pub(crate) axes: Axes,
}

/// Loads the model onto `device`. [`check`] has passed.
pub(crate) fn load(plan: Plan<'_>, device: &Device) -> Result<Encoder, ModelError> {
    let Plan { config, weights, dtype, kernels, .. } = plan;
    let reader = Reader { weights, device, dtype, kernels };
    let names = Names::of(weights, config.variant);
    let first_position = first_position(config, weights);
    let width = config.width;
    let norm = |name: String| -> Result<Norm, ModelError> {
        Ok(Norm {
            weight: reader.vector(&format!("{name}.weight"), width)?,
            bias: reader.vector(&format!("{name}.bias"), width)?,
            epsilon: config.epsilon,
        })
    };
    // As heads have it, which have no fused operations.
    let plain_linear = |name: &str, shape: [usize; 2]| -> Result<Linear, ModelError> {
        Ok(Linear {
            weight: reader.table(&format!("{name}.weight"), shape)?,
            bias: reader.vector(&format!("{name}.bias"), shape[0])?,
        })
    };
    let linear = |name: &str, shape: [usize; 2]| -> Result<Linear, ModelError> {
        Ok(Linear {
            weight: kernels.lay_out(reader.matrix(&format!("{name}.weight"), shape)?)?,
            bias: reader.vector(&format!("{name}.bias"), shape[0])?,
        })
    };
    let embeddings = Embeddings {
        tables: Tables {
            words: reader.table(&names.words(), [config.vocabulary, width])?,
            positions: reader.table(&names.positions(), [first_position + config.positions, width])?,
            types: match config.types {
                Some(types) => reader.table(&names.types(), [types, width])?,
                None => reader.zeros([config.type_count(), width])?,
            },
        },
        norm: norm(names.embeddings_norm())?,
    };
    let layer = |layer: usize| -> Result<(SelfAttention, FeedForward), ModelError> {
        let of = |part: Part| names.of_layer(layer, part);
        let qkv = [Part::Query, Part::Key, Part::Value].map(of);
        let with = |end: &str| qkv.iter().map(|name| format!("{name}.{end}")).collect::<Vec<_>>();
        let (qkv_weights, qkv_biases) = (with("weight"), with("bias"));
        let attention = SelfAttention {
            qkv: Linear {
                weight: kernels.lay_out(reader.matrices(&qkv_weights, [width, width])?)?,
                bias: reader.vectors(&qkv_biases, width)?,
            },
            output: linear(&of(Part::AttentionOutput), [width, width])?,
            norm: norm(of(Part::AttentionNorm))?,
            heads: config.heads,
        };
        let feed_forward = FeedForward {
            up: linear(&of(Part::Up), [config.inner_width, width])?,
            down: linear(&of(Part::Down), [width, config.inner_width])?,
            activation: config.activation,
            norm: norm(of(Part::OutputNorm))?,
        };
        Ok((attention, feed_forward))
    };
    let layers = (0..config.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
    let head = match plan.pooling {
        Some(pooling) => Head::Pool(pooling),
        None => {
            let [dense, output] = names.classifier();
            Head::Classify {
                dense: plain_linear(&dense, [width, width])?,
                between: config.variant.between(),
                output: plain_linear(&output, [config.labels.len(), width])?,
            }
        }
    };
    let scratch = layers.iter().map(|(_, feed_forward)| linear_scratch(&feed_forward.down.weight)).max();
    Ok(Encoder {
        embeddings,
        first_position: first_position as u32,
        head,
        widths: Widths {
            hidden: width,
            inner: config.inner_width,
            heads: config.heads,
            linear_scratch: scratch.unwrap_or(0).max(linear_scratch(&layers[0].1.up.weight)),
            #[cfg(feature = "cuda")]
            codes: layers[0].1.down.weight.eight_bit().map(|form| (form, width.max(config.inner_width))),
        },
        layers,
        kernels,
        activations: kernels.activations(dtype),
        axes: plan.axes,
        device: device.clone(),
        #[cfg(feature = "cuda")]
        recordings: Default::default(),
    })
}
