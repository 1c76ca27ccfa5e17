//! See `plimsoll_fuzz::model_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::model_config(data));
