//! See `waste_fuzz::tokenizer_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::tokenizer_json(data));
