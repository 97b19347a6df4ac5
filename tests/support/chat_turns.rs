//! Conversations over a session, as a library.

use std::ops::ControlFlow;
use std::path::Path;

use waste::chat::{Answer, Chat, ChatError, TurnOptions};
use waste::compile::{CompileOptions, compile};
use waste::formats::ModelFiles;
use waste::generate::{Rules, StopReason};
use waste::progress::Silent;
use waste::text::{ChatTemplate, SamplerOptions, TokenizerSpec};
use waste_runtime::LoadedPlan;

use super::program::folder_with_tokenizer;
use super::scratch::Scratch;
use super::support::{Run, session};
use super::then;

/// A turn is `<bos>role`, the text, `<eos>`.
const TURNS: &str = "{% for m in messages %}<bos>{{ m.role }}\n{{ m.content }}<eos>\n{% endfor %}\
                     {% if add_generation_prompt %}<bos>assistant\n{% endif %}";

/// As [`TURNS`], but of earlier answers only the last three characters are kept.
const FORGETFUL: &str = "{% for m in messages %}<bos>{{ m.role }}\n\
                         {{ m.content[-3:] if m.role == 'assistant' else m.content }}<eos>\n{% endfor %}\
                         {% if add_generation_prompt %}<bos>assistant\n{% endif %}";

/// A random Llama with a tokenizer of bytes.
fn llama(scratch: &Scratch, ctx: u32) -> LoadedPlan {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/llama-rand-gqa-untied-f32");
    load(&folder_with_tokenizer(scratch, &from), ctx)
}

fn kimi_tiny() -> LoadedPlan {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kimi-tiny"), 256)
}

fn load(model: &Path, ctx: u32) -> LoadedPlan {
    let files = ModelFiles::open(model, None).unwrap();
    let options = CompileOptions { ctx: Some(ctx), chunk: Some(16), ..CompileOptions::usual() };
    compile(&files, &options, &mut |_| ()).unwrap().load(&Silent).unwrap()
}

fn chat(loaded: &LoadedPlan, template: &str, threads: usize) -> Chat {
    let spec = TokenizerSpec::from_section(loaded.text()).unwrap();
    let template = ChatTemplate::for_tokenizer("t.jinja", template.to_owned(), &spec).unwrap();
    let session = session(loaded, &Run { threads, ..Run::default() });
    Chat::new(session, spec.build().unwrap(), template, Some("Be <eos> brief".to_owned()), then(), 7)
}

fn options(temperature: f64) -> TurnOptions {
    TurnOptions {
        budget: Some(12),
        sampling: SamplerOptions { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 },
        rules: Rules { stop_ids: vec![257], ..Rules::default() },
        stops: Vec::new(),
    }
}

fn turn(chat: &mut Chat, text: &str, temperature: f64) -> Answer {
    let mut heard = String::new();
    let answer = chat.turn(text, &options(temperature), &mut |piece| {
        heard.push_str(piece);
        ControlFlow::Continue(())
    });
    let answer = answer.unwrap();
    assert_eq!(heard, answer.text, "what is streamed is the answer");
    answer
}

/// The bits of the logits that the last token was chosen from.
fn bits(chat: &Chat) -> Vec<u32> {
    chat.session().logits(0).iter().map(|it| it.to_bits()).collect()
}

#[test]
fn a_turn_reads_only_what_is_new() {
    for loaded in [llama(&Scratch::new("chat-new"), 256), kimi_tiny()] {
        let mut talk = chat(&loaded, TURNS, 1);
        let first = turn(&mut talk, "hi", 0.8);
        assert_eq!((first.kept_tokens, talk.messages().len()), (0, 3));
        let read = talk.session().len(0) as usize;
        let second = turn(&mut talk, "and <eos> you?", 0.8);
        assert_eq!(second.kept_tokens, read, "all that was read stays");
        let new = second.prompt_tokens - read;
        assert_eq!(second.generation.prompt.tokens, new as u64);
        assert!(talk.ids().len() >= second.prompt_tokens);
        // The answer's own ids stand in the history, also where its text would be cut into others.
        let answer = &first.generation.rows[0].ids;
        let at = first.prompt_tokens;
        assert_eq!(&talk.ids()[at..at + answer.len()], answer);
    }
}

/// One who reads the whole conversation anew sees the same logits.
#[test]
fn a_kept_history_has_the_bits_of_one_read_anew() {
    for loaded in [llama(&Scratch::new("chat-bits"), 256), kimi_tiny()] {
        let mut kept = chat(&loaded, TURNS, 1);
        turn(&mut kept, "a", 0.9);
        let last = turn(&mut kept, "b", 0.0);
        let ids = &kept.ids()[..kept.session().len(0) as usize];
        assert!(last.kept_tokens > 0);
        let mut anew = session(&loaded, &Run { threads: 2, ..Run::default() });
        for chunk in ids.chunks(7) {
            let batch: Vec<_> = chunk.iter().map(|id| waste_runtime::Token { row: 0, id: *id }).collect();
            anew.step(&batch, &[u32::try_from(chunk.len()).unwrap() - 1]).unwrap();
        }
        assert_eq!(bits(&kept), anew.logits(0).iter().map(|it| it.to_bits()).collect::<Vec<_>>());
    }
}

#[test]
fn a_template_that_rewrites_the_past_is_read_from_there() {
    for (loaded, goes_back) in [(llama(&Scratch::new("chat-past"), 256), true), (kimi_tiny(), false)] {
        let mut talk = chat(&loaded, FORGETFUL, 1);
        let first = turn(&mut talk, "hello", 0.9);
        assert!(first.text.chars().count() > 3, "{:?}", first.text);
        let second = turn(&mut talk, "x", 0.0);
        if goes_back {
            // Up to the answer both are the same, and perhaps a little further.
            assert!((first.prompt_tokens..first.prompt_tokens + 4).contains(&second.kept_tokens));
        } else {
            assert_eq!(second.kept_tokens, 0, "a recurrent state goes back to the beginning only");
        }
        let spec = TokenizerSpec::from_section(loaded.text()).unwrap();
        let template = ChatTemplate::for_tokenizer("t", FORGETFUL.to_owned(), &spec).unwrap();
        let said = &talk.messages()[..4];
        let input = waste::text::ChatInput::new(said, true, &then());
        let tokenizer = spec.build().unwrap();
        let ids = template.render(&input, &tokenizer).unwrap().ids(&tokenizer).unwrap();
        assert_eq!(&talk.ids()[..second.prompt_tokens], ids, "the session has what the template says");
    }
}

#[test]
fn a_saved_conversation_goes_on_with_the_same_bits() {
    for (name, loaded) in [("l", llama(&Scratch::new("chat-saved"), 256)), ("k", kimi_tiny())] {
        let dir = Scratch::new(&format!("chat-saved-{name}"));
        let file = dir.path().join("s.bin");
        let mut whole = chat(&loaded, TURNS, 1);
        turn(&mut whole, "one", 0.9);
        whole.save(&file).unwrap();
        let answer = turn(&mut whole, "two", 0.9);
        let mut other = chat(&loaded, TURNS, 2);
        other.set_seed(1);
        turn(&mut other, "something else", 0.0);
        other.load(&file).unwrap();
        let again = turn(&mut other, "two", 0.9);
        assert_eq!((again.text, again.kept_tokens), (answer.text, answer.kept_tokens));
        assert_eq!((other.ids(), other.seed()), (whole.ids(), 7));
        assert_eq!(bits(&other), bits(&whole));
        assert_eq!(other.messages(), whole.messages());
    }
}

/// Sessions saved before there were notes have a shorter header.
#[test]
fn a_session_of_the_format_before_is_read() {
    let dir = Scratch::new("chat-version");
    let loaded = llama(&dir, 256);
    let mut first = session(&loaded, &Run::default());
    first.step(&[waste_runtime::Token { row: 0, id: 3 }], &[0]).unwrap();
    let file = dir.path().join("s.bin");
    first.save(0, &[3, 5], &file).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let with_crc = |mut body: Vec<u8>| {
        body.extend(waste_plan::file::crc32c(&body).to_le_bytes());
        body
    };
    assert_eq!(bytes[4..8], [2, 0, 0, 0]);
    let old = [&bytes[..4], &[1, 0, 0, 0], &bytes[8..20], &bytes[24..bytes.len() - 4]].concat();
    std::fs::write(&file, with_crc(old)).unwrap();
    let mut second = session(&loaded, &Run::default());
    assert_eq!(second.restore_with(0, &file).unwrap(), (vec![3, 5], Vec::new()));
    assert_eq!(second.len(0), 1);
    let long = [&bytes[..20], &[9, 0, 0, 0], &bytes[24..bytes.len() - 4]].concat();
    for (body, want) in [(long, "bytes of states"), (bytes[..18].to_vec(), "ends within its header")] {
        std::fs::write(&file, with_crc(body)).unwrap();
        let err = second.restore(0, &file).unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
    }
    let mut next = bytes.clone();
    next[4] = 3;
    std::fs::write(&file, next).unwrap();
    assert!(second.restore(0, &file).unwrap_err().to_string().contains("version 3, this build reads 1 to 2"));
}

#[test]
fn what_does_not_fit_a_conversation_is_refused() {
    let dir = Scratch::new("chat-refused");
    let loaded = llama(&dir, 256);
    let file = dir.path().join("s.bin");
    let mut talk = chat(&loaded, TURNS, 1);
    turn(&mut talk, "one", 0.0);
    talk.save(&file).unwrap();
    let messages = talk.messages().to_vec();
    let err = chat(&loaded, FORGETFUL, 1).load(&file).unwrap_err().to_string();
    assert!(err.contains("was held under the chat template of SHA-256"), "{err}");
    let err = chat(&kimi_tiny(), TURNS, 1).load(&file).unwrap_err().to_string();
    assert!(err.contains("is of another model: "), "{err}");
    // A session without a conversation, and a damaged file.
    let plain = dir.path().join("plain.bin");
    session(&loaded, &Run::default()).save(0, &[], &plain).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 4;
    let damaged = dir.write("damaged.bin", bytes);
    for (path, want) in [(&plain, "no conversation"), (&damaged, "is damaged")] {
        let err = talk.load(path).unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
        assert_eq!(talk.messages(), messages, "the conversation stays");
    }
    // It is read again where its states are lost, and goes on as before.
    let mut calm = chat(&loaded, TURNS, 1);
    calm.load(&file).unwrap();
    assert_eq!(turn(&mut talk, "two", 0.0).text, turn(&mut calm, "two", 0.0).text);
}

#[test]
fn a_conversation_that_does_not_fit_says_so_and_goes_on() {
    let loaded = llama(&Scratch::new("chat-full"), 64);
    let mut talk = chat(&loaded, TURNS, 1);
    let before = talk.messages().len();
    let err = talk.turn(&"x".repeat(60), &options(0.0), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(err, ChatError::Full { needs: 60.., ctx: 64 }), "{err:?}");
    assert_eq!(talk.messages().len(), before, "the turn was never said");
    let long = TurnOptions {
        budget: None,
        rules: Rules { excluded: vec![257], ..Rules::default() },
        ..options(0.0)
    };
    let answer = talk.turn("x", &long, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(answer.stop, StopReason::ContextFull);
    talk.reset();
    assert_eq!((talk.messages().len(), talk.ids().len()), (1, 0));
    assert_eq!(turn(&mut talk, "x", 0.0).kept_tokens, 0);
}

/// What was refused changes nothing: also not how the answers before are cut into ids.
#[test]
fn a_refused_turn_leaves_the_ids_of_earlier_answers() {
    let refuses = format!(
        "{{% if 'never' in messages[-1].content %}}{{{{ raise_exception('no') }}}}{{% endif %}}{TURNS}"
    );
    for (loaded, ctx) in [(llama(&Scratch::new("chat-refuse"), 128), 128), (kimi_tiny(), 256)] {
        let mut talk = chat(&loaded, &refuses, 1);
        let tokenizer = TokenizerSpec::from_section(loaded.text()).unwrap().build().unwrap();
        // An answer whose text would be cut into other ids than its own.
        let first = (0..200).find_map(|seed| {
            talk.reset();
            talk.set_seed(seed);
            let first = turn(&mut talk, "hi", 3.0);
            let again = tokenizer.encode(&first.text).unwrap();
            (!again.ends_with(&first.generation.rows[0].ids)).then_some(first)
        });
        let first = first.expect("one of 200 such answers");
        let answer = &first.generation.rows[0].ids;
        let read = talk.session().len(0) as usize;
        let mut refused =
            |text: &str| talk.turn(text, &options(0.0), &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(refused(&"x ".repeat(ctx)), ChatError::Full { .. }));
        assert!(refused("never").to_string().contains("it refuses the conversation: no"));
        let second = turn(&mut talk, "you?", 0.0);
        assert_eq!(second.kept_tokens, read, "all that was read stays");
        let at = first.prompt_tokens;
        assert_eq!(&talk.ids()[at..at + answer.len()], answer);
    }
}

#[test]
fn an_interrupted_answer_stays_and_an_interrupted_question_does_not() {
    let loaded = llama(&Scratch::new("chat-cut"), 256);
    let mut talk = chat(&loaded, TURNS, 1);
    let flag = talk.session().cancel_flag();
    flag.store(true, std::sync::atomic::Ordering::Relaxed);
    let answer = talk.turn("first", &options(0.0), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((answer.stop, talk.messages().len()), (StopReason::Interrupted, 1));
    let mut pieces = 0;
    let answer = talk.turn("first", &options(0.9), &mut |_| {
        pieces += 1;
        flag.store(pieces == 3, std::sync::atomic::Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    let answer = answer.unwrap();
    assert_eq!((answer.stop, talk.messages().len()), (StopReason::Interrupted, 3));
    let kept = turn(&mut talk, "second", 0.0).kept_tokens;
    assert!(kept >= answer.prompt_tokens, "{kept} of {}", answer.prompt_tokens);
}
