//! See `waste_fuzz::ir_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::ir_text(data));
