//! See `waste_fuzz::npz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::npz(data));
