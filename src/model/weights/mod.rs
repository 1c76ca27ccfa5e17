//! The tensors of a model's files: headers first, contents later and in pieces.

mod gguf;
mod reader;
mod safetensors;
mod fuzzing;

pub use fuzzing::read_every_tensor;
pub(crate) use reader::{Part, Reader};

use std::collections::BTreeMap;

use super::error::ModelError;
use super::files::{ModelFiles, Source};

/// No real encoder has more; a header that says so is not worth its memory.
const TENSORS_MAX: usize = 65_536;

/// The form of a tensor in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    Bf16,
    /// Blocks of 32: a f16 scale and 32 signed bytes.
    Q8,
    /// Something that a matrix cannot be made of, such as a position index of whole numbers. Its name is for errors.
    Other(&'static str),
}

impl Encoding {
    /// Bytes of `elements` consecutive ones; `None` when that is not a whole number of blocks or not readable at all.
    pub(crate) fn bytes(self, elements: u64) -> Option<u64> {
        match self {
            Encoding::F32 => elements.checked_mul(4),
            Encoding::F16 | Encoding::Bf16 => elements.checked_mul(2),
            Encoding::Q8 if elements.is_multiple_of(32) => (elements / 32).checked_mul(34),
            Encoding::Q8 | Encoding::Other(_) => None,
        }
    }
}

/// A tensor as a header describes it. The header's reader has checked that its bytes lie inside the file and are as
/// many as its shape needs (but for [`Encoding::Other`]).
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) file: usize,
    pub(crate) encoding: Encoding,
    /// Slowest dimension first.
    pub(crate) shape: Vec<usize>,
    pub(crate) offset: u64,
}

/// Which names the tensors go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// Those of the Hugging Face libraries.
    HuggingFace,
    /// Those of GGUF files.
    Gguf,
}

/// All tensors of a model, by name, unread.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    files: Vec<(String, Source)>,
    tensors: BTreeMap<String, Stored>,
    pub(crate) naming: Naming,
}

impl Weights {
    /// Reads the headers of `model.safetensors`, of the shards that `model.safetensors.index.json` names, or of the
    /// only `.gguf` file.
    pub(crate) fn open(files: &ModelFiles) -> Result<Weights, ModelError> {
        if files.open_file("model.safetensors")?.is_some() {
            return Weights::of_shards(files, &["model.safetensors".to_owned()]);
        }
        if let Some(shards) = safetensors::shards(files, "model.safetensors.index.json")? {
            return Weights::of_shards(files, &shards);
        }
        let names = files.names()?;
        let ggufs: Vec<&String> = names.iter().filter(|name| name.ends_with(".gguf")).collect();
        match ggufs.as_slice() {
            [only] => {
                let source = files.open_file(only)?.ok_or_else(|| ModelError::missing(files.place(only), "weights"))?;
                let place = files.place(only);
                let tensors = gguf::read_header(&place, &source)?;
                Ok(Weights { files: vec![(place, source)], tensors, naming: Naming::Gguf })
            }
            [] => {
                let pickled =
                    names.iter().find(|name| [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end)));
                let needed = match pickled {
                    Some(name) => format!(
                        "{name} is a Python pickle, which can run code and is never opened; convert it with \
                         safetensors.torch.save_file, or take a revision that has model.safetensors"
                    ),
                    None => "the weights, as model.safetensors, its shards with an index, or one .gguf file".to_owned(),
                };
                Err(ModelError::missing(files.place("model.safetensors"), needed))
            }
            several => {
                let found = several.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
                Err(ModelError::invalid(files.place(""), found, "one .gguf file in a folder"))
            }
        }
    }

    fn of_shards(files: &ModelFiles, shards: &[String]) -> Result<Weights, ModelError> {
        let mut weights = Weights { files: Vec::new(), tensors: BTreeMap::new(), naming: Naming::HuggingFace };
        for shard in shards {
            let place = files.place(shard);
            let source = files.open_file(shard)?.ok_or_else(|| ModelError::missing(&*place, "the index names it"))?;
            for (name, mut stored) in safetensors::read_header(&place, &source)? {
                stored.file = weights.files.len();
                if weights.tensors.insert(name.clone(), stored).is_some() {
                    let found = format!("the tensor '{name}' again");
                    return Err(ModelError::invalid(&*place, found, "each tensor in one shard"));
                }
            }
            weights.files.push((place, source));
        }
        Ok(weights)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// How an error names a tensor.
    pub(crate) fn place(&self, name: &str) -> String {
        let file = self.get(name).and_then(|stored| self.files.get(stored.file)).or(self.files.first());
        format!("{}: tensor '{name}'", file.map_or("weights", |(place, _)| place))
    }

    /// Names, shapes and encodings in order, for the content key.
    pub(crate) fn describe(&self) -> String {
        let line = |(name, stored): (&String, &Stored)| format!("{name} {:?} {:?}\n", stored.encoding, stored.shape);
        self.tensors.iter().map(line).collect()
    }

    /// The tensor `name`, whose shape has to be `shape`.
    pub(crate) fn expect(&self, name: &str, shape: &[usize]) -> Result<&Stored, ModelError> {
        let stored = self.get(name).ok_or_else(|| ModelError::missing(self.place(name), "the model needs it"))?;
        if stored.shape != shape {
            return Err(ModelError::invalid(
                self.place(name),
                format!("the shape {:?}", stored.shape),
                format!("{shape:?}, as config.json says"),
            ));
        }
        if let Encoding::Other(found) = stored.encoding {
            return Err(ModelError::invalid(self.place(name), found, "F32, F16, BF16 or Q8_0"));
        }
        Ok(stored)
    }

    fn source(&self, stored: &Stored) -> &Source {
        &self.files[stored.file].1
    }
}
