//! Compiles `proto/` into Rust with a compiler written in Rust, so that building needs nothing but cargo and a C compiler.
//! With the feature `cuda`, compiles `kernels/` with nvcc for the architectures that PLIMSOLL_CUDA_ARCHITECTURES lists (80,90),
//! or for the one in CUDA_COMPUTE_CAP, which candle's own kernels are compiled for and which cannot be a list.
//! With PLIMSOLL_NO_INTERPOSER in the environment it leaves out the functions through which a GPU's memory is accounted
//! for, which makes a program that has to refuse a GPU.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Which cards our kernels are for.
const ARCHITECTURES: &str = "PLIMSOLL_CUDA_ARCHITECTURES";

const PROTOS: [&str; 3] = ["inference/grpc_service.proto", "plimsoll/v1/plimsoll.proto", "tei/v1/tei.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    // Only this crate is built again, which RUSTFLAGS could not do.
    println!("cargo:rerun-if-env-changed=PLIMSOLL_NO_INTERPOSER");
    if std::env::var_os("PLIMSOLL_NO_INTERPOSER").is_some() {
        println!("cargo:rustc-cfg=plimsoll_no_interposer");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for build scripts")?);
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        compile_kernels(&out)?;
    }
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    // Reflection serves this file.
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    // By their names messages are found in the descriptors.
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".inference")
        .codec_path("crate::service::codec::BoundedCodec")
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}

/// One file for each source, with code for every architecture, for the driver to choose from.
fn compile_kernels(out: &Path) -> Result<(), Box<dyn Error>> {
    for variable in [ARCHITECTURES, "CUDA_COMPUTE_CAP", "CUDA_HOME", "NVCC"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    println!("cargo:rerun-if-changed=kernels");
    let architectures = architectures()?;
    let nvcc = match (std::env::var_os("NVCC"), std::env::var_os("CUDA_HOME")) {
        (Some(nvcc), _) => PathBuf::from(nvcc),
        (None, Some(home)) => Path::new(&home).join("bin/nvcc"),
        (None, None) => PathBuf::from("nvcc"),
    };
    let mut running = Vec::new();
    for source in std::fs::read_dir("kernels")? {
        let source = source?.path();
        let (Some(name), true) = (source.file_stem(), source.extension().is_some_and(|end| end == "cu")) else {
            continue;
        };
        let compiled = out.join(name).with_extension("fatbin");
        let mut command = Command::new(&nvcc);
        command
            .args(["-fatbin", "-O3", "-std=c++17", "-lineinfo", "-o"])
            .arg(&compiled)
            .args(&architectures)
            .arg(&source)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // All at once: a compiler takes one core and a hundred megabytes.
        let started = command.spawn().map_err(|error| {
            format!("{} cannot be run: {error}; `source scripts/cuda-toolkit` finds or fetches one", nvcc.display())
        })?;
        running.push((command, started));
    }
    for (command, started) in running {
        let done = started.wait_with_output()?;
        if !done.status.success() {
            return Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&done.stderr)).into());
        }
    }
    Ok(())
}

/// nvcc's arguments: code for each architecture, and for Hopper what only that very one can run.
fn architectures() -> Result<Vec<String>, Box<dyn Error>> {
    let listed = [ARCHITECTURES, "CUDA_COMPUTE_CAP"].into_iter().find_map(|name| std::env::var(name).ok());
    let listed = listed.unwrap_or_else(|| "80,90".to_owned());
    let argument = |text: &str| {
        let number: u32 = text.trim().trim_end_matches('a').parse().map_err(|_| {
            format!("{ARCHITECTURES} or CUDA_COMPUTE_CAP is '{listed}': a list such as '80,90' is needed")
        })?;
        let exact = if number == 90 { "a" } else { "" };
        Ok(format!("-gencode=arch=compute_{number}{exact},code=sm_{number}{exact}"))
    };
    listed.split(',').map(argument).collect()
}
