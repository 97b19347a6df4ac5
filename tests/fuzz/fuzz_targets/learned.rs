//! See `waste_fuzz::learned`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::learned(data));
