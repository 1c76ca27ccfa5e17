//! See `plimsoll_fuzz::rest_infer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::rest_infer(data));
