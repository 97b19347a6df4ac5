//! See `waste_fuzz::adapter_tensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::adapter_tensors(data));
