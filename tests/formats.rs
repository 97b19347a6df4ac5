//! Model files: well-formed ones are read exactly, hostile ones are refused in one line.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/gguf.rs"]
mod gguf;
#[path = "support/formats_hostile.rs"]
mod hostile;
#[path = "support/formats_safetensors.rs"]
mod safetensors;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::Path;

use gguf::Gguf;
use scratch::Scratch;
use waste::formats::{Format, HubCache, ModelFiles};
use waste_plan::dtype::DType;

/// A GGUF with every kind of value and every tensor type that is read.
pub(crate) fn sample() -> Gguf {
    Gguf::new()
        .str("general.architecture", "llama")
        .u32("general.alignment", 32)
        .raw("v.u8", gguf::U8, &[200])
        .raw("v.i8", 1, &[0xff])
        .raw("v.u16", 2, &[0x34, 0x12])
        .raw("v.i16", 3, &[0xfe, 0xff])
        .raw("v.i32", gguf::I32, &(-5i32).to_le_bytes())
        .raw("v.u64", gguf::U64, &u64::MAX.to_le_bytes())
        .raw("v.i64", 11, &i64::MIN.to_le_bytes())
        .raw("v.f64", 12, &0.1f64.to_le_bytes())
        .f32("v.f32", 1e-5)
        .bool("v.bool", true)
        .strs("a.text", &["a", "", "é"])
        .i32s("a.i32", &[1, -2, 3])
        .f32s("a.f32", &[0.5, -1.5])
        .tensor("f32", &[3, 2], 0, &[1; 24])
        .tensor("f16", &[4], 1, &[2; 8])
        .tensor("bf16", &[2, 2, 2], 30, &[3; 16])
        .tensor("q4_0", &[64, 2], 2, &[4; 72])
        .tensor("q4_1", &[32, 1], 3, &[5; 20])
        .tensor("q8_0", &[32], 8, &[6; 34])
        .tensor("r5_0", &[32, 2], 6, &[7; 44])
        .tensor("r5_1", &[32], 7, &[8; 24])
        .tensor("riq4_nl", &[64], 20, &[9; 36])
        .tensor("riq4_xs", &[256], 23, &[10; 136])
        .tensor("rk2", &[512], 10, &[11; 168])
        .tensor("rk3", &[256, 2], 11, &[12; 220])
        .tensor("rk4", &[256], 12, &[13; 144])
        .tensor("rk5", &[256], 13, &[14; 176])
        .tensor("rk6", &[256, 3], 14, &[15; 630])
        .tensor("rmxfp4", &[96], 39, &[16; 51])
}

pub(crate) fn open(path: &Path) -> Result<ModelFiles, String> {
    let res = ModelFiles::open(path, None).map_err(|err| err.to_string());
    if let Err(message) = &res {
        assert!(!message.contains('\n') && message.len() < 800, "one short line: {message}");
    }
    res
}

#[test]
fn every_gguf_value_and_tensor_type_is_read() {
    let dir = Scratch::new("gguf-types");
    for version in [2, 3] {
        let path = dir.write("m.gguf", Gguf { version, ..sample() }.bytes());
        let files = open(&path).unwrap();
        assert_eq!(files.format(), Format::Gguf);
        let meta = files.meta();
        assert_eq!(meta.str("general.architecture").unwrap(), "llama");
        assert_eq!([meta.u64("v.u8").unwrap(), meta.u64("v.u16").unwrap()], [200, 0x1234]);
        assert_eq!(meta.u64("v.u64").unwrap(), u64::MAX);
        for (key, want) in [("v.i8", -1), ("v.i16", -2), ("v.i32", -5), ("v.i64", i128::from(i64::MIN))] {
            assert_eq!(meta.get_ints::<i128>(key).unwrap(), Some(vec![want]), "{key}");
            assert!(meta.u64(key).unwrap_err().to_string().contains("non-negative"), "{key}");
        }
        assert_eq!(meta.f64("v.f64").unwrap(), 0.1);
        assert_eq!(meta.f64("v.f32").unwrap(), f64::from(1e-5f32));
        assert_eq!(meta.get_bool("v.bool").unwrap(), Some(true));
        assert_eq!(meta.get_strs("a.text").unwrap(), Some(vec!["a", "", "é"]));
        assert_eq!(meta.get_ints::<i32>("a.i32").unwrap(), Some(vec![1, -2, 3]));
        assert_eq!(meta.get_floats("a.f32").unwrap(), Some(vec![0.5, -1.5]));
        assert_eq!(meta.array_len("a.text"), Some(3));
        assert_eq!(meta.unused().collect::<Vec<_>>(), ["general.alignment"]);

        let table: Vec<_> =
            files.tensors().values().map(|it| (it.dtype, it.shape.clone(), it.bytes)).collect();
        let want = [
            (DType::BF16, vec![2, 2, 2], 16),
            (DType::F16, vec![4], 8),
            (DType::F32, vec![2, 3], 24),
            (DType::Q4_0, vec![2, 64], 72),
            (DType::Q4_1, vec![1, 32], 20),
            (DType::Q8_0, vec![32], 34),
            (DType::Q5_0, vec![2, 32], 44),
            (DType::Q5_1, vec![32], 24),
            (DType::Iq4Nl, vec![64], 36),
            (DType::Iq4Xs, vec![256], 136),
            (DType::Q2K, vec![512], 168),
            (DType::Q3K, vec![2, 256], 220),
            (DType::Q4K, vec![256], 144),
            (DType::Q5K, vec![256], 176),
            (DType::Q6K, vec![3, 256], 630),
            (DType::Mxfp4, vec![96], 51),
        ];
        assert_eq!(table, want);
        for (name, byte) in [("f32", 1), ("f16", 2), ("bf16", 3), ("q4_0", 4), ("q4_1", 5), ("q8_0", 6)] {
            let info = files.tensor(name).unwrap();
            let bytes = files.tensor_bytes(info);
            assert!(bytes.len() as u64 == info.bytes && bytes.iter().all(|it| *it == byte), "{name}");
        }
    }
}

#[test]
fn the_data_section_starts_at_the_alignment_the_file_names() {
    let dir = Scratch::new("gguf-align");
    for alignment in [1, 8, 64, 4096] {
        let file = Gguf { alignment, ..Gguf::new() }
            .u32("general.alignment", u32::try_from(alignment).unwrap())
            .tensor("a", &[2], 0, &[7; 8])
            .tensor("b", &[1], 0, &[9; 4]);
        let files = open(&dir.write("m.gguf", file.bytes())).unwrap();
        for (name, byte) in [("a", 7), ("b", 9)] {
            let info = files.tensor(name).unwrap();
            assert_eq!(info.offset % alignment, 0);
            assert!(files.tensor_bytes(info).iter().all(|it| *it == byte), "{name} at {alignment}");
        }
    }
}

#[test]
fn the_header_hash_covers_tables_and_not_data() {
    let dir = Scratch::new("gguf-hash");
    let hash = |bytes: &[u8]| open(&dir.write("m.gguf", bytes)).unwrap().header_hash().unwrap();
    let bytes = sample().bytes();
    let base = hash(&bytes);
    let mut other_data = bytes.clone();
    *other_data.last_mut().unwrap() ^= 1;
    assert_eq!(hash(&other_data), base);
    let mut other_key = bytes.clone();
    let at = bytes.windows(5).position(|it| it == b"llama").unwrap();
    other_key[at] = b'L';
    assert_ne!(hash(&other_key), base);
    assert_ne!(hash(&[bytes.as_slice(), &[0]].concat()), base, "the length counts");
    let stamps = open(&dir.write("m.gguf", &bytes)).unwrap().stamps();
    assert_eq!(stamps[0].len, bytes.len() as u64);
    assert!(stamps[0].modified_ns > 0);
}

fn shard(no: u32, count: u32, total: i32, tensor: &str) -> Vec<u8> {
    let file = Gguf::new().str("general.architecture", "llama").u32("split.no", no).u32("split.count", count);
    let total = total.to_le_bytes();
    let byte = u8::try_from(no).unwrap();
    file.raw("split.tensors.count", gguf::I32, &total).tensor(tensor, &[2], 0, &[byte; 8]).bytes()
}

#[test]
fn a_sharded_gguf_opens_from_any_part_and_from_its_folder() {
    let dir = Scratch::new("gguf-shards");
    let first = dir.write("m-00001-of-00002.gguf", shard(0, 2, 2, "a"));
    let second = dir.write("m-00002-of-00002.gguf", shard(1, 2, 2, "b"));
    for path in [first.as_path(), &second, dir.path()] {
        let files = open(path).unwrap();
        assert_eq!(files.sources().len(), 2);
        assert_eq!(files.tensor_bytes(files.tensor("a").unwrap()), [0; 8]);
        assert_eq!(files.tensor_bytes(files.tensor("b").unwrap()), [1; 8]);
        assert_eq!(files.total_bytes(), files.stamps().iter().map(|it| it.len).sum::<u64>());
    }
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let dir = Scratch::new("gguf-bad-shards");
    let first = dir.write("m-00001-of-00002.gguf", shard(0, 2, 2, "a"));
    let refusal = || open(&first).unwrap_err();
    assert!(refusal().contains("m-00002-of-00002.gguf' is missing (part 2 of 2)"), "{}", refusal());
    let second = |bytes| dir.write("m-00002-of-00002.gguf", bytes);
    second(shard(0, 2, 2, "b"));
    assert!(refusal().contains("key 'split.no'"), "{}", refusal());
    second(shard(1, 3, 2, "b"));
    assert!(refusal().contains("key 'split.count'"), "{}", refusal());
    second(shard(1, 2, 2, "a"));
    assert!(refusal().contains("tensor 'a'") && refusal().contains("already"), "{}", refusal());
    second(shard(1, 2, 2, "b"));
    dir.write("m-00001-of-00002.gguf", shard(0, 2, 5, "a"));
    assert!(refusal().contains("key 'split.tensors.count'"), "{}", refusal());
    let alone = dir.write("alone.gguf", shard(0, 2, 1, "a"));
    assert!(open(&alone).unwrap_err().contains("split.count"), "a shard under another name");
}

#[test]
fn a_folder_with_several_ggufs_asks_which() {
    let dir = Scratch::new("gguf-folder");
    assert!(open(dir.path()).unwrap_err().contains("no .gguf"));
    dir.write("a-Q4_1.gguf", sample().bytes());
    assert!(open(dir.path()).is_ok());
    dir.write("a-Q8_0.gguf", sample().bytes());
    let err = open(dir.path()).unwrap_err();
    assert!(err.contains("a-Q4_1.gguf, a-Q8_0.gguf"), "{err}");
}

#[test]
fn repositories_resolve_in_the_local_cache_only() {
    let dir = Scratch::new("hub");
    let hub = HubCache { root: dir.path().to_path_buf() };
    let find = |name: &str| {
        let found = ModelFiles::open(Path::new(name), Some(&hub));
        found.map(|it| it.folder().to_path_buf()).map_err(|err| err.to_string())
    };
    let absent = find("org/repo").unwrap_err();
    assert!(absent.contains("not in the Hugging Face cache") && absent.contains("nothing is downloaded"));
    dir.write("models--org--repo/refs/main", "abc123\n");
    let folder = "models--org--repo/snapshots/abc123";
    dir.write(&format!("{folder}/m-Q4_1.gguf"), sample().bytes());
    assert_eq!(find("org/repo").unwrap(), dir.path().join(folder));
    dir.write(&format!("{folder}/m-Q8_0.gguf"), sample().bytes());
    assert!(find("org/repo").unwrap_err().contains("several GGUFs"));
    assert_eq!(find("org/repo:q4_1").unwrap(), dir.path().join(folder));
    let err = find("org/repo:Q4_K").unwrap_err();
    assert!(err.contains("'Q4_K'") && err.contains("m-Q8_0.gguf"), "{err}");
    dir.write("models--org--repo/refs/main", "../../elsewhere");
    assert!(find("org/repo").unwrap_err().contains("holds no revision"));
    assert!(ModelFiles::open(Path::new("org/other"), None).unwrap_err().to_string().contains("no such file"));
}
