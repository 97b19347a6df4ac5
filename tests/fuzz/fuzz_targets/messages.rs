//! See `waste_fuzz::messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::messages(data));
