//! Compiles `proto/` into Rust with a compiler written in Rust, so that building needs nothing but cargo and a C compiler.
//! With PLIMSOLL_NO_INTERPOSER in the environment it leaves out the functions through which a GPU's memory is accounted
//! for, which makes a program that has to refuse a GPU.

use std::error::Error;
use std::path::PathBuf;

const PROTOS: [&str; 2] = ["inference/grpc_service.proto", "plimsoll/v1/plimsoll.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    // Only this crate is built again, which RUSTFLAGS could not do.
    println!("cargo:rerun-if-env-changed=PLIMSOLL_NO_INTERPOSER");
    if std::env::var_os("PLIMSOLL_NO_INTERPOSER").is_some() {
        println!("cargo:rustc-cfg=plimsoll_no_interposer");
    }
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for build scripts")?);
    // Reflection serves this file.
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().bytes(".inference").compile_fds(descriptors)?;
    Ok(())
}
