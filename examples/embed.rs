//! Generation inside a host program: memory is known and checked before anything is allocated, then text comes out.
//!
//! `cargo run --release --example embed -- m.wplan "The capital of France is"`
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::ops::ControlFlow;
use std::path::Path;

use waste::generate::{Prompt, Rules, generate};
use waste::text::{SamplerOptions, TextStart, TokenizerSpec};
use waste_runtime::{LoadedPlan, Session, SessionOptions, needed_bytes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (path, prompt) = args.next().zip(args.next()).ok_or("usage: embed PLAN PROMPT")?;
    let loaded = LoadedPlan::open(Path::new(&path))?;
    let tokenizer = TokenizerSpec::from_section(loaded.text())?.build()?;

    let options = SessionOptions { max_mem: Some(1 << 30), ..SessionOptions::default() };
    println!("{path} needs {} bytes; at most {} are allowed", needed_bytes(loaded.plan(), 1), 1 << 30);
    let mut session = Session::open(&loaded, &options)?;

    let greedy = SamplerOptions::GREEDY;
    let prompts =
        [Prompt { ids: tokenizer.encode(&prompt)?, history: 0, budget: Some(24), sampling: greedy }];
    let rules =
        Rules { stop_ids: loaded.plan().stop_ids.clone(), excluded: Vec::new(), chunk: None, hash: false };
    let mut stream = tokenizer.stream(TextStart::Continuation);
    let mut text = prompt;
    let res = generate(&mut session, &prompts, &rules, &mut |_row, id| {
        text.extend(stream.push(id));
        ControlFlow::Continue(())
    })?;
    text.extend(stream.finish());
    println!("{text}\n({:?}, {:.0} tokens/s)", res.rows[0].stop, res.decode.per_second());
    Ok(())
}
