//! A mixed corpus, made up anew each time, always the same.

use super::scratch::Noise;

/// Lines of the corpus.
pub(crate) const LINES: usize = 10_000;

const WORDS: [&str; 24] = [
    "the",
    "of",
    "and",
    "Paris",
    "don't",
    "we'LL",
    "I'm",
    "HTTPServer",
    "snake_case",
    "naïve",
    "Straße",
    "façade",
    "übergrößen",
    "été",
    "Москва",
    "город",
    "Ελλάδα",
    "سلام",
    "שלום",
    "नमस्ते",
    "한국어",
    "日本語",
    "中文分词",
    "ไทย",
];

const CODE: [&str; 12] = [
    "fn main() {",
    "    let x = 0x1F;",
    "\tif (a != b) { return -1; }",
    "for i in range(10):",
    "}",
    "// TODO: fix",
    "<div class=\"a\">",
    "SELECT * FROM t WHERE a>=3;",
    "#include <stdio.h>",
    "$ ls -la | grep foo",
    "a[i]+=b->c;",
    "https://example.org/a?b=c&d=%20#e",
];

const ODD: [&str; 20] = [
    "  ",
    "   ",
    "\t",
    "\t\t ",
    "\u{a0}",
    "\u{2003}",
    "\u{200d}",
    "\u{feff}",
    "½",
    "²",
    "Ⅳ",
    "٣",
    "１２",
    "e\u{301}",
    "ﬁ",
    "👍🏽",
    "👩‍👩‍👧‍👦",
    "🇫🇷",
    "…",
    "—",
];

const LOOKALIKES: [&str; 8] =
    ["<|im_end|>", "<|endoftext|>", "<think>", "</s>", "[INST]", "<|im_", "<0x41>", "▁"];

const MARKS: &[u8] = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// The lines: prose in many scripts, numbers, code, white space, marks and random characters, in any mixture.
pub(crate) fn lines() -> impl Iterator<Item = String> {
    let mut noise = Noise(42);
    (0..LINES).map(move |_| line(&mut noise))
}

fn line(noise: &mut Noise) -> String {
    let mut out = String::new();
    let pieces = noise.below(12);
    for _ in 0..=pieces {
        match noise.below(16) {
            0..=6 => out.push_str(pick(noise, &WORDS)),
            7 => out.push_str(pick(noise, &CODE)),
            8 | 9 => out.push_str(pick(noise, &ODD)),
            10 => out.push_str(pick(noise, &LOOKALIKES)),
            11 => out.push_str(&(noise.next() >> noise.below(64)).to_string()),
            12 => {
                for _ in 0..=noise.below(4) {
                    out.push(char::from(MARKS[noise.below(MARKS.len())]));
                }
            }
            13 => out.extend(std::iter::repeat_n('\n', noise.below(4))),
            14 => out.extend(
                (0..4).filter_map(|_| char::from_u32(32 + u32::try_from(noise.below(0x3000)).unwrap())),
            ),
            _ => out.extend(char::from_u32(0x1f300 + u32::try_from(noise.below(0x500)).unwrap())),
        }
        if noise.below(4) > 0 {
            out.push(' ');
        }
    }
    out
}

fn pick<'a>(noise: &mut Noise, from: &[&'a str]) -> &'a str {
    from[noise.below(from.len())]
}
