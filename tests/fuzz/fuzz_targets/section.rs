//! See `waste_fuzz::section`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::section(data));
