//! Experts from their files: the same bits whatever the cache holds and whoever reads, and a record that cannot be trusted
//! ends the step, not the session.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/models_made.rs"]
mod made;
mod support;

use std::path::Path;

use made::{Made, VQ2R, VQ3R, VQ4P};
use support::scratch::{self, Scratch};
use support::{Run, f32s, hash, rel_l2, run, session, tiers};
use waste::compile::{CompileOptions, compile, compile_text};
use waste::formats::ModelFiles;
use waste::progress::Silent;
use waste_plan::Tables;
use waste_runtime::experts::Counters;
use waste_runtime::{ExpertOptions, Isa, LoadedPlan, Session, SessionOptions, Token, check_experts};

const IDS: [u32; 12] = [3, 7, 11, 5, 9, 13, 2, 17, 4, 8, 19, 23];

/// Four experts in each of two layers.
const RECORDS: u64 = 8;

fn load(model: &Path, chunk: u32, tables: Tables) -> LoadedPlan {
    load_with(
        model,
        CompileOptions { chunk: Some(chunk), want: Some(chunk), tables, ..CompileOptions::usual() },
    )
}

/// With positions for the prompt of all tests.
fn load_with(model: &Path, options: CompileOptions) -> LoadedPlan {
    let files = ModelFiles::open(model, None).unwrap();
    let options = CompileOptions { ctx: Some(64), ..options };
    compile(&files, &options, &mut |_| ()).unwrap().load(&Silent).unwrap()
}

fn logits(loaded: &LoadedPlan, how: &Run) -> Vec<f32> {
    run(loaded, how, &[&IDS]).remove(0)
}

/// The checkpoint holds the weights that the codes stand for, as floats.
#[test]
fn looked_up_experts_are_those_of_the_checkpoint() {
    for code in [VQ3R, VQ2R, VQ4P] {
        let dir = Scratch::new("streaming-close");
        let made = Made::new(code);
        let expected = logits(&load(&made.write_checkpoint(&dir, "s"), 16, Tables::Fixed24), &Run::default());
        let container = made.write_container(&dir, "c");
        for (tables, bound) in [(Tables::Fixed24, 1e-5), (Tables::F32, 1e-5), (Tables::Fixed16, 1e-3)] {
            let error = rel_l2(&logits(&load(&container, 16, tables), &Run::default()), &expected);
            assert!(error <= bound, "{} {tables:?}: {error:.2e}", code.name);
        }
    }
}

/// The engine that defined the format, on its scalar rows and on its widest; of VQ4P it rounds tables to bytes.
#[test]
fn containers_have_the_logits_of_their_engine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containers");
    for (code, bound) in [("vq3r", 2e-5), ("vq4p", 5e-2)] {
        for name in [format!("tiny-{code}"), format!("tinyk3-{code}")] {
            let found = logits(&load(&root.join(&name), 16, Tables::Fixed24), &Run::default());
            for rows in ["cpu", "auto"] {
                let golden = f32s(&std::fs::read(root.join(format!("golden/{name}.{rows}.bin"))).unwrap());
                let error = rel_l2(&found[found.len() - golden.len()..], &golden);
                assert!(error <= bound, "{name}.{rows}: relative L2 {error:.2e}");
            }
        }
    }
}

/// One hash over caches × readers × how files are read × chunks × threads × tiers.
#[test]
fn the_same_bits_whatever_the_cache_holds() {
    let (_, cpu) = *tiers().last().unwrap();
    for code in [VQ3R, VQ2R, VQ4P] {
        let dir = Scratch::new("streaming-bits");
        let container = Made::new(code).write_container(&dir, "c");
        let mut expected: Option<String> = None;
        for chunk in [1, 5, 12] {
            let loaded = load(&container, chunk, Tables::Fixed24);
            for slots in [1, 2, 3, 5, RECORDS] {
                for (readers, direct, verify, threads, cpu) in [
                    (0, false, false, 1, cpu.capped(Isa::Portable)),
                    (1, true, true, 2, cpu.capped(Isa::Avx2)),
                    (2, true, false, 3, cpu),
                    (3, false, true, 2, cpu),
                ] {
                    let experts =
                        ExpertOptions { slots: Some(slots), readers, direct, verify, exclusive: false };
                    let found = hash(&logits(&loaded, &Run { threads, cpu, step: 0, experts }));
                    assert_eq!(
                        &found,
                        expected.get_or_insert_with(|| found.clone()),
                        "{}: chunk {chunk}, {slots} slots, {readers} readers, {threads} threads",
                        code.name
                    );
                }
            }
        }
    }
}

/// Programs of one token read tables that are made once for all experts, those of many make them for each: all modes, one hash.
#[test]
fn tables_have_the_same_bits_wherever_they_are_made() {
    let steps = |loaded: &LoadedPlan, name: &str| {
        let of =
            |it: &waste_plan::schema::Program| it.steps.iter().filter(|it| it.kind.name() == name).count();
        loaded.plan().programs.iter().map(of).collect::<Vec<usize>>()
    };
    for code in [VQ3R, VQ2R, VQ4P] {
        let dir = Scratch::new("streaming-tables");
        let container = Made::new(code).write_container(&dir, "c");
        for tables in [Tables::Fixed24, Tables::Fixed16, Tables::F32, Tables::Container] {
            let (one, many) = (load(&container, 1, tables), load(&container, 12, tables));
            assert!(steps(&one, "expert_vq").iter().all(|it| *it == 0));
            let by_program = [steps(&many, "expert_vq"), steps(&many, "expert_lut")];
            assert_eq!(by_program, [vec![0, 6], vec![6, 0]], "gate, up and down in two layers");
            let expected = hash(&logits(&one, &Run::default()));
            for (tier, cpu) in tiers() {
                let found = hash(&logits(&many, &Run { cpu, ..Run::default() }));
                assert_eq!(found, expected, "{} {tables:?} on {tier}", code.name);
            }
        }
    }
}

#[test]
fn a_cache_of_all_experts_reads_each_once_and_a_small_one_again() {
    let dir = Scratch::new("streaming-counts");
    let loaded = load(&Made::new(VQ3R).write_container(&dir, "c"), 1, Tables::Fixed24);
    let counters = |slots| {
        let experts = ExpertOptions { slots: Some(slots), ..ExpertOptions::default() };
        let mut session = session(&loaded, &Run { experts, ..Run::default() });
        for id in IDS {
            session.step(&[Token { row: 0, id }], &[]).unwrap();
        }
        session.expert_counters().unwrap()
    };
    let (all, few) = (counters(RECORDS), counters(2));
    assert!(all.reads <= RECORDS && all.misses == all.reads && all.evictions == 0, "{all:?}");
    assert!(few.reads > all.reads && few.evictions > 0, "{few:?}");
    assert_eq!(few.hits + few.misses, all.hits + all.misses, "the same requests");
    assert_eq!(few.bytes / few.reads, all.bytes / all.reads, "records of one size");
}

/// A plan in whose `decode` each layer guesses `lookahead` experts of the next.
fn guessing(container: &Path, chunk: u32, lookahead: u32) -> LoadedPlan {
    let (chunk, want) = (Some(chunk), Some(chunk));
    load_with(container, CompileOptions { chunk, want, lookahead, ..CompileOptions::usual() })
}

/// One hash over guesses × chunks × caches × readers × how files are read × threads.
#[test]
fn guesses_change_no_bit() {
    for code in [VQ2R, VQ4P] {
        let dir = Scratch::new("streaming-guesses");
        let container = Made::new(code).write_container(&dir, "c");
        let mut expected: Option<String> = None;
        for lookahead in [0, 1, 2, 6] {
            // All tokens one by one; eleven at once and one more.
            for (chunk, step) in [(1, 1), (11, 11)] {
                let loaded = guessing(&container, chunk, lookahead);
                for slots in [1, 2, 3, 5, RECORDS] {
                    for (readers, direct, threads) in
                        [(0, true, 2), (1, false, 1), (1, true, 3), (3, true, 2)]
                    {
                        let experts =
                            ExpertOptions { slots: Some(slots), readers, direct, ..ExpertOptions::default() };
                        let found = hash(&logits(&loaded, &Run { threads, step, experts, ..Run::default() }));
                        assert_eq!(
                            &found,
                            expected.get_or_insert_with(|| found.clone()),
                            "{}: {lookahead} guessed, chunk {chunk}, {slots} slots, {readers} readers, {threads} threads",
                            code.name
                        );
                    }
                }
            }
        }
    }
}

/// In a cache too small for what two layers want, what is guessed right is no miss.
#[test]
fn guesses_are_read_and_hit() {
    let dir = Scratch::new("streaming-hits");
    let container = Made::new(VQ3R).write_container(&dir, "c");
    let counters = |lookahead, readers| {
        let experts = ExpertOptions { slots: Some(3), readers, ..ExpertOptions::default() };
        let mut session = session(&guessing(&container, 1, lookahead), &Run { experts, ..Run::default() });
        for id in IDS {
            session.step(&[Token { row: 0, id }], &[]).unwrap();
        }
        session.expert_counters().unwrap()
    };
    let (without, with, unread) = (counters(0, 1), counters(2, 1), counters(2, 0));
    let requests = |it: &Counters| it.hits + it.speculative_hits + it.misses;
    assert_eq!((without.speculative_reads, without.speculative_hits), (0, 0), "{without:?}");
    assert!(
        0 < with.speculative_hits
            && with.speculative_hits + with.speculative_losses <= with.speculative_reads,
        "{with:?}"
    );
    assert!(with.misses < without.misses, "{with:?} {without:?}");
    assert_eq!((unread.speculative_reads, unread.speculative_hits), (0, 0), "nobody reads ahead: {unread:?}");
    assert_eq!((requests(&with), requests(&unread)), (requests(&without), requests(&without)));
}

#[test]
fn a_record_that_is_damaged_or_written_to_ends_the_step_and_leaves_the_history() {
    let dir = Scratch::new("streaming-damage");
    let container = Made::new(VQ3R).write_container(&dir, "c");
    let loaded = load(&container, 12, Tables::Fixed24);
    let bank = container.join("experts-L1.bin");
    let good = std::fs::read(&bank).unwrap();
    let mut bad = good.clone();
    // One byte of every record, far behind its header.
    let record = good.len() / 4;
    (0..4).for_each(|e| bad[e * record + record / 2] ^= 1);
    let tokens: Vec<Token> = IDS.iter().map(|id| Token { row: 0, id: *id }).collect();
    for threads in [1, 2] {
        let experts = ExpertOptions { slots: Some(1), verify: true, ..ExpertOptions::default() };
        let how = Run { threads, experts, ..Run::default() };
        std::fs::write(&bank, &bad).unwrap();
        let mut damaged = session(&loaded, &how);
        let message = damaged.step(&tokens[..5], &[4]).unwrap_err().to_string();
        assert!(message.contains("expert") && message.contains("layer 1"), "{message}");
        assert_eq!(damaged.len(0), 0);
        std::fs::write(&bank, &good).unwrap();
        let mut changed = session(&loaded, &how);
        changed.step(&tokens[..5], &[]).unwrap();
        std::fs::write(&bank, &bad).unwrap();
        let message = changed.step(&tokens[5..], &[6]).unwrap_err().to_string();
        assert!(message.contains("written to"), "{message}");
        assert_eq!(changed.len(0), 5);
    }
}

/// Another conversion to the same place has the same manifest, and a right checksum in every record.
#[test]
fn experts_of_another_conversion_are_refused() {
    let dir = Scratch::new("streaming-replaced");
    let container = Made::new(VQ3R).write_container(&dir, "c");
    let loaded = load(&container, 12, Tables::Fixed24);
    session(&loaded, &Run::default());
    let bank = container.join("experts-L1.bin");
    let mut other = std::fs::read(&bank).unwrap();
    let record = other.len() / 4;
    for record in other.chunks_exact_mut(record) {
        record[60] ^= 1;
        let scales = u32::from_le_bytes(*record[32..].first_chunk().unwrap()) as usize;
        let end = scales + record[scales..].iter().rposition(|it| *it != 0).unwrap() + 1;
        let crc = crc32fast::hash(&record[48..end.next_multiple_of(2)]);
        record[36..40].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::write(&bank, other).unwrap();
    let message = Session::open(&loaded, &SessionOptions::default()).unwrap_err().to_string();
    assert!(message.contains("experts-L1.bin: the plan was compiled from other experts"), "{message}");
}

/// The text names files of a container; its tokenizer lies beside them, and another bank is not what the text was made from.
#[test]
fn graphs_of_a_container_compile_with_its_tokenizer() {
    let dir = Scratch::new("streaming-text");
    let container = Made::new(VQ3R).write_container(&dir, "c");
    for name in ["tokenizer.model", "tokenizer_config.json"] {
        let from = if name == "tokenizer.model" { "tiktoken.model" } else { name };
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/container").join(from);
        std::fs::copy(from, container.join(name)).unwrap();
    }
    let options = CompileOptions { ctx: Some(64), ..CompileOptions::usual() };
    let files = ModelFiles::open(&container, None).unwrap();
    let compiled = compile(&files, &options, &mut |_| ()).unwrap();
    let again = || compile_text("text", &compiled.ir, Path::new("/"), &options, &mut |_| ());
    assert!(!compiled.text.is_empty() && again().unwrap().text == compiled.text);
    let bank = container.join("experts-L1.bin");
    let mut bytes = std::fs::read(&bank).unwrap();
    bytes[36] ^= 1;
    std::fs::write(&bank, bytes).unwrap();
    let message = again().unwrap_err().to_string();
    assert!(message.contains("experts-L1.bin") && message.contains("the text was made from"), "{message}");
}

#[test]
fn files_of_experts_are_checked_without_a_session() {
    let dir = Scratch::new("streaming-checked");
    let container = Made::new(VQ3R).write_container(&dir, "c");
    let loaded = load(&container, 12, Tables::Fixed24);
    let check = |verify| {
        let options = ExpertOptions { verify, ..ExpertOptions::default() };
        check_experts(&loaded, &options).map_err(|it| it.to_string())
    };
    assert_eq!((check(false), check(true)), (Ok(RECORDS), Ok(RECORDS)));
    let bank = container.join("experts-L1.bin");
    let mut bytes = std::fs::read(&bank).unwrap();
    // Of the last expert, far behind its header.
    let at = bytes.len() - bytes.len() / 8;
    bytes[at] ^= 1;
    std::fs::write(&bank, bytes).unwrap();
    assert_eq!(check(false), Ok(RECORDS));
    let message = check(true).unwrap_err();
    assert!(message.contains("expert 3 of layer 1") && message.contains("damaged"), "{message}");
    std::fs::remove_file(&bank).unwrap();
    assert!(check(false).unwrap_err().contains("experts-L1.bin"));
}

/// A saved session of delta and latent states goes on with the same bits in another process's place.
#[test]
fn a_saved_session_goes_on_with_the_same_bits() {
    let dir = Scratch::new("streaming-saved");
    let loaded = load(&Made::new(VQ3R).write_container(&dir, "c"), 12, Tables::Fixed24);
    let whole = logits(&loaded, &Run::default());
    let vocab = whole.len() / IDS.len();
    let tokens: Vec<Token> = IDS.iter().map(|id| Token { row: 0, id: *id }).collect();
    let file = dir.path().join("s.bin");
    let mut first = session(&loaded, &Run::default());
    first.step(&tokens[..7], &[]).unwrap();
    first.save(0, &IDS[..7], &file).unwrap();
    let mut second = session(&loaded, &Run { threads: 2, ..Run::default() });
    assert_eq!(second.restore(0, &file).unwrap(), &IDS[..7]);
    second.step(&tokens[7..], &[4]).unwrap();
    assert_eq!(hash(second.logits(0)), hash(&whole[11 * vocab..]));
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(second.restore(0, &file).is_err());
}
