//! See `plimsoll_fuzz::oip_tensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::oip_tensors(data));
