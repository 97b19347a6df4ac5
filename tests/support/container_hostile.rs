//! Containers that lie: every lie is one line with file, thing and offset, and nothing faults.

use serde_json::{Value, json};

use super::container::{HIDDEN, Parts, VQ2R, VQ3R, VQ4P};
use super::open;
use super::scratch::{Noise, Scratch, peak_address_space};

/// What is refused, how it is made, and what the line must say.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Parts), &'a [&'a str]);

fn refuse_all(name: &str, cases: &[Case<'_>]) {
    let dir = Scratch::new(name);
    for (case, damage, says) in cases {
        let mut parts = Parts::new(VQ3R);
        damage(&mut parts);
        let message = open(&parts.write(&dir, "c")).err().unwrap_or_else(|| panic!("{case}: was read"));
        for part in *says {
            assert!(message.contains(part), "{case}: {message}");
        }
    }
}

/// A damage that brings its own numbers.
type Damage = Box<dyn Fn(&mut Parts)>;

/// Overwrites bytes of the second record.
fn patch(parts: &mut Parts, at: usize, bytes: &[u8]) {
    let start = parts.record_bytes() + at;
    parts.bank[start..start + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn crafted_records_are_refused_with_expert_file_and_offset() {
    // The second record starts at its length.
    let (base, line) = (Parts::new(VQ3R).record_bytes(), "experts-L1.bin: expert 1 of layer 1 at ");
    let word = |at: usize, value: u32| move |parts: &mut Parts| patch(parts, at, &value.to_le_bytes());
    let half = |at: usize, value: u16| move |parts: &mut Parts| patch(parts, at, &value.to_le_bytes());
    let at = |field: usize| format!("{line}{:#x}", base + field);
    let cases: [(&str, Damage, String, &str); 16] = [
        ("magic", Box::new(word(0, 0)), at(0), "magic is 0x0, expected 0x50584557"),
        ("layer", Box::new(half(4, 2)), at(4), "layer is 0x2, expected 0x1"),
        ("expert", Box::new(half(6, 0)), at(6), "expert_id is 0x0, expected 0x1"),
        ("format", Box::new(|it: &mut Parts| patch(it, 8, &[8])), at(8), "fmt 8 is not that of vq3r"),
        ("books", Box::new(half(10, 9)), at(10), "codebook_id is 0x9, expected 0x0"),
        ("far books", Box::new(half(10, u16::MAX)), at(10), "codebook_id"),
        ("low rank", Box::new(half(12, 1)), at(12), "lowrank_id is 0x1, expected 0x0"),
        ("blocks", Box::new(word(16, u32::MAX)), at(16), "rec_4k_blocks is 0xffffffff"),
        ("gate", Box::new(word(20, 0)), at(20), "gate_off is 0x0, expected 0x30"),
        ("up before gate", Box::new(word(24, 47)), at(24), "up_off is 0x2f"),
        ("up too near", Box::new(word(24, 49)), at(24), "up_off is 0x31"),
        ("down at the end", Box::new(word(28, base as u32 - 2)), at(28), "down_off"),
        ("down outside", Box::new(word(28, u32::MAX)), at(28), "down_off is 0xffffffff"),
        ("scales inside down", Box::new(word(32, 50)), at(32), "chan_corr_off is 0x32"),
        ("odd scales", Box::new(word(32, 2001)), at(32), "chan_corr_off is 0x7d1"),
        ("scales outside", Box::new(word(32, base as u32 + 2)), at(32), "chan_corr_off"),
    ];
    let dir = Scratch::new("container-records");
    for (case, damage, place, says) in cases {
        let mut parts = Parts::new(VQ3R);
        damage(&mut parts);
        let message = open(&parts.write(&dir, "c")).err().unwrap_or_else(|| panic!("{case}: was read"));
        assert!(message.contains(&place) && message.contains(says), "{case}: {message}");
    }
}

#[test]
fn a_record_format_belongs_to_its_code() {
    let dir = Scratch::new("container-format");
    for (code, format, is_read) in
        [(VQ2R, 5, true), (VQ2R, 4, true), (VQ4P, 8, true), (VQ4P, 4, false), (VQ3R, 0, false)]
    {
        let mut parts = Parts::new(code);
        patch(&mut parts, 8, &[format]);
        assert_eq!(open(&parts.write(&dir, "c")).is_ok(), is_read, "{format}");
    }
}

#[test]
fn lies_of_the_manifest_are_refused_by_name() {
    let set = |path: &'static str, value: Value| {
        move |parts: &mut Parts| *parts.manifest.pointer_mut(path).unwrap() = value.clone()
    };
    let without = |key: &'static str| {
        move |parts: &mut Parts| drop(parts.manifest.as_object_mut().unwrap().remove(key))
    };
    refuse_all(
        "container-manifest",
        &[
            ("no version", &without("format_version"), &["format_version", "missing"]),
            ("version 1", &set("/format_version", json!(1)), &["version 1 is not supported"]),
            ("version text", &set("/format_version", json!("0")), &["version \"0\" is not supported"]),
            ("no trunk", &without("trunk"), &["missing field `trunk`"]),
            (
                "rows",
                &set("/expert_quant/index_block", json!(0)),
                &["expert_quant.index_block", "0 is not supported (64 is)"],
            ),
            ("wide rows", &set("/expert_quant/index_block", json!(32)), &["expert_quant.index_block", "32"]),
            (
                "vectors",
                &set("/expert_quant/vec_dim", json!(4)),
                &["expert_quant.vec_dim", "4 is not supported"],
            ),
            (
                "stages",
                &set("/expert_quant/stages", json!(8)),
                &["expert_quant.stages", "8 is not supported"],
            ),
            ("entries", &set("/expert_quant/entries", json!(1)), &["expert_quant.entries"]),
            ("bits", &set("/expert_quant/index_bits", json!(7)), &["expert_quant.index_bits"]),
            ("long prefix", &set("/tensor_prefix", json!("p".repeat(64))), &["tensor_prefix", "63"]),
            (
                "a folder",
                &set("/layers/1/file", json!("../experts-L1.bin")),
                &["layers.1", "not the name of a file"],
            ),
            ("no file", &set("/layers/1/file", json!("experts-L2.bin")), &["experts-L2.bin"]),
            ("no experts", &set("/layers/1/experts", json!(0)), &["layers.1", "0 experts"]),
            ("few experts", &set("/layers/1/experts", json!(2)), &["layers.1", "2 experts, the model has 3"]),
            (
                "many experts",
                &set("/config/num_experts", json!(1 << 20)),
                &["num_experts", "expected 1 to 65536"],
            ),
            (
                "long records",
                &set("/layers/1/bytes", json!(u64::MAX)),
                &["layers.1", "expected 4096 bytes each"],
            ),
            ("far books", &set("/layers/1/codebook_base", json!(1)), &["codebook 1 ", "needs 37,008 bytes"]),
            (
                "very far books",
                &set("/layers/1/codebook_base", json!(u64::MAX)),
                &["layers.1", "beyond 16 bits"],
            ),
            ("another layer", &set("/layers", json!({})), &["layers.1", "missing"]),
            (
                "a dense layer",
                &set("/config/first_k_dense_replace", json!(2)),
                &["layers.1", "only layers 2..2 have experts"],
            ),
            ("odd width", &set("/config/moe_intermediate_size", json!(73)), &["vectors of 8"]),
            (
                "no width",
                &set("/config/moe_intermediate_size", json!(0)),
                &["moe_intermediate_size", "0, expected"],
            ),
            ("huge width", &set("/config/hidden_size", json!(1 << 21)), &["hidden_size"]),
            ("text width", &set("/config/hidden_size", json!("16")), &["hidden_size", "expected an integer"]),
            (
                "latent width",
                &|it| it.manifest["config"]["routed_expert_hidden_size"] = json!(8 * HIDDEN),
                &["bytes each"],
            ),
            ("f16", &set("/trunk/1/fmt", json!(1)), &["tensor 'eight'", "fmt 1 is not supported"]),
            (
                "no scales",
                &|it| drop(it.manifest["trunk"][1].as_object_mut().unwrap().remove("scale_off")),
                &["tensor 'eight'", "scale_off"],
            ),
            ("no shape", &set("/trunk/1/shape", json!([])), &["tensor 'eight'", "1 to 4 dimensions"]),
            ("zero shape", &set("/trunk/1/shape", json!([0, 4])), &["tensor 'eight'", "1 to 4 dimensions"]),
            (
                "huge shape",
                &set("/trunk/1/shape", json!([1 << 26, 1 << 26, 1 << 26, 1 << 26])),
                &["tensor 'eight'", "no size in bytes"],
            ),
            (
                "large shape",
                &set("/trunk/1/shape", json!([1 << 26, 1 << 20])),
                &["tensor 'eight'", "file ends at"],
            ),
            ("no group", &set("/trunk/1/group", json!(0)), &["tensor 'eight'", "group 0"]),
            ("odd group", &set("/trunk/2/group", json!(1)), &["tensor 'four'"]),
            ("far rows", &set("/trunk/1/off", json!(u64::MAX)), &["tensor 'eight'", "ends beyond 64 bits"]),
            (
                "far scales",
                &set("/trunk/1/scale_off", json!(u64::MAX - 3)),
                &["tensor 'eight'", "ends beyond 64 bits"],
            ),
            ("shared bytes", &set("/trunk/1/off", json!(8)), &["tensor 'eight'", "overlaps tensor 'plain'"]),
            ("twice", &set("/trunk/1/name", json!("plain")), &["tensor 'plain'", "occurs twice"]),
        ],
    );
}

#[test]
fn damaged_files_are_refused() {
    refuse_all(
        "container-files",
        &[
            ("short trunk", &|it| it.trunk.truncate(it.trunk.len() - 1), &["tensor 'three'", "file ends at"]),
            ("no trunk", &|it| it.trunk.clear(), &["trunk.bin"]),
            (
                "short codebooks",
                &|it| it.codebooks.truncate(it.codebooks.len() - 1),
                &["codebook 0 ", "file ends at"],
            ),
            ("codebook magic", &|it| it.codebooks[0] = 0, &["codebook 0 at 0x0", "magic"]),
            (
                "codebook id",
                &|it| it.codebooks[4112 + 4] = 0,
                &["codebook 1 at 0x1014", "id 0x0, expected 0x1"],
            ),
            ("codebook format", &|it| it.codebooks[6] = 8, &["codebook 0 at 0x6", "format"]),
            ("codebook vectors", &|it| it.codebooks[7] = 4, &["codebook 0 at 0x7", "vector length"]),
            ("codebook entries", &|it| it.codebooks[8] = 1, &["codebook 0 at 0x8", "entries"]),
            (
                "centroid",
                &|it| it.codebooks[16..18].copy_from_slice(&[0, 0x7c]),
                &["codebook 0 at 0x10", "not finite"],
            ),
            ("short bank", &|it| it.bank.truncate(it.bank.len() - 1), &["experts-L1.bin", "file ends at"]),
            ("long bank", &|it| it.bank.push(0), &["experts-L1.bin", "the manifest says"]),
        ],
    );
}

#[test]
fn nesting_and_size_of_a_manifest_are_bounded() {
    let dir = Scratch::new("container-nesting");
    let path = Parts::new(VQ3R).write(&dir, "c");
    dir.write("c/manifest.json", "{\"format_version\":".repeat(100_000));
    assert!(open(&path).unwrap_err().contains("recursion limit"));
    dir.write("c/manifest.json", vec![b' '; (16 << 20) + 1]);
    assert!(open(&path).unwrap_err().contains("larger than"));
    dir.write("c/manifest.json", "");
    assert!(open(&path).unwrap_err().contains("manifest.json"));
}

#[test]
fn mutated_manifests_and_records_never_fault() {
    let dir = Scratch::new("container-mutated");
    let mut noise = Noise(11);
    let (mut read, mut refused) = (0, 0);
    for round in 0..450 {
        let parts = Parts::new([VQ3R, VQ2R, VQ4P][round % 3]);
        let path = parts.write(&dir, "c");
        let mut text = parts.manifest.to_string().into_bytes();
        let (mut bank, mut books) = (parts.bank, parts.codebooks);
        for _ in 0..1 + noise.below(3) {
            match noise.below(4) {
                // Digits are where the sizes are.
                0 | 1 => {
                    let digits: Vec<usize> =
                        (0..text.len()).filter(|it| text[*it].is_ascii_digit()).collect();
                    text[digits[noise.below(digits.len())]] = b"0123456789-.e"[noise.below(13)];
                }
                2 => {
                    let at = noise.below(48) + 4096 * noise.below(bank.len() / 4096);
                    bank[at] = noise.next() as u8;
                }
                _ => {
                    let at = noise.below(text.len());
                    text[at] = noise.next() as u8;
                    let at = noise.below(books.len());
                    books[at] ^= 1 << noise.below(8);
                }
            }
        }
        dir.write("c/manifest.json", text);
        dir.write("c/experts-L1.bin", bank);
        dir.write("c/codebooks.bin", books);
        let Ok(container) = open(&path) else {
            refused += 1;
            continue;
        };
        read += 1;
        // What was accepted can be decoded to its last byte.
        for tensor in container.tensors().values() {
            let mut out = vec![0.0; usize::try_from(tensor.cols()).unwrap()];
            (0..tensor.rows()).for_each(|row| tensor.decode_row(container.trunk(), row, &mut out));
        }
        for bank in container.banks().values() {
            for expert in 0..bank.experts() {
                let record = container.record(bank, expert).unwrap();
                for kind in waste::formats::container::MatrixKind::ALL {
                    let (matrix, books) = (bank.matrix(kind), container.books(bank, kind));
                    let mut out = vec![0.0; matrix.cols as usize];
                    record.decode_row(kind, matrix.rows - 1, &books, &mut out);
                }
            }
        }
    }
    assert!(read > 30 && refused > 100, "{read} were read, {refused} refused");
    assert!(peak_address_space().is_none_or(|it| it < 16 << 30), "nothing was allocated for a claim");
}
