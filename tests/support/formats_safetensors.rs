//! safetensors, single and by index.

use super::scratch::Scratch;
use super::{DType, Format, open};

/// A safetensors file with the table `json` and `data` after it.
pub(crate) fn file(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

pub(crate) const TABLE: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},"c":{"dtype":"F16","shape":[],"data_offsets":[16,18]}}"#;

#[test]
fn a_folder_means_model_safetensors_and_nothing_else() {
    let dir = Scratch::new("st-single");
    dir.write("oracle.safetensors", file(TABLE, &[9; 18]));
    dir.write("config.json", r#"{"model_type": "llama", "rope_scaling": {"factor": 8.0}}"#);
    assert!(open(dir.path()).unwrap_err().contains("no model.safetensors"));
    let data: Vec<u8> = (0..18).collect();
    dir.write("model.safetensors", file(TABLE, &data));
    dir.write("generation_config.json", r#"{"eos_token_id": [1, 2]}"#);
    let files = open(dir.path()).unwrap();
    assert_eq!((files.format(), files.sources().len()), (Format::Safetensors, 1));
    let table: Vec<_> = files.tensors().values().map(|it| (it.dtype, it.shape.clone())).collect();
    assert_eq!(table, [(DType::F32, vec![2, 1]), (DType::BF16, vec![3]), (DType::F16, vec![])]);
    assert_eq!(files.tensor_bytes(files.tensor("b").unwrap()), &data[8..14]);
    assert_eq!(files.meta().f64("rope_scaling.factor").unwrap(), 8.0);
    assert_eq!(files.generation().unwrap().get_ints::<u32>("eos_token_id").unwrap(), Some(vec![1, 2]));
    let before = files.header_hash().unwrap();
    for name in ["generation_config.json", "config.json", "tokenizer.json"] {
        let old = std::fs::read(dir.path().join(name)).unwrap_or_default();
        dir.write(name, r#"{"model_type": "other"}"#);
        assert_ne!(open(dir.path()).unwrap().header_hash().unwrap(), before, "{name} counts");
        if old.is_empty() {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        } else {
            dir.write(name, old);
        }
        assert_eq!(open(dir.path()).unwrap().header_hash().unwrap(), before);
    }
}

#[test]
fn an_index_names_its_files() {
    let dir = Scratch::new("st-index");
    dir.write("config.json", "{}");
    let one = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let two = r#"{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"mask":{"dtype":"BOOL","shape":[1],"data_offsets":[4,5]}}"#;
    dir.write("x-1.safetensors", file(one, &[1; 4]));
    dir.write("x-2.safetensors", file(two, &[2; 5]));
    let index = |map: &str| {
        dir.write(
            "model.safetensors.index.json",
            format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{map}}}"#),
        )
    };
    let path = index(r#"{"a":"x-1.safetensors","b":"x-2.safetensors","mask":"x-2.safetensors"}"#);
    for path in [path.as_path(), dir.path()] {
        let files = open(path).unwrap();
        assert_eq!(files.tensor_bytes(files.tensor("a").unwrap()), [1; 4]);
        assert_eq!(files.tensor_bytes(files.tensor("b").unwrap()), [2; 4]);
    }
    for (map, want) in [
        (r#"{"a":"../x-1.safetensors"}"#, "tensor 'a'"),
        (r#"{"a":"/etc/x.safetensors"}"#, "not the name of a .safetensors file"),
        (r#"{"a":"x-3.safetensors"}"#, "file 'x-3.safetensors' is missing (the download is not complete)"),
        (
            r#"{"a":"x-1.safetensors","b":"x-1.safetensors"}"#,
            "tensor 'b' is missing (the index says it is in",
        ),
        (
            r#"{"a":"x-1.safetensors","b":"x-2.safetensors","mask":"x-1.safetensors"}"#,
            "tensor 'mask' is missing (the index says it is in 'x-1.safetensors')",
        ),
        (r#"{"a":"x-1.safetensors","a":"x-1.safetensors"}"#, "'a' occurs twice"),
        ("[]", "weight_map"),
    ] {
        let err = open(&index(map)).unwrap_err();
        assert!(err.contains(want), "{map}: {err}");
    }
}

#[test]
fn a_name_is_in_one_shard_whatever_its_type() {
    let dir = Scratch::new("st-twins");
    dir.write("config.json", "{}");
    let row = |dtype: &str, len: u32| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":[4],"data_offsets":[0,{len}]}}}}"#)
    };
    let map = r#"{"weight_map":{"w":"x-2.safetensors","v":"x-1.safetensors"}}"#;
    let index = dir.write("model.safetensors.index.json", map);
    for (first, second) in
        [(("F8_E4M3", 4), ("F8_E4M3", 4)), (("F32", 16), ("U8", 4)), (("U8", 4), ("F32", 16))]
    {
        dir.write("x-1.safetensors", file(&row(first.0, first.1), &[1; 16]));
        dir.write("x-2.safetensors", file(&row(second.0, second.1), &[2; 16]));
        let err = open(&index).unwrap_err();
        let says = ["x-2.safetensors: tensor 'w' at", "x-1.safetensors' already"];
        assert!(says.iter().all(|it| err.contains(it)), "{first:?}, {second:?}: {err}");
    }
}

#[test]
fn dtypes_that_cannot_be_read_are_refused_when_they_matter() {
    let dir = Scratch::new("st-foreign");
    dir.write("config.json", "{}");
    let table = r#"{"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
    dir.write("model.safetensors", file(table, &[0; 12]));
    let files = open(dir.path()).unwrap();
    let err = files.tensor("ids").unwrap_err().to_string();
    let at = 8 + table.len();
    assert!(err.contains(&format!("tensor 'ids' at {at:#x}: dtype I64 is not supported")), "{err}");
    assert!(files.refuse_unknown(|name| name == "w" || name == "ids").is_ok());
    assert!(files.refuse_unknown(|name| name == "w").unwrap_err().to_string().contains("I64"));
    let err = files.refuse_unknown(|name| name == "ids").unwrap_err().to_string();
    assert!(err.contains("tensor 'w'") && err.contains("not part of this architecture"), "{err}");
    assert!(files.tensor("x").unwrap_err().to_string().ends_with("tensor 'x' is missing"));
}

#[test]
fn hostile_tables_are_refused_by_name_and_place() {
    let dir = Scratch::new("st-hostile");
    dir.write("config.json", "{}");
    let row = |name: &str, shape: &str, range: &str| {
        format!(r#"{{"{name}":{{"dtype":"F32","shape":{shape},"data_offsets":{range}}}}}"#)
    };
    let two = |range: &str| {
        let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        format!(r#"{{{a},"b":{{"dtype":"F32","shape":[2],"data_offsets":{range}}}}}"#)
    };
    let cases = [
        (row("w", "[2]", "[0,4]"), "tensor 'w' at"),
        (row("w", "[2]", "[8,0]"), "[8, 0] are no range"),
        (row("w", "[2]", "[0,18446744073709551615]"), "needs 8"),
        (row("w", "[2]", "[18446744073709551607,18446744073709551615]"), "no range"),
        (row("w", "[1099511627776,1099511627776]", "[0,8]"), "larger than any file"),
        (row("w", "[0]", "[0,0]"), "zero dimension"),
        (row("w", "[100]", "[0,400]"), "needs 400 bytes, file ends at"),
        (row("w", "[-1]", "[0,8]"), "the table is not valid"),
        (row("w", "[1.5]", "[0,8]"), "the table is not valid"),
        (two("[4,12]"), "tensor 'b' at 0x"),
        (two("[0,8]"), "overlaps tensor 'a'"),
        (two("[8,16]").replace("\"b\"", "\"a\""), "tensor 'a' occurs twice"),
        ("[".repeat(50_000), "the table is not valid"),
        (r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}}"#.to_owned(), "unknown field"),
        (r#"{"w":{"dtype":"F32"}}"#.to_owned(), "missing field"),
        (String::new(), "the table is not valid"),
    ];
    for (table, want) in cases {
        let path = dir.write("model.safetensors", file(&table, &[0; 16]));
        let err = open(&path).unwrap_err();
        assert!(err.contains("model.safetensors: ") && err.contains(want), "{want}: {err}");
    }
    for len in [u64::MAX, 1 << 60, 200 << 20] {
        let err = open(&dir.write("model.safetensors", len.to_le_bytes())).unwrap_err();
        assert!(err.contains("header at 0x0: claims a header of"), "{err}");
    }
    let err = open(&dir.write("model.safetensors", [100, 0, 0, 0, 0, 0, 0, 0, b'{'])).unwrap_err();
    assert!(err.contains("header at 0x8 needs 100 bytes, file ends at 0x9"), "{err}");
}

#[test]
fn a_folder_without_configuration_says_what_is_missing() {
    let dir = Scratch::new("st-noconfig");
    let path = dir.write("any.safetensors", file(TABLE, &[0; 18]));
    assert!(open(&path).unwrap_err().contains("file 'config.json' is missing"));
    dir.write("config.json", "{\"a\": }");
    let err = open(&path).unwrap_err();
    assert!(err.contains("config.json: header at 0x6: not valid JSON"), "{err}");
    dir.write("config.json", vec![b' '; (1 << 20) + 1]);
    assert!(open(&path).unwrap_err().contains("larger than the 1,048,576 bytes"));
    let deep = format!("{{\"{}\":{{\"b\":1}}}}", "k".repeat(1000));
    dir.write("config.json", deep);
    assert!(open(&path).unwrap_err().contains("a key path of"));
    assert!(open(&dir.write("model.bin", "x")).unwrap_err().contains("expected a folder, a .gguf"));
}
