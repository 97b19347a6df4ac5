//! `waste chat` and `waste tokenize --messages`, as a user runs them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::program::{Done, Waste, folder_with_tokenizer};
use super::scratch::Scratch;

/// A turn is `<bos>role`, the text, `<eos>`.
const TURNS: &str = "{% for m in messages %}<bos>{{ m.role }}\n{{ m.content }}<eos>\n{% endfor %}\
                     {% if add_generation_prompt %}<bos>assistant\n{% endif %}";

/// A random Llama with a tokenizer of bytes and a template.
fn model(scratch: &Scratch) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/llama-rand-gqa-untied-f32");
    let folder = folder_with_tokenizer(scratch, &from);
    std::fs::write(folder.join("chat_template.jinja"), TURNS).unwrap();
    folder
}

fn chat(scratch: &Scratch, model: &Path, flags: &[&str], stdin: &str) -> Done {
    Waste::new(scratch).arg("chat").arg(model).args(flags).stdin(stdin).run()
}

/// The answers of a run with `-o json`.
fn answers(done: &Done) -> Vec<Value> {
    done.stdout.lines().map(|it| serde_json::from_str(it).unwrap()).collect()
}

const FLAGS: [&str; 8] = ["-n", "9", "-o", "json", "-q", "--temp", "0.9", "--ignore-eos"];

#[test]
fn a_conversation_is_saved_and_continued_by_another_process() {
    let scratch = Scratch::new("chat-program");
    let model = model(&scratch);
    let flags = [&FLAGS[..], &["--seed", "3"]].concat();
    let whole = answers(&chat(&scratch, &model, &flags, "one\n\"\"\"two\nlines\"\"\"\n").ok());
    assert_eq!(whole.len(), 2);
    assert_eq!(whole[0]["kept_tokens"], 0);
    let before = whole[0]["prompt_tokens"].as_u64().unwrap() + whole[0]["generated_tokens"].as_u64().unwrap();
    assert_eq!(whole[1]["kept_tokens"], before - 1, "all but the last token was read");
    let first = answers(&chat(&scratch, &model, &flags, "one\n/save s.bin\n").ok());
    assert_eq!(first[0]["ids"], whole[0]["ids"]);
    // The plan carries the template, and another process the conversation; its own seed is that of the file.
    let plan = scratch.path().join("m.wplan");
    Waste::new(&scratch).arg("compile").arg(&model).arg("-o").arg(&plan).run().ok();
    let more = answers(&chat(&scratch, &plan, &FLAGS, "/load s.bin\n\"\"\"two\nlines\"\"\"\n").ok());
    assert_eq!((&more[0]["ids"], &more[0]["answer"]), (&whole[1]["ids"], &whole[1]["answer"]));
    assert_eq!(more[0]["kept_tokens"], whole[1]["kept_tokens"]);
    let leftovers =
        std::fs::read_dir(scratch.path()).unwrap().filter_map(|it| it.ok()?.file_name().into_string().ok());
    assert_eq!(leftovers.filter(|it| it.contains("s.bin")).count(), 1, "no temporary file stays");
}

#[test]
fn session_files_hold_a_conversation_between_calls() {
    let scratch = Scratch::new("chat-session");
    let model = model(&scratch);
    let flags = [&FLAGS[..], &["--session", "c.bin", "--seed", "5"]].concat();
    let first = answers(&chat(&scratch, &model, &flags, "a\n").ok());
    let second = answers(&chat(&scratch, &model, &flags, "b\n").ok());
    let whole = answers(&chat(&scratch, &model, &[&FLAGS[..], &["--seed", "5"]].concat(), "a\nb\n").ok());
    assert_eq!((&first[0]["ids"], &second[0]["ids"]), (&whole[0]["ids"], &whole[1]["ids"]));
}

#[test]
fn a_conversation_is_kept_however_it_ends() {
    let scratch = Scratch::new("chat-kept");
    let model = model(&scratch);
    let flags = [&FLAGS[..], &["--session", "c.bin", "--seed", "5"]].concat();
    let run = |stdin: &[u8]| Waste::new(&scratch).arg("chat").arg(&model).args(&flags).stdin(stdin).run();
    let broken = run(b"a\n\xff\xfe\nnever said\n");
    broken.fails(1, "stdin: ");
    let second = answers(&run(b"b\n").ok());
    let whole = answers(&chat(&scratch, &model, &[&FLAGS[..], &["--seed", "5"]].concat(), "a\nb\n").ok());
    assert_eq!((answers(&broken).len(), &second[0]["ids"]), (1, &whole[1]["ids"]));
}

#[test]
fn commands_do_what_they_say() {
    let scratch = Scratch::new("chat-commands");
    let model = model(&scratch);
    let lines = "one\n/reset\none\n/stats\n/help\n/nope\n/save\n/load missing.bin\n/quit\nnever said\n";
    let done =
        chat(&scratch, &model, &["-n", "5", "-o", "json", "--ignore-eos", "--system", "S <eos>"], lines);
    assert_eq!(done.code, Some(1), "nobody sat there: {}", done.stderr);
    let found = answers(&done);
    assert_eq!(found.len(), 2, "{}", done.stdout);
    assert_eq!(found[0]["ids"], found[1]["ids"], "forgotten");
    for part in [
        "the conversation is forgotten",
        "generated 10 tokens, ",
        "3 messages, ",
        "/reset forgets the conversation",
        "waste: there is no command '/nope'",
        "waste: /save needs the name of a file",
        "waste: missing.bin: ",
        "threads ",
        "waste: stdin: refused 3 of its turns and commands, see above",
    ] {
        assert!(done.stderr.contains(part), "no '{part}' in {}", done.stderr);
    }
}

#[test]
fn text_answers_go_to_stdout_and_all_else_to_stderr() {
    let scratch = Scratch::new("chat-text");
    let model = model(&scratch);
    let json = answers(&chat(&scratch, &model, &["-n", "6", "-o", "json", "-q"], "hi\nho\n").ok());
    let done = chat(&scratch, &model, &["-n", "6", "-q"], "hi\nho\n").ok();
    let line = |it: &Value| format!("{}\n", it["answer"].as_str().unwrap().trim_end_matches('\n'));
    let want: String = json.iter().map(line).collect();
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), (want.as_str(), ""));
}

#[test]
fn a_full_context_is_stated_and_a_reset_helps() {
    let scratch = Scratch::new("chat-full-program");
    let model = model(&scratch);
    let flags = ["--ctx", "64", "-o", "json", "-q", "--ignore-eos"];
    let done = chat(&scratch, &model, &flags, "a\nb\n/reset\nc\n");
    assert_eq!(done.code, Some(1), "b was not answered");
    let found = answers(&done);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|it| it["stop"] == "context_full"), "{found:?}");
    assert!(
        done.stderr.contains("the context of 64 positions is full (compile with a larger --ctx), or /reset")
    );
    assert!(done.stderr.contains("the plan has 64 positions: /reset, or compile"), "{}", done.stderr);
}

#[test]
fn what_cannot_be_a_chat_is_refused_in_a_line() {
    let scratch = Scratch::new("chat-refusals");
    let model = model(&scratch);
    let endless = scratch.write(
        "endless.jinja",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    );
    let flags = ["-q", "--template", endless.to_str().unwrap()];
    chat(&scratch, &model, &flags, "hi\n").fails(1, "chat template: line 1: it does not end within");
    let broken = scratch.write("broken.jinja", "\n{{ x");
    chat(&scratch, &model, &["--template", broken.to_str().unwrap()], "hi\n")
        .fails(1, "broken.jinja: chat template: line 2");
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    chat(&scratch, &model, &[], "hi\n").fails(1, "has no chat template: name a model that was trained");
    chat(&scratch, Path::new("kimi-tiny"), &[], "hi\n")
        .fails(1, "kimi-tiny, the model that ships in the program, ");
    // Without a name it is that model.
    let done = Waste::new(&scratch).args(["chat"]).run();
    done.fails(1, "(an Instruct or Chat one: its folder or .gguf), or give a template with --template");
    chat(&scratch, &model, &["--template", "x"], "hi\n").fails(1, "x: ");
    let strict =
        scratch.write("strict.jinja", "{{ raise_exception('be polite') if messages|length == 1 }}<bos>");
    let done = chat(&scratch, &model, &["-q", "-n", "1", "--template", strict.to_str().unwrap()], "hi\n");
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines[0], "waste: chat template: line 1: it refuses the conversation: be polite");
    assert_eq!(lines[1], "waste: stdin: refused 1 of its turns and commands, see above");
    assert_eq!((lines.len(), done.code), (2, Some(1)));
}

/// In a process of its own: what it took is gone with it.
#[test]
fn a_template_that_takes_too_much_memory_is_ended() {
    let scratch = Scratch::new("chat-memory");
    // It would take a terabyte.
    let doubles = "{% set ns = namespace(x='0123456789abcdef') %}\
                   {% for a in range(36) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}";
    scratch.write("d.jinja", doubles);
    scratch.write("c.json", r#"[{"role": "user", "content": "a"}]"#);
    let flags = ["--messages", "c.json", "--template", "d.jinja"];
    let done = Waste::new(&scratch).arg("tokenize").arg(model(&scratch)).args(flags).run();
    done.fails(1, "chat template: it takes more than 512 MiB of memory");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_answer_then_the_program() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Command, Stdio};
    let scratch = Scratch::new("chat-interrupt");
    let model = model(&scratch);
    let mut child = Command::new(env!("CARGO_BIN_EXE_waste"))
        .args(["chat", "--ctx", "100000", "--ignore-eos", "-t", "1", "--session"])
        .arg(scratch.path().join("kept.bin"))
        .arg(&model)
        .env_clear()
        .env("WASTE_CACHE", scratch.path().join("cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let interrupt =
        |id: u32| assert!(Command::new("kill").args(["-INT", &id.to_string()]).status().unwrap().success());
    stdin.write_all(b"hi\n").unwrap();
    // The answer has begun.
    let drain = std::thread::spawn(move || {
        let mut first = [0];
        stdout.read_exact(&mut first).unwrap();
        (first, stdout)
    });
    let (_, mut stdout) = drain.join().unwrap();
    let rest = std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()).unwrap());
    interrupt(child.id());
    let mut line = String::new();
    while !line.contains("interrupted") {
        assert!(stderr.read_line(&mut line).unwrap() > 0, "{line}");
    }
    // It waits for the next turn.
    stdin.write_all(b"/stats\n").unwrap();
    line.clear();
    while !line.contains("positions") {
        assert!(stderr.read_line(&mut line).unwrap() > 0, "{line}");
    }
    interrupt(child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    rest.join().unwrap();
    let flags = ["--ctx", "100000", "--session", "kept.bin"];
    let done = chat(&scratch, &model, &flags, "").ok();
    assert!(done.stderr.contains("goes on with kept.bin: 2 messages"), "{}", done.stderr);
}

#[test]
fn tokenize_renders_conversations() {
    let scratch = Scratch::new("chat-tokenize");
    let model = model(&scratch);
    scratch.write("c.json", r#"[{"role": "user", "content": "a<eos>"}]"#);
    scratch.write("t.jinja", "<bos>{{ messages[0].content | upper }}{{ x | tojson }}");
    let run = |flags: &[&str]| Waste::new(&scratch).arg("tokenize").arg(&model).args(flags).run();
    let text = run(&["--messages", "c.json", "--rendered"]).ok();
    assert_eq!(text.stdout, "<bos>user\na<eos><eos>\n<bos>assistant\n");
    let ids = run(&["--messages", "c.json"]).ok();
    let ids: Vec<u32> = ids.stdout.split_whitespace().map(|it| it.parse().unwrap()).collect();
    assert_eq!(ids.iter().filter(|it| **it == 257).count(), 1, "the template's own, not the user's");
    scratch.write("d.json", r#"{"messages": [{"role": "user", "content": "é"}], "x": {"b": 1, "a": 2}}"#);
    let json = run(&["--messages", "d.json", "--template", "t.jinja", "-o", "json"]).ok().json();
    assert_eq!(json["rendered"], "<bos>É{\"b\": 1, \"a\": 2}");
    assert_eq!((&json["tokens"][0]["control"], &json["ids"][0]), (&"<bos>".into(), &256.into()));
    run(&["--messages", "c.json", "--bare"]).fails(2, "--bare");
    run(&["--template", "t.jinja"]).fails(2, "--messages");
    run(&["--messages", "t.jinja"]).fails(1, "t.jinja: not a conversation");
}
