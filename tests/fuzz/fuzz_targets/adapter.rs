//! See `waste_fuzz::adapter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::adapter(data));
