//! See `waste_fuzz::index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::index(data));
