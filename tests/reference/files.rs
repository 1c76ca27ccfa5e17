//! The same weights in other files give the same answers: shards with an index, and GGUF in llama.cpp's names, written
//! by candle.

use std::collections::HashMap;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use plimsoll::config::Dtype;
use plimsoll::model::TokenRow;

use crate::support::{cosine, embedded, folder, load, step};

fn rows() -> Vec<TokenRow> {
    let row = |length: u32| TokenRow::new((0..length).map(|at| 5 + at * 37 % 8_000).collect(), Vec::new());
    vec![row(9), row(70)]
}

fn models(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name)
}

/// A folder with a model's files but its weights, which are returned.
fn without_weights(name: &str) -> (tempfile::TempDir, HashMap<String, Tensor>) {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(models(name).join(file), folder.path().join(file)).unwrap();
    }
    let weights = candle_core::safetensors::load(models(name).join("model.safetensors"), &Device::Cpu).unwrap();
    (folder, weights)
}

/// The smallest cosine between the answers of the folder and those of the embedded original, in f32.
fn smallest_cosine(path: &Path, dtype: Dtype, original: &str) -> f64 {
    let found = step(&mut *load(&folder(path, dtype)), &rows());
    let expected = step(&mut *load(&embedded(original, Dtype::F32)), &rows());
    found.iter().zip(&expected).map(|(found, expected)| cosine(found, expected)).fold(1.0, f64::min)
}

#[test]
fn shards_are_one_model() {
    let (folder, weights) = without_weights("tiny-section");
    let mut shards: [HashMap<String, Tensor>; 2] = Default::default();
    let mut lines = Vec::new();
    for (index, (name, tensor)) in weights.into_iter().enumerate() {
        lines.push(format!(r#""{name}": "part-{}.safetensors""#, index % 2));
        shards[index % 2].insert(name, tensor);
    }
    for (index, shard) in shards.iter().enumerate() {
        candle_core::safetensors::save(shard, folder.path().join(format!("part-{index}.safetensors"))).unwrap();
    }
    let index = format!(r#"{{"metadata": {{}}, "weight_map": {{{}}}}}"#, lines.join(", "));
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert!(smallest_cosine(folder.path(), Dtype::F32, "tiny-section") > 0.999_999_9);
}

/// The name that llama.cpp gives a tensor of a BERT.
fn gguf_name(name: &str) -> String {
    let name = name.strip_prefix("bert.").unwrap_or(name);
    [
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("encoder.layer", "blk"),
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
        ("pooler.dense", "cls"),
        ("classifier", "cls.output"),
    ]
    .into_iter()
    .fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

pub(crate) fn write_gguf(path: &Path, weights: HashMap<String, Tensor>, matrices: GgmlDType) {
    let tensors: Vec<(String, QTensor)> = weights
        .into_iter()
        .map(|(name, tensor)| {
            let kind = if tensor.dims().len() == 2 { matrices } else { GgmlDType::F32 };
            let tensor = tensor.to_dtype(DType::F32).unwrap();
            (gguf_name(&name), QTensor::quantize(&tensor, kind).unwrap())
        })
        .collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let architecture = Value::String("bert".to_owned());
    let words = Value::Array(vec![Value::String("a".to_owned()), Value::String("b".to_owned())]);
    let scores = Value::Array(vec![Value::F32(0.5); 3]);
    let metadata = [
        ("general.architecture", &architecture),
        ("tokenizer.ggml.tokens", &words),
        ("tokenizer.ggml.scores", &scores),
        ("bert.attention.causal", &Value::Bool(false)),
        ("bert.block_count", &Value::U32(4)),
    ];
    let mut file = BufWriter::new(std::fs::File::create(path).unwrap());
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
}

#[test]
fn gguf_holds_the_same_model() {
    for original in ["tiny-embed", "tiny-section"] {
        for (matrices, dtype, least) in [
            (GgmlDType::F32, Dtype::F32, 0.999_999_9),
            (GgmlDType::F16, Dtype::F32, 0.999_999_9),
            (GgmlDType::F16, Dtype::F16, 0.999_999_9),
            (GgmlDType::Q8_0, Dtype::Q8, 0.999),
            (GgmlDType::Q8_0, Dtype::F32, 0.999),
        ] {
            let (folder, weights) = without_weights(original);
            write_gguf(&folder.path().join("model-q.gguf"), weights, matrices);
            let found = smallest_cosine(folder.path(), dtype, original);
            assert!(found > least, "{original} {matrices:?} as {dtype}: cosine {found}");
        }
    }
}

#[test]
fn blocks_of_a_gguf_are_kept_as_they_are() {
    let (folder, weights) = without_weights("tiny-embed");
    write_gguf(&folder.path().join("m.gguf"), weights, GgmlDType::Q8_0);
    // The fused products add in an order that depends on the form; the plain ones see nothing but the weights' values.
    let [blocks, whole] = [Dtype::Q8, Dtype::F32].map(|dtype| {
        let blueprint = crate::support::folder(folder.path(), dtype).with_kernels(plimsoll::model::Kernels::Plain);
        step(&mut *load(&blueprint), &rows())
    });
    assert_eq!(blocks, whole, "q8_0 from Q8_0 holds exactly the file's weights");
}
