//! Case: truncated, malformed or hostile model files give one clear error before anything large is allocated, and
//! nothing in them is ever run.

use std::path::Path;

use candle_core::Device;
use plimsoll::config::{Dtype, ModelConfig, Source};
use plimsoll::model::{Blueprint, ModelError, ModelFiles};

fn config(dtype: Dtype) -> ModelConfig {
    ModelConfig { dtype, ..ModelConfig::new("test", Source::Path("".into())) }
}

/// A copy of tiny-embed that a test may spoil.
fn good() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-embed");
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    let files = ["config.json", "tokenizer.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json"];
    for file in files.into_iter().chain(["model.safetensors"]) {
        std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn blueprint(folder: &Path, dtype: Dtype) -> Result<Blueprint, ModelError> {
    Blueprint::new(&config(dtype), ModelFiles::open(folder)?)
}

fn load(folder: &Path, dtype: Dtype) -> Result<(), ModelError> {
    blueprint(folder, dtype)?.load(&Device::Cpu).map(|_| ())
}

/// `spoil` a good folder; the error has to hold every one of `words`.
#[track_caller]
fn refused(spoil: impl FnOnce(&Path), words: &[&str]) {
    let folder = good();
    assert_eq!(load(folder.path(), Dtype::F32), Ok(()));
    spoil(folder.path());
    let error = load(folder.path(), Dtype::F32).expect_err("the spoiled folder loads").to_string();
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

/// A safetensors file with this header and `data` bytes of zeros.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
}

fn weights(bytes: Vec<u8>) -> impl FnOnce(&Path) {
    move |folder| std::fs::write(folder.join("model.safetensors"), bytes).unwrap()
}

#[test]
fn safetensors_headers() {
    refused(weights(vec![]), &["model.safetensors", "0 bytes"]);
    refused(weights(vec![1; 7]), &["7 bytes"]);
    refused(weights(u64::MAX.to_le_bytes().to_vec()), &["a header of 18446744073709551615 bytes"]);
    refused(weights([&(1u64 << 40).to_le_bytes()[..], b"{}"].concat()), &["a header of 1099511627776 bytes"]);
    refused(weights(safetensors("{", 0)), &["not a JSON object"]);
    refused(weights(safetensors("\u{0}\u{1}", 0)), &["not a JSON object"]);
    refused(weights(safetensors(&"[".repeat(100_000), 0)), &["not a JSON object"]);
    refused(weights(safetensors("{}", 0)), &["word_embeddings", "missing"]);
    refused(weights(safetensors(r#"{"a": 3}"#, 0)), &["tensor 'a'"]);
    let one =
        |shape: &str, offsets: &str| format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
    refused(weights(safetensors(&one("[2]", "[0,8]"), 4)), &["tensor 'a'", "bytes 0..8"]);
    refused(weights(safetensors(&one("[2]", "[8,0]"), 8)), &["bytes 8..0"]);
    refused(weights(safetensors(&one("[2]", "[0,18446744073709551615]"), 8)), &["inside the file's 8 bytes"]);
    refused(weights(safetensors(&one("[3]", "[0,8]"), 8)), &["12 bytes"]);
    refused(weights(safetensors(&one("[-1]", "[0,8]"), 8)), &["tensor 'a'"]);
    refused(weights(safetensors(&one("[4294967296,4294967296]", "[0,8]"), 8)), &["shape"]);
    refused(weights(safetensors(&one("[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8)), &["tensor 'a'", "9 dimensions"]);
    let many: Vec<_> = (0..65_537)
        .map(|index| format!("\"{index}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}}"))
        .collect();
    refused(weights(safetensors(&format!("{{{}}}", many.join(",")), 0)), &["65537 tensors"]);
    refused(weights(safetensors(&one("[2]", "[4,12]"), 12)), &["gaps or overlaps"]);
    refused(weights(safetensors(&one("[2]", "[0,8]"), 9)), &["gaps or overlaps"]);
}

#[test]
fn weights_that_end_early() {
    let cut = |folder: &Path| {
        let path = folder.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    };
    refused(cut, &["model.safetensors", "inside the file's"]);
}

/// Changes one value of a tensor in a folder to these bits; where `encoding` is given, all tensors are said to be in it.
fn set(folder: &Path, tensor: &str, at: usize, bits: u16, encoding: Option<&str>) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let begin = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..begin]).unwrap();
    let mut data = bytes[begin..].to_vec();
    let place = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 2 * at;
    data[place..place + 2].copy_from_slice(&bits.to_le_bytes());
    for tensor in header.as_object_mut().unwrap().values_mut().filter(|tensor| tensor.get("dtype").is_some()) {
        tensor["dtype"] = encoding.unwrap_or("F16").into();
    }
    let header = header.to_string();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

#[test]
fn weights_that_are_no_numbers() {
    let tensors = [
        ("embeddings.word_embeddings.weight", 192 * 8192 - 1),
        ("encoder.layer.1.intermediate.dense.weight", 77),
        ("encoder.layer.1.attention.self.key.weight", 0),
        ("encoder.layer.0.attention.output.LayerNorm.bias", 191),
    ];
    for (tensor, at) in tensors {
        // Of each encoding: not a number, and both infinities.
        for (encoding, bits) in [("F16", [0x7e00, 0x7c00, 0xfc00]), ("BF16", [0x7fc0, 0x7f80, 0xff80])] {
            for (bits, found) in bits.into_iter().zip(["NaN", "inf", "-inf"]) {
                for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8, Dtype::Int8] {
                    let folder = good();
                    set(folder.path(), tensor, at, bits, Some(encoding));
                    let error = load(folder.path(), dtype).expect_err("what is no number loads").to_string();
                    let expected = format!("'{tensor}': found {found}; allowed: finite values");
                    assert!(error.contains(&expected), "{encoding} as {dtype}: {error}");
                }
            }
        }
    }
}

#[test]
fn weights_that_a_dtype_cannot_hold() {
    // 1e10 in bf16.
    for (tensor, dtype) in [
        ("encoder.layer.1.intermediate.dense.weight", Dtype::F16),
        ("encoder.layer.1.intermediate.dense.weight", Dtype::Int8),
        ("embeddings.word_embeddings.weight", Dtype::F16),
    ] {
        let folder = good();
        set(folder.path(), tensor, 5, 0x5015, Some("BF16"));
        let error = load(folder.path(), dtype).expect_err("what it cannot hold loads").to_string();
        assert!(error.contains("cannot hold") && error.contains(tensor), "{error}");
        assert_eq!(load(folder.path(), Dtype::Bf16), Ok(()));
    }
}

#[test]
fn a_file_that_shrinks_between_check_and_load_is_an_error() {
    let folder = good();
    let blueprint = blueprint(folder.path(), Dtype::F32).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors")).unwrap();
    file.set_len(100_000).unwrap();
    assert!(matches!(blueprint.load(&Device::Cpu), Err(ModelError::Unreadable { .. })));
}

#[test]
fn configurations() {
    let edit = |from: &'static str, to: &'static str| {
        move |folder: &Path| {
            let path = folder.join("config.json");
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{from}");
            std::fs::write(path, text.replace(from, to)).unwrap();
        }
    };
    refused(edit("\"hidden_size\": 192", "\"hidden_size\": 4611686018427387904"), &["hidden_size", "1 to 16384"]);
    refused(edit("\"vocab_size\": 8192", "\"vocab_size\": 8193"), &["word_embeddings", "[8192, 192]", "[8193, 192]"]);
    refused(edit("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5"), &["encoder.layer.4", "missing"]);
    refused(edit("\"bert\"", "\"mamba\""), &["model_type", "'mamba'", "bert"]);
    refused(edit("{", ""), &["config.json"]);
    refused(|folder| std::fs::remove_file(folder.join("config.json")).unwrap(), &["config.json is missing"]);
    refused(|folder| std::fs::write(folder.join("config.json"), vec![b' '; 5 << 20]).unwrap(), &["at most"]);
}

#[test]
fn tokenizers() {
    refused(|folder| std::fs::remove_file(folder.join("tokenizer.json")).unwrap(), &["tokenizer.json is missing"]);
    refused(|folder| std::fs::write(folder.join("tokenizer.json"), "{}").unwrap(), &["tokenizer.json"]);
    refused(|folder| std::fs::write(folder.join("tokenizer.json"), [0xff; 10]).unwrap(), &["tokenizer.json"]);
}

#[test]
fn pooling_and_modules() {
    let pooling =
        |text: &'static str| move |folder: &Path| std::fs::write(folder.join("1_Pooling/config.json"), text).unwrap();
    refused(pooling(r#"{"pooling_mode_max_tokens": true}"#), &["1_Pooling/config.json", "pooling_mode_max_tokens"]);
    refused(pooling("{}"), &["no mode"]);
    let modules = |text: &'static str| move |folder: &Path| std::fs::write(folder.join("modules.json"), text).unwrap();
    refused(modules(r#"[{"type": "x.Dense", "path": "2_Dense"}]"#), &["'x.Dense'", "Normalize"]);
    refused(modules(r#"[{"type": "x.Pooling", "path": "../elsewhere"}]"#), &["'../elsewhere/config.json'"]);
}

#[test]
fn indices_that_lead_out_of_the_folder() {
    let index = |shard: &'static str| {
        move |folder: &Path| {
            std::fs::rename(folder.join("model.safetensors"), folder.join("w.safetensors")).unwrap();
            let text = format!(r#"{{"weight_map": {{"a": "{shard}"}}}}"#);
            std::fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
        }
    };
    refused(index("../w.safetensors"), &["'../w.safetensors'", "without '..'"]);
    refused(index("/etc/w.safetensors"), &["'/etc/w.safetensors'"]);
    refused(index("w.pickle"), &["'w.pickle'", ".safetensors"]);
    refused(index("x.safetensors"), &["x.safetensors is missing"]);
    let link = |folder: &Path| {
        let outside = folder.parent().unwrap().join(format!("{}-weights", folder.file_name().unwrap().display()));
        std::fs::rename(folder.join("model.safetensors"), &outside).unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("model.safetensors")).unwrap();
    };
    refused(link, &["a link to"]);
}

#[test]
fn a_pickle_is_never_opened() {
    let pickle = |folder: &Path| {
        std::fs::remove_file(folder.join("model.safetensors")).unwrap();
        std::fs::write(folder.join("pytorch_model.bin"), b"cos\nsystem\n(S'touch /tmp/owned'\ntR.").unwrap();
    };
    refused(pickle, &["pytorch_model.bin", "pickle", "safetensors"]);
}

#[test]
fn digests_are_checked_before_the_weights_are_used() {
    let folder = good();
    let with = |digest: &str| {
        let mut config = config(Dtype::F32);
        config.sha256.insert("model.safetensors".to_owned(), digest.to_owned());
        Blueprint::new(&config, ModelFiles::open(folder.path()).unwrap()).unwrap().load(&Device::Cpu).map(|_| ())
    };
    let Err(ModelError::Digest { found, .. }) = with(&"0".repeat(64)) else { panic!("a wrong digest passes") };
    assert_eq!(with(&found), Ok(()));
}

/// A GGUF file up to where its tensors are described.
fn gguf(version: u32, tensors: u64, pairs: u64, rest: &[u8]) -> Vec<u8> {
    [b"GGUF", &version.to_le_bytes()[..], &tensors.to_le_bytes(), &pairs.to_le_bytes(), rest].concat()
}

#[test]
fn gguf_headers() {
    let spoil = |bytes: Vec<u8>| {
        move |folder: &Path| {
            std::fs::remove_file(folder.join("model.safetensors")).unwrap();
            std::fs::write(folder.join("model.gguf"), bytes).unwrap();
        }
    };
    refused(spoil(vec![]), &["model.gguf", "4 bytes more"]);
    refused(spoil(b"GGML----".to_vec()), &["GGUF"]);
    refused(spoil(gguf(9, 0, 0, &[])), &["version 9"]);
    refused(spoil(gguf(3, u64::MAX, 0, &[])), &["18446744073709551615 tensors"]);
    refused(spoil(gguf(3, 0, u64::MAX, &[])), &["metadata entries"]);
    refused(spoil(gguf(3, 1, 0, &u64::MAX.to_le_bytes())), &["bytes in a name"]);
    refused(spoil(gguf(3, 1000, 0, &[])), &["8 bytes more"]);
    let name = |name: &str| [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
    let pair = |kind: u32, value: &[u8]| [&name("k"), &kind.to_le_bytes()[..], value].concat();
    refused(spoil(gguf(3, 0, 1, &pair(8, &u64::MAX.to_le_bytes()))), &["18446744073709551615 bytes more"]);
    let array = |of: u32, count: u64| pair(9, &[&of.to_le_bytes()[..], &count.to_le_bytes()].concat());
    refused(spoil(gguf(3, 0, 1, &array(12, u64::MAX))), &["bytes more"]);
    refused(spoil(gguf(3, 0, 1, &array(8, u64::MAX))), &["8 bytes more"]);
    refused(spoil(gguf(3, 0, 1, &array(9, 2))), &["metadata of type 9"]);
    refused(spoil(gguf(3, 0, 1, &pair(99, &[]))), &["metadata of type 99"]);
    let tensor = |rank: u32, sizes: &[u64], kind: u32, offset: u64| {
        let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        [&name("t")[..], &rank.to_le_bytes(), &sizes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
    };
    refused(spoil(gguf(3, 1, 0, &tensor(u32::MAX, &[], 0, 0))), &["4294967295 dimensions"]);
    refused(spoil(gguf(3, 1, 0, &tensor(2, &[1 << 40, 1 << 40], 0, 0))), &["dimensions"]);
    refused(spoil(gguf(3, 1, 0, &tensor(1, &[64], 0, u64::MAX))), &["an extent inside"]);
    refused(spoil(gguf(3, 1, 0, &tensor(1, &[64], 0, 0))), &["256 bytes"]);
    refused(spoil(gguf(3, 1, 0, &tensor(1, &[33], 8, 0))), &["multiple of 32"]);
    refused(spoil(gguf(3, 0, 0, &[])), &["token_embd.weight", "missing"]);
}
