//! See `plimsoll_fuzz::http_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::http_json(data));
