//! What an encoder computes: `cargo bench --bench encoder -- [--folder MODEL] [--dtype DTYPE] [--pooling POOLING]
//! [--seconds S]`.
//!
//! The model has the shape of all-MiniLM-L6-v2 and random weights, so that nothing is downloaded; `--folder` takes a
//! real one. Rows are as long as texts are (8 to 256 tokens, mean about 100) unless a case says otherwise. A figure is
//! the fastest of many steps by the clock, and over all of them by the processor's time, which other work on the
//! machine disturbs least. The number of threads is `RAYON_NUM_THREADS`.

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Device;
use plimsoll::config::{Dtype, ModelConfig, Source};
use plimsoll::model::{Batch, Blueprint, Model, ModelFiles, TokenRow};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use safetensors::tensor::{Dtype as Stored, TensorView, serialize_to_file};

const WIDTH: usize = 384;
const INNER: usize = 1536;
const LAYERS: usize = 6;
/// That of the tokenizer which is lent to the random model; the table's size does not matter for the time.
const VOCABULARY: u32 = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let option = |name: &str| std::env::args().skip_while(|arg| arg != name).nth(1);
    let dtypes = match option("--dtype") {
        Some(name) => vec![*Dtype::ALL.iter().find(|dtype| dtype.to_string() == name).ok_or("no such dtype")?],
        // fp8 is a card's.
        None => Dtype::ALL.iter().copied().filter(|dtype| *dtype != Dtype::Fp8).collect(),
    };
    let pooling = option("--pooling").map(|name| name.parse()).transpose()?;
    let time = Duration::from_secs_f64(option("--seconds").map_or(Ok(2.0), |seconds| seconds.parse())?);
    let made = tempfile::tempdir()?;
    let folder = match option("--folder") {
        Some(folder) => PathBuf::from(folder),
        None => {
            write_random_model(made.path())?;
            made.path().to_owned()
        }
    };
    println!("threads: {}", rayon::current_num_threads());
    println!("{:8} {:24} {:>8} {:>12} {:>16} {:>10}", "dtype", "rows", "tokens", "tokens/s", "tokens/cpu-s", "step");
    for dtype in dtypes {
        let config = ModelConfig { dtype, pooling, ..ModelConfig::new("bench", Source::Path(folder.clone())) };
        let mut model = Blueprint::new(&config, ModelFiles::open(&folder)?)?.load(&Device::Cpu)?;
        let equal = |count: usize, length: usize| row_set(vec![length; count]);
        for (name, rows) in [
            ("1 x 16", equal(1, 16)),
            ("1 x 128", equal(1, 128)),
            ("16 x 256", equal(16, 256)),
            ("8 mixed", row_set(mixed(8))),
            ("32 mixed", row_set(mixed(32))),
        ] {
            measure(&mut *model, &format!("{dtype:8} {name:24}"), &rows, time)?;
        }
    }
    Ok(())
}

fn measure(model: &mut dyn Model, name: &str, rows: &Batch, time: Duration) -> Result<(), Box<dyn Error>> {
    let Batch::Tokens(list) = rows;
    let tokens: usize = list.iter().map(|row| row.ids.len()).sum();
    model.step(rows)?;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let (mut best, mut steps) = (Duration::MAX, 0);
    while start.elapsed() < time {
        let step = Instant::now();
        model.step(rows)?;
        best = best.min(step.elapsed());
        steps += 1;
    }
    let cpu_rate = (steps * tokens) as f64 / (cpu_seconds() - cpu);
    let rate = tokens as f64 / best.as_secs_f64();
    println!("{name} {tokens:8} {rate:12.0} {cpu_rate:16.0} {:8.2}ms", best.as_secs_f64() * 1e3);
    Ok(())
}

/// Lengths like those of texts: many short ones, few long ones, mean about 100.
fn mixed(count: usize) -> Vec<usize> {
    let mut random = SmallRng::seed_from_u64(7);
    (0..count).map(|_| (8.0 + 248.0 * random.random::<f64>().powf(1.7)) as usize).collect()
}

fn row_set(lengths: Vec<usize>) -> Batch {
    let mut random = SmallRng::seed_from_u64(1);
    let mut row =
        |length: usize| TokenRow::new((0..length).map(|_| random.random_range(0..VOCABULARY)).collect(), Vec::new());
    Batch::Tokens(lengths.into_iter().map(|length| Arc::new(row(length))).collect())
}

/// Processor time of this process, in user mode: all threads together.
fn cpu_seconds() -> f64 {
    // SAFETY: all zeros are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `rusage` of ours.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    usage.ru_utime.tv_sec as f64 + usage.ru_utime.tv_usec as f64 * 1e-6
}

/// A folder in the Hugging Face layout.
fn write_random_model(folder: &Path) -> Result<(), Box<dyn Error>> {
    let lent = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-embed/tokenizer.json");
    std::fs::copy(lent, folder.join("tokenizer.json"))?;
    let config = serde_json::json!({
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": VOCABULARY, "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": 12, "intermediate_size": INNER, "hidden_act": "gelu",
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let mut random = SmallRng::seed_from_u64(0);
    let mut tensors: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    let mut add = |name: String, shape: &[usize], scale: f32| {
        let count: usize = shape.iter().product();
        let bytes = (0..count).flat_map(|_| random.random_range(-scale..scale).to_le_bytes()).collect();
        tensors.insert(name, (shape.to_vec(), bytes));
    };
    for (table, rows) in [("word", VOCABULARY as usize), ("position", 512), ("token_type", 2)] {
        add(format!("embeddings.{table}_embeddings.weight"), &[rows, WIDTH], 0.1);
    }
    let mut norms = vec!["embeddings.LayerNorm".to_owned()];
    for layer in (0..LAYERS).map(|layer| format!("encoder.layer.{layer}")) {
        for (part, outputs, inputs) in [
            ("attention.self.query", WIDTH, WIDTH),
            ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", INNER, WIDTH),
            ("output.dense", WIDTH, INNER),
        ] {
            add(format!("{layer}.{part}.weight"), &[outputs, inputs], 0.1);
            add(format!("{layer}.{part}.bias"), &[outputs], 0.1);
        }
        norms.extend(["attention.output", "output"].map(|part| format!("{layer}.{part}.LayerNorm")));
    }
    for norm in norms {
        add(format!("{norm}.weight"), &[WIDTH], 1.0);
        add(format!("{norm}.bias"), &[WIDTH], 0.1);
    }
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| Ok((name, TensorView::new(Stored::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    Ok(serialize_to_file(views, None, &folder.join("model.safetensors"))?)
}
