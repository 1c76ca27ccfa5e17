//! all-MiniLM-L6-v2 against its reference (a forward pass in f64, checked with transformers and sentence-transformers).
//!
//! The weights (91 MB) are not in the repository: `plimsoll pull all-MiniLM-L6-v2` puts them into the cache, where this
//! test looks for them as the server does. Where CI is set they have to be there; elsewhere the test says what it leaves
//! out.

use std::path::{Path, PathBuf};

use plimsoll::config::source::{Cache, Located, resolve};
use plimsoll::config::{Dtype, Environment, Repository, ServeOptions, ServerConfig};
use plimsoll::tokenize::Truncate;

use crate::support::{cosine, folder, load, numbers, reference, step};

fn weights() -> Option<PathBuf> {
    let environment = Environment::of_process();
    let server = ServerConfig::load(&ServeOptions::default(), &environment).unwrap().config;
    let models = Repository::from_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models")).unwrap();
    let entry = models.find("all-MiniLM-L6-v2").expect("it is in the repository");
    match resolve(&entry.config.as_ref().unwrap().source, &Cache::new(&server, &environment)) {
        Ok(Located::Folder(folder)) => Some(folder),
        Ok(Located::Embedded(name)) => panic!("{name} is not a model that is built in"),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "CI does not leave these tests out: {error}");
            eprintln!("not compared with MiniLM's reference: {error}");
            None
        }
    }
}

/// The smallest cosine over the reference texts, embedded one by one.
fn smallest_cosine(dtype: Dtype, path: &Path) -> f64 {
    let blueprint = folder(path, dtype);
    let card = blueprint.card();
    assert_eq!((card.dimensions, card.length_max, card.normalize), (384, 256, true));
    let mut model = load(&blueprint);
    let reference = reference("all-MiniLM-L6-v2");
    let cosines = reference["items"].as_array().unwrap().iter().map(|item| {
        let row = card.encoder.encode(item["text"].as_str().unwrap(), None, Truncate::End).unwrap();
        assert_eq!(row.ids, numbers(&item["input_ids"], |id| id as u32));
        cosine(&step(&mut *model, &[row])[0], &numbers(&item["embedding"], |value| value as f32))
    });
    cosines.fold(1.0, f64::min)
}

#[test]
fn minilm_gives_the_reference_embeddings() {
    let Some(path) = weights() else { return };
    for (dtype, least) in [(Dtype::F32, 0.999_99), (Dtype::F16, 0.9999), (Dtype::Bf16, 0.999), (Dtype::Int8, 0.995)] {
        let found = smallest_cosine(dtype, &path);
        println!("{dtype}: cosine {found:.7}");
        assert!(found >= least, "{dtype}: cosine {found}, at least {least} wanted");
    }
}

#[test]
fn minilm_in_int8_takes_a_third_of_f32() {
    let Some(path) = weights() else { return };
    let [whole, int8] = [Dtype::F32, Dtype::Int8].map(|dtype| folder(&path, dtype).resident().as_f64());
    assert!(int8 <= 0.30 * whole, "{int8} of {whole} bytes");
}
