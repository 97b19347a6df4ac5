//! See `waste_fuzz::routing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::routing(data));
