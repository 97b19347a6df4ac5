//! Hostile GGUFs, truncation at every byte, and bounded mutation of both formats.

use std::path::Path;

use super::gguf::{self, Gguf, raw_text, text};
use super::safetensors::{TABLE, file};
use super::scratch::{Noise, Scratch, peak_address_space};
use super::{ModelFiles, open, sample};

fn one(kind: u32, value: &[u8]) -> Gguf {
    Gguf::new().raw("k", kind, value)
}

fn row(dims: &[u64], kind: u32, offset: u64) -> Gguf {
    Gguf::new().row(&text("w"), dims, kind, offset)
}

/// Each file with a part of the line that refuses it.
fn cases() -> Vec<(Gguf, &'static str)> {
    let huge = 1u64 << 60;
    vec![
        (Gguf { magic: *b"GGML", ..Gguf::new() }, "header at 0x0: not a GGUF file"),
        (Gguf { version: 1, ..Gguf::new() }, "GGUF version 1 is not supported (versions 2 and 3 are)"),
        (Gguf { version: 4, ..Gguf::new() }, "GGUF version 4"),
        (Gguf { version: 3u32.swap_bytes(), ..Gguf::new() }, "a big-endian GGUF is not supported"),
        (Gguf { n_tensors: Some(huge), ..Gguf::new() }, "claims 1152921504606846976 tensors"),
        (Gguf { n_tensors: Some(u64::MAX), ..Gguf::new() }, "claims 18446744073709551615 tensors"),
        (Gguf { n_keys: Some(huge), ..Gguf::new() }, "claims 1152921504606846976 keys"),
        (Gguf { n_keys: Some(2), ..sample() }, "tensor 'v.u8' at 0x76: type number"),
        (one(gguf::TEXT, &u64::MAX.to_le_bytes()), "key 'k' at 0x2d needs 18,446,744,073,709,551,615 bytes"),
        (one(gguf::TEXT, &[99, 0, 0, 0, 0, 0, 0, 0, b'x']), "key 'k' at 0x2d needs 99 bytes"),
        (one(99, &[0; 8]), "key 'k' at 0x21: value type 99 does not exist"),
        (one(gguf::BOOL, &[2]), "key 'k' at 0x25: [2] is no Bool"),
        (
            Gguf::new().array("k", gguf::U8, huge, &[0; 8]),
            "key 'k' at 0x29: claims 1152921504606846976 elements",
        ),
        (Gguf::new().array("k", gguf::U64, u64::MAX / 4, &[0; 8]), "elements, the file has room for 1"),
        (Gguf::new().array("k", gguf::TEXT, 1, &[0xff; 8]), "key 'k' at 0x39 needs"),
        (Gguf::new().array("k", gguf::ARRAY, 1, &[0; 64]), "an array of arrays is not supported"),
        (Gguf::new().array("k", 77, 1, &[0; 8]), "element type 77 does not exist"),
        (Gguf::new().u32("k", 1).u32("k", 1), "key 'k' at 0x29: occurs twice"),
        (Gguf::new().u32("general.alignment", 0), "key 'general.alignment'"),
        (Gguf::new().u32("general.alignment", 24), "expected a power of two"),
        (Gguf::new().u32("general.alignment", 1 << 31), "expected a power of two"),
        (Gguf::new().str("general.alignment", "32"), "expected a power of two"),
        (
            row(&[4], 16, 0),
            "tensor 'w' at 0x2d: type IQ2_XXS is not supported (floats, Q4_0 … Q8_0, Q2_K … Q6_K, IQ4_NL, IQ4_XS and MXFP4 are)",
        ),
        (row(&[4], 4_000_000, 0), "type number 4000000"),
        (row(&[1; 5], 0, 0), "5 dimensions, at most 4"),
        (row(&[u64::MAX, u64::MAX], 0, 0), "tensor 'w' at 0x18: "),
        (row(&[1 << 40, 1 << 40], 0, 0), "larger than any file"),
        (row(&[0, 4], 0, 0), "zero dimension"),
        (row(&[48], 8, 0), "rows of 48 elements are not whole q8_0 blocks of 32"),
        (row(&[576], 12, 0), "rows of 576 elements are not whole q4_k blocks of 256"),
        (row(&[256, 1 << 40], 14, 0), "tensor 'w' at 0x60 needs 230,897,441,832,960 bytes"),
        (row(&[4], 0, 3), "data offset 0x3 is not a multiple of 32"),
        (row(&[4], 0, u64::MAX - 31), "is past any file"),
        (row(&[4], 0, 1 << 40), "tensor 'w' at 0x10000000040 needs 16 bytes, file ends at 0x40"),
        (row(&[u64::MAX / 8], 0, 0), "tensor 'w' at 0x40 needs 9,223,372,036,854,775,804 bytes"),
        (Gguf::new().row(&raw_text(&[0xff, 0xfe]), &[4], 0, 0), "the name is not UTF-8"),
        (Gguf::new().row(&u64::MAX.to_le_bytes(), &[4], 0, 0), "a name of 18446744073709551615 bytes"),
        (
            Gguf::new().tensor("a", &[8], 0, &[0; 32]).tensor("a", &[8], 0, &[0; 32]),
            "tensor 'a' at 0x39: occurs twice",
        ),
        (
            Gguf::new().tensor("a", &[16], 0, &[0; 64]).row(&text("b"), &[8], 0, 32),
            "tensor 'b' at 0x80: overlaps tensor 'a' at 0x60",
        ),
    ]
}

#[test]
fn hostile_ggufs_are_refused_by_name_and_place() {
    let dir = Scratch::new("gguf-hostile");
    let mut wrong = Vec::new();
    for (gguf, want) in cases() {
        let path = dir.write("m.gguf", gguf.bytes());
        let got = open(&path).err().unwrap_or_else(|| "accepted".to_owned());
        if !(got.contains("m.gguf: ") && got.contains(want)) {
            wrong.push(format!("wanted '{want}', got '{got}'"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let dir = Scratch::new("gguf-cut");
    let bytes = sample().bytes();
    for len in 0..bytes.len() {
        let err = open(&dir.write("m.gguf", &bytes[..len])).err();
        assert!(err.is_some(), "cut at {len} of {}", bytes.len());
    }
    assert!(open(&dir.write("m.gguf", &bytes)).is_ok());

    let dir = Scratch::new("st-cut");
    dir.write("config.json", "{}");
    let bytes = file(TABLE, &[0; 18]);
    for len in 0..bytes.len() {
        assert!(open(&dir.write("m.safetensors", &bytes[..len])).is_err(), "cut at {len}");
    }
    assert!(open(&dir.write("m.safetensors", &bytes)).is_ok());
}

/// Uses everything a file offers; errors are fine, panics are not.
fn touch_all(files: &ModelFiles) -> u64 {
    let meta = files.meta();
    let keys: Vec<String> = meta.keys().map(str::to_owned).collect();
    let mut seen = 0;
    for key in &keys {
        let _ =
            (meta.get_u64(key), meta.get_u32(key), meta.get_f64(key), meta.get_bool(key), meta.get_str(key));
        let _ = (meta.get_strs(key), meta.get_ints::<i32>(key), meta.get_floats(key), meta.array_len(key));
        seen += 1;
    }
    for info in files.tensors().values() {
        seen += files.tensor_bytes(info).iter().map(|it| u64::from(*it)).sum::<u64>() + info.elements();
    }
    assert!(files.header_hash().is_ok());
    seen
}

/// Mutates `bytes` and opens each mutant: every byte below `header` set to telling values, then noise.
/// Returns how many were refused, and how many not.
fn fuzz(path: &Path, bytes: &[u8], header: usize) -> (u32, u32) {
    let mut counts = (0, 0);
    let mut run = |mutant: &[u8]| {
        std::fs::write(path, mutant).unwrap();
        match open(path) {
            Err(_) => counts.0 += 1,
            Ok(files) => {
                counts.1 += 1;
                touch_all(&files);
            }
        }
    };
    for at in 0..header {
        for value in [0, 0xff, 0x7f, bytes[at] ^ 1, bytes[at] ^ 0x80, bytes[at].wrapping_add(1)] {
            let mut mutant = bytes.to_vec();
            mutant[at] = value;
            run(&mutant);
        }
    }
    let mut noise = Noise(20_240_229);
    for _ in 0..3000 {
        let mut mutant = bytes.to_vec();
        for _ in 0..=noise.below(4) {
            let at = noise.below(header);
            match noise.below(3) {
                0 => mutant[at] = noise.next().to_le_bytes()[0],
                1 => {
                    let end = (at + 8).min(mutant.len());
                    let word = (noise.next() >> noise.below(64)).to_le_bytes();
                    mutant[at..end].copy_from_slice(&word[..end - at]);
                }
                _ => {
                    mutant.remove(at);
                }
            }
        }
        run(&mutant);
    }
    counts
}

/// Runs `work` and fails if the address space grew by a GiB: what a count believed before it was checked does.
fn without_large_allocations(work: impl FnOnce()) {
    let before = peak_address_space();
    work();
    if let (Some(before), Some(after)) = (before, peak_address_space()) {
        assert!(after - before < 1 << 30, "the peak grew from {before} to {after} bytes");
    }
}

#[test]
fn mutated_ggufs_never_panic() {
    let dir = Scratch::new("gguf-fuzz");
    let gguf = sample();
    without_large_allocations(|| {
        let (refused, accepted) = fuzz(&dir.path().join("m.gguf"), &gguf.bytes(), gguf.header().len());
        assert!(refused > 1000 && accepted > 1000, "both happen: {refused}, {accepted}");
    });
}

#[test]
fn mutated_safetensors_never_panic() {
    let dir = Scratch::new("st-fuzz");
    dir.write("config.json", "{}");
    without_large_allocations(|| {
        let (refused, accepted) =
            fuzz(&dir.path().join("m.safetensors"), &file(TABLE, &[0; 18]), 8 + TABLE.len());
        assert!(refused > 1000 && accepted > 30, "both happen: {refused}, {accepted}");
    });
}
