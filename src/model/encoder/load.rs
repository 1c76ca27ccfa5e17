//! From files to a loaded model; everything that headers can tell is checked first.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};

use super::config::{Classifies, EncoderConfig};
use super::forward::{Before, Classify, Encoder, Head};
use super::names::{Names, Part};
use crate::config::{Dtype, Pooling};
use crate::memory::Axes;
use crate::model::error::ModelError;
use crate::model::layers::{Embeddings, FeedForward, Kernels, Linear, Residual, SelfAttention, Widths};
use crate::model::weights::{self, Naming, Reader, Weights};
use crate::ops::{Matrix, Norm, Rotation, Tables, framework, linear_scratch};

/// One tensor of the model, as it is asked for by name: all that is loaded, in one list for checking and counting.
enum Needed {
    Vector(String, usize),
    /// Of a layer.
    Matrix(String, [usize; 2]),
    /// Of embeddings, or a head's matrix.
    Table(String, [usize; 2]),
    /// Made here, for norms that have no bias: one for all of them.
    Zeros(usize),
    /// Made here, for layers that turn queries and keys by powers of the same base.
    Rotation,
}

/// The row of the files' table of positions for a text's first token, if there is a table. llama.cpp leaves out the rows
/// before it.
fn first_position(config: &EncoderConfig, weights: &Weights) -> Option<usize> {
    match weights.naming {
        Naming::HuggingFace => config.first_position,
        Naming::Gguf => config.first_position.map(|_| 0),
    }
}

/// Bases of the rotations, each once.
fn rotary_bases(config: &EncoderConfig) -> BTreeMap<u64, f64> {
    let bases = config.layers.iter().filter_map(|layer| layer.rotary_base);
    bases.map(|base| (base.to_bits(), base)).collect()
}

/// How many times the inner width a feed-forward block computes between its halves.
fn planes(config: &EncoderConfig) -> usize {
    if config.variant.is_gated() { 2 } else { 1 }
}

/// Every tensor that [`load`] reads or makes.
fn needed(config: &EncoderConfig, weights: &Weights, classify: bool) -> Vec<Needed> {
    let names = Names::of(weights, config.variant);
    let EncoderConfig { width, inner_width, biases, .. } = *config;
    let mut list = vec![Needed::Table(names.words(), [config.vocabulary, width])];
    if let Some(first) = first_position(config, weights) {
        list.push(Needed::Table(names.positions(), [first + config.positions, width]));
    }
    if let Some(types) = config.types {
        list.push(Needed::Table(names.types(), [types, width]));
    }
    let norm = |list: &mut Vec<Needed>, name: String| {
        list.push(Needed::Vector(format!("{name}.weight"), width));
        list.extend(biases.norms.then(|| Needed::Vector(format!("{name}.bias"), width)));
    };
    let linear = |list: &mut Vec<Needed>, name: &str, [outputs, inputs]: [usize; 2], bias: bool| {
        list.push(Needed::Matrix(format!("{name}.weight"), [outputs, inputs]));
        list.extend(bias.then(|| Needed::Vector(format!("{name}.bias"), outputs)));
    };
    norm(&mut list, names.embeddings_norm());
    let (layers, planes) = (config.layers.len(), planes(config));
    for layer in 0..layers {
        let of = |part| names.of_layer(layer, part);
        let qkv = names.qkv(layer);
        for name in &qkv {
            linear(&mut list, name, [3 * width / qkv.len(), width], biases.attention);
        }
        linear(&mut list, &of(Part::AttentionOutput), [width, width], biases.attention);
        linear(&mut list, &of(Part::Up), [planes * inner_width, width], biases.feed_forward);
        linear(&mut list, &of(Part::Down), [width, inner_width], biases.feed_forward);
        norm(&mut list, of(Part::AttentionNorm));
        norm(&mut list, names.output_norm(layer, layers));
    }
    if classify {
        let dense = config.is_deep().then(|| (names.classifier_dense(), width, biases.classifier));
        let output = (names.classifier_output(config.classifies).to_owned(), config.labels.len(), true);
        for (name, outputs, bias) in dense.into_iter().chain([output]) {
            list.push(Needed::Table(format!("{name}.weight"), [outputs, width]));
            list.extend(bias.then(|| Needed::Vector(format!("{name}.bias"), outputs)));
        }
        if config.is_deep() && config.classifier.is_normed {
            norm(&mut list, names.classifier_norm());
        }
    }
    list.extend((!biases.norms).then_some(Needed::Zeros(width)));
    list.extend(rotary_bases(config).values().map(|_| Needed::Rotation));
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
            Needed::Zeros(_) | Needed::Rotation => continue,
        };
    }
    Ok(())
}

/// What is counted beside the files.
pub(crate) struct Loaded {
    pub(crate) dtype: Dtype,
    pub(crate) kernels: Kernels,
    pub(crate) classify: bool,
    /// The longest row, in tokens.
    pub(crate) length_max: u32,
}

/// Bytes of the tensors once loaded.
pub(crate) fn resident(config: &EncoderConfig, weights: &Weights, loaded: Loaded) -> u64 {
    let Loaded { dtype, kernels, classify, length_max } = loaded;
    let vector_element = kernels.activations(dtype).size_in_bytes() as u64;
    let bytes = |needed: Needed| match needed {
        Needed::Vector(_, len) | Needed::Zeros(len) => vector_element * len as u64,
        Needed::Matrix(_, shape) => Matrix::bytes(kernels.layers(dtype), shape),
        Needed::Table(_, shape) => Matrix::bytes(kernels.elsewhere(dtype), shape),
        Needed::Rotation => Rotation::bytes(length_max as usize, config.head_size(), kernels.rotations(dtype)),
    };
    needed(config, weights, classify).into_iter().map(bytes).sum()
}

/// Elements for each token of a step's largest tensor, if its longest row has `length` tokens, on the framework's
/// operations.
pub(crate) fn framework_elements_per_token(config: &EncoderConfig, length: u32) -> u64 {
    let (heads, width) = (config.heads as u64, config.width as u64);
    let scores = framework::score_elements_per_token(heads, width / heads, u64::from(length));
    let labels = if config.classifies == Classifies::Tokens { config.labels.len() as u64 } else { 0 };
    scores.max(3 * width).max(config.inner_width as u64).max(labels)
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
    let loader = Loader::new(&plan, device)?;
    let Plan { config, weights, dtype, kernels, .. } = plan;
    let layers = (0..config.layers.len()).map(|layer| loader.layer(layer)).collect::<Result<Vec<_>, _>>()?;
    let widest = layers.iter().flat_map(|(_, feed_forward)| [&feed_forward.up, &feed_forward.down]);
    Ok(Encoder {
        embeddings: loader.embeddings()?,
        first_position: first_position(config, weights).unwrap_or(0) as u32,
        head: match (plan.pooling, config.classifies) {
            (Some(pooling), _) => Head::Pool(pooling),
            (None, Classifies::Tokens) => Head::ClassifyTokens(loader.classifier()?),
            (None, Classifies::Texts | Classifies::Nothing) => {
                Head::Classify(config.classifier.pooling, loader.classifier()?)
            }
        },
        widths: Widths {
            hidden: config.width,
            inner: planes(config) * config.inner_width,
            heads: config.heads,
            window: config.window(),
            linear_scratch: widest.map(|linear| linear_scratch(&linear.weight)).max().unwrap_or(0),
            #[cfg(feature = "cuda")]
            codes: layers[0].1.down.weight.eight_bit().map(|form| (form, config.width.max(config.inner_width))),
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

/// Makes the parts of one model.
struct Loader<'a> {
    config: &'a EncoderConfig,
    names: Names,
    reader: Reader<'a>,
    first_position: Option<usize>,
    /// The bias of norms that have none.
    zeros: Tensor,
    /// By the bits of their bases.
    rotations: BTreeMap<u64, Rotation>,
}

impl<'a> Loader<'a> {
    fn new(plan: &Plan<'a>, device: &'a Device) -> Result<Loader<'a>, ModelError> {
        let &Plan { config, weights, dtype, kernels, ref axes, .. } = plan;
        let rotation = |(bits, base): (u64, f64)| -> Result<_, ModelError> {
            let (positions, held) = (axes.extent.max as usize, kernels.rotations(dtype));
            Ok((bits, Rotation::new(base, positions, config.head_size(), held, device)?))
        };
        Ok(Loader {
            config,
            names: Names::of(weights, config.variant),
            reader: Reader { weights, device, dtype, kernels },
            first_position: first_position(config, weights),
            zeros: Tensor::zeros(config.width, kernels.activations(dtype), device)?,
            rotations: rotary_bases(config).into_iter().map(rotation).collect::<Result<_, _>>()?,
        })
    }

    fn norm(&self, name: &str) -> Result<Norm, ModelError> {
        let width = self.config.width;
        let bias = match self.config.biases.norms {
            true => self.reader.vector(&format!("{name}.bias"), width)?,
            false => self.zeros.clone(),
        };
        Ok(Norm { weight: self.reader.vector(&format!("{name}.weight"), width)?, bias, epsilon: self.config.epsilon })
    }

    fn bias(&self, name: &str, outputs: usize, there: bool) -> Result<Option<Tensor>, ModelError> {
        there.then(|| self.reader.vector(&format!("{name}.bias"), outputs)).transpose()
    }

    /// As heads have it, which have no fused operations.
    fn plain_linear(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear, ModelError> {
        let weight = self.reader.table(&format!("{name}.weight"), shape)?;
        Ok(Linear { weight, bias: self.bias(name, shape[0], bias)? })
    }

    fn linear(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear, ModelError> {
        let weight = self.reader.kernels.lay_out(self.reader.matrix(&format!("{name}.weight"), shape)?)?;
        Ok(Linear { weight, bias: self.bias(name, shape[0], bias)? })
    }

    /// One of the two halves, of `shape`, of what a file holds as one.
    fn half(&self, name: &str, which: usize, shape: [usize; 2], bias: bool) -> Result<Linear, ModelError> {
        let (reader, half) = (&self.reader, weights::Part { index: which, of: 2 });
        let weight = reader.matrix_part(&format!("{name}.weight"), shape, half)?;
        let bias = bias.then(|| reader.vector_part(&format!("{name}.bias"), shape[0], half)).transpose()?;
        Ok(Linear { weight: reader.kernels.lay_out(weight)?, bias })
    }

    fn embeddings(&self) -> Result<Embeddings, ModelError> {
        let (config, names, reader) = (self.config, &self.names, &self.reader);
        let table = |name: String, rows: usize| reader.table(&name, [rows, config.width]);
        Ok(Embeddings {
            tables: Tables {
                words: table(names.words(), config.vocabulary)?,
                positions: self
                    .first_position
                    .map(|first| table(names.positions(), first + config.positions))
                    .transpose()?,
                types: config.types.map(|types| table(names.types(), types)).transpose()?,
            },
            norm: self.norm(&names.embeddings_norm())?,
        })
    }

    fn layer(&self, layer: usize) -> Result<(SelfAttention, FeedForward), ModelError> {
        let Loader { config, names, .. } = self;
        let EncoderConfig { width, inner_width, biases, variant, .. } = **config;
        let of = |part: Part| names.of_layer(layer, part);
        let residual = |name: &str| Ok::<_, ModelError>(Residual { norm: self.norm(name)?, order: variant.order() });
        let attends = config.layers[layer];
        let attention = SelfAttention {
            qkv: self.qkv(layer)?,
            output: self.linear(&of(Part::AttentionOutput), [width, width], biases.attention)?,
            residual: residual(&of(Part::AttentionNorm))?,
            heads: config.heads,
            rotation: attends.rotary_base.map(|base| self.rotations[&base.to_bits()].clone()),
            sight: attends.sight,
        };
        let (up, shape) = (of(Part::Up), [inner_width, width]);
        let (up, gate) = match variant.is_gated() {
            false => (self.linear(&up, shape, biases.feed_forward)?, None),
            true => {
                let half = |which| self.half(&up, which, shape, biases.feed_forward);
                (half(0)?, Some(half(1)?))
            }
        };
        let feed_forward = FeedForward {
            up,
            gate,
            down: self.linear(&of(Part::Down), [width, inner_width], biases.feed_forward)?,
            activation: config.activation,
            residual: residual(&names.output_norm(layer, config.layers.len()))?,
        };
        Ok((attention, feed_forward))
    }

    /// Queries, keys and values end to end.
    fn qkv(&self, layer: usize) -> Result<Linear, ModelError> {
        let (reader, width) = (&self.reader, self.config.width);
        let names = self.names.qkv(layer);
        let with = |end: &str| names.iter().map(|name| format!("{name}.{end}")).collect::<Vec<_>>();
        let rows = 3 * width / names.len();
        let bias = self.config.biases.attention.then(|| reader.vectors(&with("bias"), rows)).transpose()?;
        Ok(Linear { weight: reader.kernels.lay_out(reader.matrices(&with("weight"), [rows, width])?)?, bias })
    }

    fn classifier(&self) -> Result<Classify, ModelError> {
        let EncoderConfig { width, biases, classifier, classifies, ref labels, .. } = *self.config;
        let before = || -> Result<_, ModelError> {
            Ok(Before {
                dense: self.plain_linear(&self.names.classifier_dense(), [width, width], biases.classifier)?,
                between: classifier.between,
                norm: classifier.is_normed.then(|| self.norm(&self.names.classifier_norm())).transpose()?,
            })
        };
        Ok(Classify {
            before: self.config.is_deep().then(before).transpose()?,
            output: self.plain_linear(self.names.classifier_output(classifies), [labels.len(), width], true)?,
        })
    }
}
