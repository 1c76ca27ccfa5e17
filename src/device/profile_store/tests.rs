//! Profiles survive the disk, and files that are not ours do not.

use super::*;
use crate::memory::{Axes, Axis, Role, ShapeKind, TableLine};
use crate::units::{Bytes, Micros};

fn facts() -> ProfileFacts {
    ProfileFacts::cpu("a model".to_owned(), "f32", 128)
}

fn table() -> Table {
    let axes = Axes {
        kind: ShapeKind::Padded,
        batch: Axis { min: 1, max: 64, splits: vec![8] },
        extent: Axis { min: 1, max: 128, splits: Vec::new() },
        step_tokens_max: 2048,
        measured_tokens_min: 128,
    };
    let line = |batch, extent, role, peak, time| TableLine {
        shape: axes.kind.at(batch, extent),
        role,
        predicted: None,
        peak: Bytes::new(peak),
        time: Micros::new(time),
    };
    let lines = vec![line(1, 1, Role::Grid, 1_000, 5), line(4, 16, Role::HeldOut, u64::MAX, 9)];
    Table { lines, unmeasured: vec![axes.kind.at(64, 32)], axes }
}

fn store() -> (tempfile::TempDir, ProfileStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = ProfileStore::new(folder.path().join("profiles"));
    (folder, store)
}

#[test]
fn what_is_saved_is_loaded() {
    let (_folder, store) = store();
    assert_eq!(store.load(&facts()).unwrap(), None);
    assert!(store.list().unwrap().is_empty());
    let path = store.save("minilm", &facts(), &table()).unwrap();
    assert_eq!(store.load(&facts()).unwrap(), Some(table()));
    let other = ProfileFacts { threads: facts().threads + 1, ..facts() };
    assert_eq!(store.load(&other).unwrap(), None, "other facts, other profile");

    let smaller = Table { unmeasured: Vec::new(), ..table() };
    assert_eq!(store.save("minilm", &facts(), &smaller).unwrap(), path);
    assert_eq!(store.load(&facts()).unwrap(), Some(smaller), "the newer one replaces it");
    let files: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(files.len(), 1, "no temporary file is left");
}

#[test]
fn profiles_travel_by_export_and_import() {
    let (folder, store) = store();
    let file = folder.path().join("travels.json");
    assert!(!store.export(&facts(), &file).unwrap());
    store.save("minilm", &facts(), &table()).unwrap();
    assert!(store.export(&facts(), &file).unwrap());

    let there = ProfileStore::new(folder.path().join("there"));
    let imported = there.import(&file).unwrap();
    assert_eq!((imported.model.as_str(), imported.facts), ("minilm", facts()));
    assert_eq!(there.load(&facts()).unwrap(), Some(table()));
    assert_eq!(
        there.list().unwrap().into_iter().map(|listed| listed.unwrap().key).collect::<Vec<_>>(),
        [facts().key()]
    );
}

#[test]
fn a_file_that_is_no_profile_is_named_and_refused() {
    let (_folder, store) = store();
    let path = store.save("minilm", &facts(), &table()).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let check = |text: String, expected: &str| {
        assert_ne!(text, good, "the case changes something: {expected}");
        fs::write(&path, text).unwrap();
        let message = store.load(&facts()).unwrap_err().to_string();
        assert!(message.contains(expected) && message.starts_with(path.to_str().unwrap()), "{message}");
        assert_eq!(store.list().unwrap().len(), 1, "listed, as an error");
        assert!(store.list().unwrap()[0].is_err());
    };
    check(String::new(), "EOF");
    check(good[..good.len() / 2].to_owned(), "EOF");
    check("[1, 2]".to_owned(), "is not a profile");
    check(good.replace("\"schema\": 1", "\"schema\": 2"), "has schema 2; this program reads schema 1");
    check(good.replace("\"schema\": 1", "\"schema\": -1"), "is not a profile");
    check(good.replace("\"model\"", "\"modle\""), "unknown field `modle`");
    check(good.replace("\"length_max\": 128", "\"length_max\": 129"), "changed by hand or damaged");
    check(good.replace("\"min\": 1", "\"min\": 0"), "axis batch from 0 to 64");
    check(good.replace("\"max\": 128", "\"max\": 0"), "axis extent from 1 to 0");
    check(good.replace("1000", "-1000"), "invalid value");
    check(good.replace("1000", "1e30"), "invalid type");
    check(good.replace("padded", "square"), "unknown variant `square`");
    check("[".repeat(100_000), "is not a profile");
    check(" ".repeat(FILE_BYTES_MAX as usize + 1), "is longer than the 4194304 bytes");
}

#[test]
fn a_file_under_another_s_name_is_refused() {
    let (_folder, store) = store();
    let path = store.save("minilm", &facts(), &table()).unwrap();
    let other = ProfileFacts { dtype: "int8".to_owned(), ..facts() };
    fs::rename(&path, store.path(&other.key())).unwrap();
    assert!(store.load(&other).unwrap_err().to_string().contains("another model or device"));
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let (folder, _) = store();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = ProfileStore::new(&file).save("minilm", &facts(), &table()).unwrap_err();
    assert!(error.to_string().starts_with(file.to_str().unwrap()), "{error}");
}
