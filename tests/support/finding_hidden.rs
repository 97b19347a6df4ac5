//! `waste bisect PLAN --against FILE.npz`: hidden states of a reference, by NumPy and made from the references of other models.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use waste::report::hidden::boundaries;
use waste::report::layers::number_in;
use waste_runtime::{LoadedPlan, Session, SessionOptions, StepView, Token, Values};

use crate::program::{Done, Waste};
use crate::samples::{LLAMA, MODELS, model};
use crate::scratch::Scratch;
use crate::{compiled, with_weight};

/// Element type, shape and bytes.
type Array = (&'static str, Vec<usize>, Vec<u8>);

/// Arrays by name.
type Arrays = BTreeMap<String, Array>;

fn write_npz(path: &Path, arrays: &Arrays) {
    let mut zip = ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, (descr, shape, bytes)) in arrays {
        zip.start_file(format!("{name}.npy"), SimpleFileOptions::default()).unwrap();
        let sizes: String = shape.iter().map(|it| format!("{it},")).collect();
        let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}\n");
        zip.write_all(b"\x93NUMPY\x01\x00").unwrap();
        zip.write_all(&u16::try_from(dict.len()).unwrap().to_le_bytes()).unwrap();
        zip.write_all(dict.as_bytes()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

fn ids(of: &[i32]) -> Array {
    ("<i4", vec![of.len()], of.iter().flat_map(|it| it.to_le_bytes()).collect())
}

/// The hidden states and logits that the references of a model state.
fn reference(name: &str) -> Arrays {
    let read = |file: &str| std::fs::read(model(name).join(file)).unwrap();
    let oracle: Value = serde_json::from_slice(&read("oracle.json")).unwrap();
    let at = oracle["hidden_of"].as_u64().unwrap();
    let found = oracle["prompts"][usize::try_from(at).unwrap()]["ids"].as_array().unwrap();
    let found: Vec<i32> = found.iter().map(|it| i32::try_from(it.as_i64().unwrap()).unwrap()).collect();
    let bytes = read("oracle.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut arrays = Arrays::from([("ids".to_owned(), ids(&found))]);
    for (name, it) in tensors.tensors() {
        let logits = (name == format!("logits.{at}")).then(|| "logits".to_owned());
        if let Some(name) = logits.or_else(|| name.starts_with("hidden.").then_some(name)) {
            arrays.insert(name, ("<f4", it.shape().to_vec(), it.data().to_vec()));
        }
    }
    arrays
}

fn bisect(scratch: &Scratch, plan: &str, npz: &Path, form: &str) -> Done {
    Waste::new(scratch).args(["bisect", plan, "-o", form, "--against"]).arg(npz).run()
}

fn segments(found: &Value) -> Vec<(&str, f64)> {
    let all = found["segments"].as_array().unwrap();
    all.iter().map(|it| (it["name"].as_str().unwrap(), it["own"].as_f64().unwrap())).collect()
}

/// The file is NumPy's own, compressed.
fn by_numpy() -> PathBuf {
    model("hidden/llama-rand-gqa-untied-f32.npz")
}

#[test]
fn a_right_plan_agrees_with_numpy() {
    let scratch = Scratch::new("finding-npz");
    let plan = compiled(&scratch, LLAMA);
    let found = bisect(&scratch, &plan, &by_numpy(), "json").ok().json();
    let segments = segments(&found);
    let names: Vec<&str> = segments.iter().map(|it| it.0.split(" (").next().unwrap()).collect();
    let expected = [
        "embedding, from the tokens to hidden.0",
        "layer 0, from hidden.0 to hidden.1",
        "layer 1, from hidden.1 to hidden.2",
        "layer 2, from hidden.2 to hidden.3",
        "the end, from hidden.3 to hidden.4",
        "the end, from hidden.4 to logits",
    ];
    assert_eq!(names, [expected, expected].concat(), "of both programs");
    assert!(segments.iter().all(|it| it.1 < 1e-6) && segments.iter().filter(|it| 0.0 < it.1).count() > 8);
    let end = found["end_error"].as_f64().unwrap();
    assert!(found["end"] == "logits" && 0.0 < end && end < 1e-5, "{found}");
    assert!(found["first_over"].is_null() && found["tokens"] == 17);
    let text = bisect(&scratch, &plan, &by_numpy(), "text").ok();
    assert!(text.stdout.contains("segments compared: 12, tolerance 1e-5\n") && text.stderr.is_empty());
    assert!(text.stdout.contains("end to end: logits "), "{}", text.stdout);
}

#[test]
fn a_changed_weight_is_found_at_its_layer() {
    for value in [1.0, f32::NAN] {
        let scratch = Scratch::new("finding-npz-wrong");
        let (plan, _) = with_weight(&scratch, value);
        let done = bisect(&scratch, &plan, &by_numpy(), "json");
        done.fails(3, "layer 1, from hidden.1 to hidden.2 (");
        let found = done.json();
        let over = found["segments"].as_array().unwrap().iter();
        let over = over.filter(|it| it["own"].as_f64().is_none_or(|it| it > 1e-5));
        assert_eq!(over.count(), 2, "one a program: {found}");
        assert!(found["end_error"].as_f64().is_none_or(|it| it > 1e-5), "the end is wrong because of it");
    }
}

/// Where few states are stated, the layers between them are one segment.
#[test]
fn states_may_be_missing() {
    let scratch = Scratch::new("finding-npz-few");
    let (plan, _) = with_weight(&scratch, 1.0);
    let mut arrays = reference(LLAMA);
    arrays.retain(|name, _| ["ids", "hidden.0", "hidden.2"].contains(&name.as_str()));
    // As transformers gives them, with a batch before; and what nobody compares.
    arrays.get_mut("hidden.2").unwrap().1.insert(0, 1);
    arrays.insert("attn.0".into(), ids(&[1]));
    let path = scratch.path().join("few.npz");
    write_npz(&path, &arrays);
    let done = bisect(&scratch, &plan, &path, "json");
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    let note = "few.npz: array 'attn.0' is neither ids, hidden.K nor logits: not compared";
    assert!(done.stderr.contains(note), "{}", done.stderr);
    let found = done.json();
    assert_eq!(segments(&found).len(), 4, "{found}");
    let first = found["first_over"]["name"].as_str().unwrap();
    assert!(first.starts_with("layers 0 to 1, from hidden.0 to hidden.2 ("), "{first}");
    assert_eq!((&found["end"], &found["ignored"].as_array().unwrap().len()), (&"hidden.2".into(), &1));
}

#[test]
fn other_families_hand_on_hidden_states_too() {
    let models = ["gpt2-rand-f32", "llama-rand-gqa-tied-bf16", "llama-rand-llama3rope-f16", "kimi-rand-bf16"];
    for name in models.map(|it| format!("models/{it}")) {
        let scratch = Scratch::new("finding-npz-families");
        let (plan, arrays) = (compiled(&scratch, &name), reference(&name));
        let path = scratch.path().join("states.npz");
        write_npz(&path, &arrays);
        let done = bisect(&scratch, &plan, &path, "json").ok();
        let found = done.json();
        assert!(done.stderr.is_empty(), "{name}: {}", done.stderr);
        assert_eq!(segments(&found).len(), 2 * (arrays.len() - 1), "{name}: every array but the ids");
        assert!(found["end_error"].as_f64().unwrap() < 1e-5, "{name}");
    }
}

/// The states of every family as the plan itself has them, token by token: chunks of tokens come to the same bits.
#[test]
fn a_plan_agrees_with_its_own_states() {
    for name in MODELS {
        let scratch = Scratch::new("finding-npz-own");
        let plan = compiled(&scratch, name);
        let loaded = LoadedPlan::open(Path::new(&plan)).unwrap();
        let mut session = Session::open(&loaded, &SessionOptions::default()).unwrap();
        let found = (0..21).map(|it| it * 7 % 60 + 1).collect::<Vec<i32>>();
        let mut states: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for id in &found {
            let token = [Token { row: 0, id: u32::try_from(*id).unwrap() }];
            let see = &mut |view: &StepView<'_>| {
                let all = boundaries(loaded.plan(), view.program());
                let Some(it) = all.iter().find(|it| it.step == view.index()) else { return };
                let Some(Values::F32(row)) = view.result(it.slot) else { panic!("{name}: {}", it.point) };
                states.entry(it.point.to_string()).or_default().extend(row);
            };
            session.step_seen(&token, &[0], see).unwrap();
        }
        let layers = loaded.plan().states.iter().filter_map(|it| number_in(&it.name)).max().unwrap() + 1;
        let mut expected: Vec<String> = (0..=layers + 1).map(|it| format!("hidden.{it}")).collect();
        expected.push("logits".into());
        assert_eq!(states.keys().cloned().collect::<Vec<_>>(), expected, "{name}");
        let array = |it: Vec<f32>| {
            let shape = vec![found.len(), it.len() / found.len()];
            ("<f4", shape, it.iter().flat_map(|it| it.to_le_bytes()).collect())
        };
        let mut arrays: Arrays = states.into_iter().map(|(name, it)| (name, array(it))).collect();
        arrays.insert("ids".into(), ids(&found));
        let path = scratch.path().join("own.npz");
        write_npz(&path, &arrays);
        let found = bisect(&scratch, &plan, &path, "json").ok().json();
        let errors = segments(&found);
        assert_eq!(errors.len(), 2 * expected.len(), "{name}");
        // The final norm may be quantised anew, and rounded by it.
        let most = |it: &str| if it.contains("to logits (") { 2e-7 } else { 0.0 };
        assert!(errors.iter().all(|it| it.1 <= most(it.0)) && found["end_error"] == 0.0, "{name}: {found}");
    }
}

#[test]
fn what_is_no_reference_is_refused() {
    let scratch = Scratch::new("finding-npz-bad");
    let plan = compiled(&scratch, LLAMA);
    let path = scratch.path().join("bad.npz");
    let refused = |change: &dyn Fn(&mut Arrays), part: &str| {
        let mut arrays = reference(LLAMA);
        change(&mut arrays);
        write_npz(&path, &arrays);
        bisect(&scratch, &plan, &path, "text").fails(1, part);
    };
    let hidden = |shape: &[usize]| ("<f4", shape.to_vec(), vec![0; shape.iter().product::<usize>() * 4]);
    refused(&|it| drop(it.remove("ids")), "bad.npz: no array 'ids'");
    refused(&|it| it.retain(|name, _| name == "ids"), "no array 'hidden.K' and no 'logits'");
    refused(
        &|it| drop(it.insert("hidden.1".into(), hidden(&[17, 48]))),
        "array 'hidden.1' has shape (17, 48), expected (17, 64)",
    );
    refused(&|it| drop(it.insert("ids".into(), ids(&[1, 2]))), "has shape (17, 64), expected (2, 64)");
    refused(&|it| drop(it.insert("hidden.5".into(), hidden(&[17, 64]))), "3 layers, so hidden.4 is the last");
    refused(&|it| drop(it.insert("ids".into(), ids(&[1, 272]))), "token 272 of a vocabulary of 272");
    refused(&|it| drop(it.insert("ids".into(), ids(&[1; 65]))), "holds 65 tokens, the plan has 64 positions");
    refused(&|it| it.get_mut("ids").unwrap().0 = "<f4", "array 'ids': elements <f4, expected <i4");
    refused(&|it| it.get_mut("hidden.0").unwrap().0 = ">f4", "array 'hidden.0': elements >f4, expected <f2");
    refused(
        &|it| it.get_mut("hidden.0").unwrap().2.truncate(999),
        "'hidden.0': ends after 999 of 4352 bytes",
    );
    refused(
        &|it| it.get_mut("hidden.2").unwrap().2[260..264].copy_from_slice(&f32::NAN.to_le_bytes()),
        "array 'hidden.2': row 1 holds what is no number",
    );

    let bytes = std::fs::read(by_numpy()).unwrap();
    for cut in [0, 7, 900, bytes.len() - 30] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        bisect(&scratch, &plan, &path, "text").fails(1, "bad.npz: ");
    }
    let args = ["bisect", &plan, "--tokens", "ids.txt", "--against"];
    let done = Waste::new(&scratch).args(args).arg(by_numpy()).run();
    done.fails(2, "--tokens: ");
}
