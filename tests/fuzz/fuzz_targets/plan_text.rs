//! See `waste_fuzz::plan_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::plan_text(data));
