//! All that is needed to load a model, checked before anything large is allocated.

use std::fmt::Write;
use std::sync::Arc;

use candle_core::Device;
use sha2::{Digest, Sha256};

use super::card::{ModelCard, card, length_max, task, text_encoder};
use super::encoder::{self, EncoderConfig, Loaded, Plan};
use super::error::ModelError;
use super::files::ModelFiles;
use super::form::{DeviceForm, ModelForm};
use super::layers::Kernels;
use super::sentence::Sentence;
use super::weights::{Reader, Weights};
use super::{Batch, Model, Output};
use crate::config::{Dtype, ModelConfig, Task};
use crate::memory::{Axes, Axis, Shape, ShapeKind};
#[cfg(feature = "cuda")]
use crate::ops::card;
use crate::ops::framework;
use crate::units::Bytes;

const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Why a device may not take a model in fp8.
const FP8_NEEDS: &str = "fp8 needs a GPU of compute capability 8.9 or later";

/// A model that can be loaded, any number of times, on any device. Cheap to clone and to send.
#[derive(Clone, Debug)]
pub struct Blueprint {
    inner: Arc<Inner>,
    device: DeviceForm,
    kernels: Kernels,
    steps: ShapeKind,
}

#[derive(Debug, Clone)]
struct Inner {
    card: Arc<ModelCard>,
    config: EncoderConfig,
    files: ModelFiles,
    weights: Weights,
    sha256: Vec<(String, String)>,
    /// As configured.
    step_tokens_max: Option<u32>,
    content_key: String,
    stamp: String,
}

impl Blueprint {
    /// Reads configuration, tokenizer and the weights' headers, and checks all that can be checked by them.
    ///
    /// # Errors
    /// A [`ModelError`] naming the file and key, what was found and what is allowed.
    pub fn new(config: &ModelConfig, files: ModelFiles) -> Result<Blueprint, ModelError> {
        let place = files.place("config.json");
        let stamp = files.stamp()?;
        let needed = "the folder has to hold a model in the Hugging Face layout";
        let bytes = files.read("config.json", CONFIG_BYTES_MAX)?.ok_or_else(|| ModelError::missing(&*place, needed))?;
        let model = EncoderConfig::parse(&place, &bytes)?;
        let sentence = Sentence::read(&files)?;
        let task = task(config, &model, &place)?;
        let length_max = length_max(config, &sentence, &model, &place)?;
        let weights = Weights::open(&files)?;
        encoder::check(&model, &weights, config.dtype, task != Task::Embed)?;
        let encoder = text_encoder(&files, &model, length_max)?;
        let card = card(config, &model, sentence, task, length_max, encoder)?;
        let content_key = content_key(config, &card, &bytes, &weights);
        let sha256 = config.sha256.iter().map(|(file, digest)| (file.clone(), digest.clone())).collect();
        let card = Arc::new(card);
        if files.stamp()? != stamp {
            return Err(ModelError::unreadable(files.place(""), "its files changed while they were read: try again"));
        }
        let step_tokens_max = config.step_tokens_max;
        let inner = Inner { card, config: model, files, weights, sha256, step_tokens_max, content_key, stamp };
        Ok(Blueprint::made_for(DeviceForm::Cpu, Arc::new(inner)))
    }

    /// The same model for another kind of device: its axes, its content key and what it loads are made for that kind.
    /// A new blueprint is for the CPU.
    #[must_use]
    pub fn for_device(self, device: DeviceForm) -> Blueprint {
        Blueprint::made_for(device, self.inner)
    }

    fn made_for(device: DeviceForm, inner: Arc<Inner>) -> Blueprint {
        let EncoderConfig { width, inner_width, .. } = inner.config;
        let (dtype, head_size) = (inner.card.dtype, inner.config.head_size());
        let kernels = device.kernels(ModelForm { dtype, width, head_size, inner: inner_width });
        Blueprint { inner, device, kernels, steps: kernels.steps() }
    }

    /// The same model as a later revision of itself.
    #[must_use]
    pub fn with_version(mut self, version: u32) -> Blueprint {
        let inner = Arc::make_mut(&mut self.inner);
        Arc::make_mut(&mut inner.card).version = version;
        self
    }

    /// The same model on other operations than its device's best, with steps of a form that they know.
    ///
    /// # Panics
    /// For [`Kernels::Card`], which run nowhere else and come with a device of that form.
    #[must_use]
    pub fn with_kernels(self, kernels: Kernels) -> Blueprint {
        assert!(kernels != Kernels::Card, "{kernels:?} come with a kind of device");
        let steps = if kernels == Kernels::Framework { kernels.steps() } else { self.steps };
        Blueprint { kernels, steps, ..self }
    }

    /// The same model with steps of another form: rows laid end to end (nothing is computed that nobody asked for), or
    /// padded to the longest. The results are the same.
    ///
    /// # Panics
    /// For [`ShapeKind::Generate`], which is no form of an encoder's step, and for a device whose operations know one
    /// form only.
    #[must_use]
    pub fn with_form(self, steps: ShapeKind) -> Blueprint {
        assert!(steps != ShapeKind::Generate, "an encoder computes whole rows");
        assert!(!self.kernels.are_of_a_device() || steps == self.steps, "{:?} know one form", self.kernels);
        Blueprint { steps, ..self }
    }

    /// The model's facts.
    pub fn card(&self) -> &Arc<ModelCard> {
        &self.inner.card
    }

    /// Whether the kind of device can run the model at all, as far as that is known before a load.
    ///
    /// # Errors
    /// What of the configuration it cannot, and what to write instead.
    pub fn check_form(&self) -> Result<(), ModelError> {
        let card = &self.inner.card;
        let reason = match (card.dtype, self.kernels, self.device) {
            (Dtype::Fp8, Kernels::Fused, _) | (Dtype::Fp8, Kernels::Framework, DeviceForm::Cpu) => FP8_NEEDS,
            (Dtype::Fp8, Kernels::Framework, DeviceForm::Cuda) => {
                "fp8 needs heads of 32, 64, 96 or 128 values, hidden states of up to 8192 values and feed-forward blocks of \
                 up to 16384, in multiples of 16"
            }
            _ => return Ok(()),
        };
        Err(self.unsuited(reason))
    }

    /// The dtype is not for this device.
    fn unsuited(&self, reason: &str) -> ModelError {
        let card = &self.inner.card;
        let allowed = format!("int8, q8_0, bf16, f16 or f32: {reason}");
        ModelError::invalid(format!("model '{}': dtype", card.name), card.dtype, allowed)
    }

    /// Bytes that it takes once loaded: exact for the tensors; what a device rounds up comes on top.
    pub fn resident(&self) -> Bytes {
        let Inner { config, weights, card, .. } = &*self.inner;
        let ModelCard { dtype, length_max, ref pooling, .. } = **card;
        let loaded = Loaded { dtype, kernels: self.kernels, classify: pooling.is_none(), length_max };
        Bytes::new(encoder::resident(config, weights, loaded))
    }

    /// Bytes of the device beside [`Blueprint::resident`] that a load needs while it runs.
    pub fn transient(&self) -> Bytes {
        self.device.load_transient(self.kernels, Bytes::new(Reader::TRANSIENT_BYTES as u64))
    }

    /// Changes whenever something changes that memory or time of a step could depend on.
    pub fn content_key(&self) -> String {
        let Blueprint { kernels, steps, .. } = self;
        format!("{}-{kernels:?}-{steps:?}", self.inner.content_key).to_lowercase()
    }

    /// Changes whenever one of the model's files does: see [`ModelFiles::stamp`].
    pub fn stamp(&self) -> &str {
        &self.inner.stamp
    }

    /// What its profile is measured over.
    pub fn axes(&self) -> Axes {
        let Inner { card, step_tokens_max: configured, .. } = &*self.inner;
        let most = configured.unwrap_or(self.device.step_tokens_max()).min(self.tokens_indexed());
        // A single row is inside every envelope; `load` refuses one that the kernels cannot index.
        let most = most.max(card.length_max);
        let axis = |max: u32| Axis { min: 1, max, splits: self.splits().filter(|split| *split < max).collect() };
        Axes {
            kind: self.steps,
            batch: axis(most),
            extent: axis(card.length_max),
            step_tokens_max: most,
            // A configured envelope is wanted as a whole, otherwise as much of it as is worth having.
            measured_tokens_min: configured.map_or(card.length_max, |_| most),
        }
    }

    /// Tokens of a step beyond which the device's kernels could not index its largest tensor.
    fn tokens_indexed(&self) -> u32 {
        let Inner { card, config, .. } = &*self.inner;
        match self.kernels {
            Kernels::Fused | Kernels::Plain | Kernels::Card => u32::MAX,
            Kernels::Framework => {
                let each = encoder::framework_elements_per_token(config, card.length_max);
                u32::try_from(framework::ELEMENTS_MAX / each).unwrap_or(u32::MAX)
            }
        }
    }

    /// Batches and lengths at which the device's operations take another way. The framework's quantized products do so
    /// beyond 8 tokens, which is exact where rows or their length are 1. Between those two the switch lies inside a
    /// cell and is worth less than a prediction's granule: 9 tokens of 4,096 values take 0.3 MB more than 8.
    fn splits(&self) -> impl Iterator<Item = u32> {
        let quantized = self.kernels == Kernels::Framework && self.kernels.layers(self.inner.card.dtype) == Dtype::Q8;
        quantized.then_some(framework::QUANTIZED_SWITCH).into_iter()
    }

    /// Checks the digests that the configuration names and loads the weights. Only on the device's own thread.
    ///
    /// # Errors
    /// A [`ModelError`]; what was allocated by then is free again.
    pub fn load(&self, device: &Device) -> Result<Box<dyn Model>, ModelError> {
        let Inner { card, config, files, weights, sha256, .. } = &*self.inner;
        self.check_form()?;
        self.check_device(device)?;
        for (file, digest) in sha256 {
            files.check_digest(file, digest)?;
        }
        let (dtype, pooling, axes) = (card.dtype, card.pooling, self.axes());
        let plan = Plan { config, weights, dtype, pooling, kernels: self.kernels, axes };
        let mut model = encoder::load(plan, device)?;
        self.warm_up(&mut model, device)?;
        Ok(Box::new(model))
    }

    fn check_device(&self, device: &Device) -> Result<(), ModelError> {
        let card = &self.inner.card;
        // The other way round is fine: the framework's operations run everywhere.
        if self.device == DeviceForm::Cpu && !device.is_cpu() {
            let reason = format!("model '{}' was prepared for the CPU and is loaded on another device", card.name);
            return Err(ModelError::Device { reason });
        }
        if self.kernels == Kernels::Card && device.is_cpu() {
            let reason = format!("model '{}' was prepared for a GPU and is loaded on the CPU", card.name);
            return Err(ModelError::Device { reason });
        }
        #[cfg(feature = "cuda")]
        if card.dtype == Dtype::Fp8 && self.kernels == Kernels::Card {
            let (major, minor) = card::capability(device)?;
            if (major, minor) < card::FP8_FROM {
                return Err(self.unsuited(&format!("{FP8_NEEDS}, and this one has {major}.{minor}")));
            }
        }
        let longest = self.tokens_indexed();
        if card.length_max > longest {
            let place = format!("model '{}': length_max", card.name);
            let allowed = format!("up to {longest}: the device's kernels index a text's attention scores with 32 bits");
            return Err(ModelError::invalid(place, card.length_max, allowed));
        }
        Ok(())
    }

    /// First steps, where first steps cost memory that stays: the framework loads a kernel's module onto a card when it
    /// first launches it, and products of up to 8 rows and of more have each their own. Products of ours are prepared for
    /// every step that there may be.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only a card has anything to prepare"))]
    fn warm_up(&self, model: &mut dyn Model, device: &Device) -> Result<(), ModelError> {
        if self.device == DeviceForm::Cpu {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if self.kernels == Kernels::Card {
            let most = self.axes().step_tokens_max as usize;
            let first = card::Operations::preparing(device, most, || self.first_steps(model));
            return first.map_err(|error| ModelError::Device { reason: error.to_string() })?;
        }
        self.first_steps(model)
    }

    fn first_steps(&self, model: &mut dyn Model) -> Result<(), ModelError> {
        let length = self.inner.card.length_max.min(2);
        for rows in [1, framework::QUANTIZED_SWITCH + 1] {
            let step = model.step(&Batch::made_up(Shape::Padded { rows, length })).and_then(Output::vectors);
            let vectors =
                step.map_err(|fault| ModelError::Device { reason: format!("a first step failed: {fault}") })?;
            if vectors.iter().flatten().any(|value| !value.is_finite()) {
                return Err(ModelError::Device { reason: "a first step's result is not finite".to_owned() });
            }
        }
        Ok(())
    }
}

/// A hash over what decides the shape of the computation: not over the weights' values, which cost and memory do not
/// depend on.
fn content_key(config: &ModelConfig, card: &ModelCard, config_json: &[u8], weights: &Weights) -> String {
    let mut hasher = Sha256::new();
    hasher.update(config_json);
    hasher.update(weights.describe());
    let ModelCard { task, dtype, length_max, pooling, .. } = card;
    hasher.update(format!("{task} {dtype} {length_max} {pooling:?} {:?}", config.step_tokens_max));
    hasher.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String succeeds");
        text
    })
}
