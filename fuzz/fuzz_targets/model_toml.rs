//! See `plimsoll_fuzz::model_toml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::model_toml(data));
