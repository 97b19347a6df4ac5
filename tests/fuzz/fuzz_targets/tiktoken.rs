//! See `waste_fuzz::tiktoken`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waste_fuzz::tiktoken(data));
