//! The BPE models of the `tokenizers` crate: of a whole vocabulary, or of what a few words can become.
//!
//! The maps of a vocabulary of 50,000 tokens take longer to make than the rest of a start together, and a prompt looks up some
//! hundred of their entries. So the first texts each get a model of just the tokens they can become; who encodes more gets the
//! whole one, which is then made once.
//!
//! Invariants
//! - a model of a part gives the ids that the whole gives. All a model looks up are texts that stand in a word, the names of bytes
//!   and the unknown token; a merge joins neighbours, so that what it makes stands in the word as well. Where that is not so there is
//!   no part: merges with a byte's name or the unknown token in them, characters that are dropped;
//! - ranks keep their order in a part, and its ids are those of the vocabulary.
//!
//! Deliberately absent: merging itself, which is the crate's.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tokenizers::models::bpe::{BPE, Vocab};

use super::error::{Result, TextError};
use super::spec::{Flags, TokenizerSpec};

/// Words whose tokens a whole model remembers.
const CACHED_WORDS: usize = 4096;

/// Texts that get a model of their own: who encodes many loses little to those that came first.
const MOST_PARTS: u32 = 4;

/// Texts within the words of one part: with more, the whole is not much dearer.
const MOST_WITHIN: usize = 1 << 16;

/// How the names of bytes begin (the crate writes them as `<0x41>`).
const BYTE_NAME: &str = "<0x";

/// What models are made of, and the whole one once there is need of it.
#[derive(Debug)]
pub(crate) struct Models {
    texts: Texts,
    merges: Vec<(u32, u32)>,
    unk: Option<u32>,
    flags: Flags,
    /// Whether no merge joins what stands for other text than its own.
    has_parts: bool,
    whole: OnceLock<BPE>,
    n_parts: AtomicU32,
}

/// Tokens that the model knows, back to back.
#[derive(Debug, Default)]
struct Texts {
    ids: Vec<u32>,
    text: String,
    /// Where each text ends; it starts where the one before ends.
    ends: Vec<u32>,
    /// The bytes of the longest.
    longest: usize,
}

impl Models {
    pub(crate) fn new(spec: &TokenizerSpec) -> Self {
        let texts = Texts::new(spec);
        let mut is_other = vec![false; spec.n_ids() as usize];
        for (text, id) in texts.iter() {
            is_other[id as usize] = Some(id) == spec.unk || text.starts_with(BYTE_NAME);
        }
        let has_parts = !spec.merges.iter().any(|it| is_other[it.0 as usize] || is_other[it.1 as usize]);
        let (unk, flags) = (spec.unk, spec.flags);
        let merges = spec.merges.clone();
        Self { texts, merges, unk, flags, has_parts, whole: OnceLock::new(), n_parts: AtomicU32::new(0) }
    }

    /// A model for `words`, as pre-tokenizers leave them.
    ///
    /// # Errors
    /// If the crate refuses the vocabulary, which [`TokenizerSpec::checked`] excludes.
    pub(crate) fn of_words<'w>(&self, words: impl Iterator<Item = &'w str>) -> Result<Cow<'_, BPE>> {
        if let Some(whole) = self.whole.get() {
            return Ok(Cow::Borrowed(whole));
        }
        if self.has_parts
            && self.n_parts.fetch_add(1, Ordering::Relaxed) < MOST_PARTS
            && let Some(within) = Within::new(words, self.texts.longest)
            && let Some(known) = self.known_in(&within)
        {
            return Ok(Cow::Owned(self.model(&known, within.n_words)?));
        }
        let all: Vec<(&str, u32)> = self.texts.iter().collect();
        let whole = self.model(&all, CACHED_WORDS)?;
        Ok(Cow::Borrowed(self.whole.get_or_init(|| whole)))
    }

    /// The heap of all this in bytes at most, with the whole model's cache full: its maps hold each text twice (text → id,
    /// id → text) and each merge once; a hash table has 8 slots for 7 entries and is at least half full.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let slots = |entries: usize| (entries.max(4) * 8 / 7).next_power_of_two() as u64;
        let texts: u64 = self.texts.iter().map(|it| 2 * (it.0.len() as u64).next_multiple_of(16)).sum();
        let maps = 2 * slots(self.texts.ids.len()) * 33 + slots(self.merges.len()) * 17;
        let own = self.texts.text.capacity() + 8 * self.texts.ids.capacity() + 8 * self.merges.capacity();
        texts + maps + CACHED_WORDS as u64 * 300 + own as u64
    }

    /// The tokens that words with these texts within can become; `None` if they have characters that would be dropped, which
    /// makes neighbours of what is none.
    fn known_in(&self, within: &Within<'_>) -> Option<Vec<(&str, u32)>> {
        let is_wanted = |&(text, id): &(&str, u32)| {
            within.contains(text) || text.starts_with(BYTE_NAME) || Some(id) == self.unk
        };
        let known: Vec<(&str, u32)> = self.texts.iter().filter(is_wanted).collect();
        let texts: HashSet<&str> = known.iter().map(|it| it.0).collect();
        (self.unk.is_some() || within.characters().all(|it| texts.contains(it))).then_some(known)
    }

    /// The crate's model of the tokens in `known`, which ascend by id, and of the merges that make one of them from two.
    fn model(&self, known: &[(&str, u32)], cached: usize) -> Result<BPE> {
        let vocab: Vocab = known.iter().map(|it| (it.0.to_owned(), it.1)).collect();
        let mut by_id = vec![None; known.last().map_or(0, |it| it.1 as usize + 1)];
        known.iter().for_each(|&(text, id)| by_id[id as usize] = Some(text));
        let text = |id: u32| by_id.get(id as usize).copied().flatten();
        let is_whole = known.len() == self.texts.ids.len();
        let mut made = String::new();
        let mut merge = |&(left, right): &(u32, u32)| {
            let (left, right) = (text(left)?, text(right)?);
            made.clear();
            made.extend([left, right]);
            (is_whole || vocab.contains_key(&made)).then(|| (left.to_owned(), right.to_owned()))
        };
        let merges = self.merges.iter().filter_map(&mut merge).collect();
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .byte_fallback(self.flags.byte_fallback)
            .fuse_unk(self.flags.fuse_unk)
            .ignore_merges(self.flags.ignore_merges)
            .cache_capacity(cached);
        if let Some(unk) = self.unk.and_then(text) {
            builder = builder.unk_token(unk.to_owned());
        }
        let refused = |err| TextError::malformed("tokenizer", format!("the vocabulary is refused: {err}"));
        builder.build().map_err(refused)
    }
}

impl Texts {
    fn new(spec: &TokenizerSpec) -> Self {
        let known = || spec.tokens.iter().filter(|it| spec.is_known(it));
        let mut it = Self::default();
        it.text.reserve_exact(known().map(|it| it.text.len()).sum());
        for token in known() {
            it.ids.push(token.id);
            it.text.push_str(&token.text);
            it.ends.push(u32::try_from(it.text.len()).unwrap_or(u32::MAX));
            it.longest = it.longest.max(token.text.len());
        }
        it
    }

    fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        let mut start = 0;
        self.ids.iter().zip(&self.ends).map(move |(&id, &end)| {
            let text = &self.text[start..end as usize];
            start = end as usize;
            (text, id)
        })
    }
}

/// What stands within some words, in whole characters.
struct Within<'w> {
    texts: HashSet<&'w str>,
    /// The first bytes of all of them, which tells most others apart.
    begins: [bool; 256],
    /// The bytes of the longest word.
    longest: usize,
    n_words: usize,
}

impl<'w> Within<'w> {
    /// Texts of at most `most` bytes, or of one character; `None` if they are many.
    fn new(words: impl Iterator<Item = &'w str>, most: usize) -> Option<Self> {
        let mut it = Self { texts: HashSet::new(), begins: [false; 256], longest: 0, n_words: 0 };
        for word in words {
            it.n_words += 1;
            it.longest = it.longest.max(word.len());
            for (start, c) in word.char_indices() {
                let rest = &word[start..];
                it.begins[usize::from(rest.as_bytes()[0])] = true;
                let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
                let ends = ends.take_while(|end| *end <= most.max(c.len_utf8()));
                it.texts.extend(ends.map(|end| &rest[..end]));
                if it.texts.len() > MOST_WITHIN {
                    return None;
                }
            }
        }
        Some(it)
    }

    fn contains(&self, text: &str) -> bool {
        text.len() <= self.longest
            && text.bytes().next().is_some_and(|it| self.begins[usize::from(it)])
            && self.texts.contains(text)
    }

    fn characters(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().copied().filter(|it| it.chars().nth(1).is_none())
    }
}

/// The first merge that makes no token the model knows.
pub(crate) fn first_that_makes_nothing(spec: &TokenizerSpec) -> Option<(u32, u32)> {
    let known: Vec<&str> =
        spec.tokens.iter().filter(|it| spec.is_known(it)).map(|it| it.text.as_str()).collect();
    let is_made = |text: &str, left: &str, right: &str| {
        text.len() == left.len() + right.len() && text.starts_with(left) && text.ends_with(right)
    };
    // Nearly all vocabularies list tokens in the order of the merges that make them, after those that none makes.
    let (mut next, mut near) = (0, known.len());
    let mut all: Option<HashMap<&str, usize>> = None;
    spec.merges.iter().copied().find(|&(left, right)| {
        let (left, right) = (spec.text_of(left), spec.text_of(right));
        let found = (next..known.len()).take(near).find(|&at| is_made(known[at], left, right));
        let found = found.or_else(|| {
            let all = all.get_or_insert_with(|| known.iter().copied().zip(0..).collect());
            all.get([left, right].concat().as_str()).copied()
        });
        // A token may be made in other ways by the merges that follow.
        (next, near) = (found.unwrap_or(next), NEAR);
        found.is_none()
    })
}

/// Tokens beyond the last that was made among which the next is looked for first.
const NEAR: usize = 4;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use tokenizers::Model as _;

    use super::*;
    use crate::text::spec::{Kind, Match, Token};

    /// Numbers that are the same each time (Knuth's MMIX generator).
    struct Noise(u64);

    impl Noise {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }

        fn coin(&mut self) -> bool {
            self.below(2) == 0
        }

        fn word(&mut self) -> String {
            (0..1 + self.below(9)).map(|_| ['a', 'b', 'c', 'é', 'z', '▁'][self.below(6)]).collect()
        }
    }

    fn smollm2() -> Models {
        let json = include_bytes!("../../tests/data/smollm2/tokenizer.json");
        Models::new(&TokenizerSpec::from_tokenizer_json("tokenizer.json", json).unwrap())
    }

    /// Some letters, perhaps the names of bytes, an unknown token, and merges of any of them.
    fn random_spec(noise: &mut Noise) -> TokenizerSpec {
        let mut texts: Vec<String> = ["a", "b", "c", "é", "▁"].map(str::to_owned).to_vec();
        texts.truncate(3 + noise.below(3));
        let unk = noise.coin().then(|| {
            texts.push("<unk>".to_owned());
            texts.len() as u32 - 1
        });
        if noise.coin() {
            texts.extend((0..=255).map(|it| format!("<0x{it:02X}>")));
        }
        let letters = if noise.below(4) == 0 { texts.len() } else { 3 };
        let mut merges = Vec::new();
        let mut parts: Vec<usize> = (0..letters).collect();
        for _ in 0..noise.below(25) {
            let [left, right] = [0; 2].map(|_| parts[noise.below(parts.len())]);
            let made = [texts[left].as_str(), &texts[right]].concat();
            let at = texts.iter().position(|it| *it == made).unwrap_or(texts.len());
            if at == texts.len() {
                texts.push(made);
                parts.push(at);
            }
            merges.push((left as u32, right as u32));
        }
        // A merge may come before those that make its parts.
        if noise.coin() {
            merges.reverse();
        }
        let kind = |it: &str| if it.starts_with(BYTE_NAME) { Kind::Byte } else { Kind::Normal };
        let tokens = (0..).zip(texts).map(|(id, text)| Token { id, kind: kind(&text), text }).collect();
        let flags =
            Flags { byte_fallback: noise.coin(), fuse_unk: noise.coin(), ignore_merges: noise.coin() };
        TokenizerSpec { tokens, merges, unk, flags, ..TokenizerSpec::empty() }.checked("t").unwrap()
    }

    #[test]
    fn a_part_gives_what_the_whole_gives() {
        let mut noise = Noise(3);
        let mut n_parts = 0;
        for _ in 0..3000 {
            let models = Models::new(&random_spec(&mut noise));
            let all: Vec<(&str, u32)> = models.texts.iter().collect();
            let whole = models.model(&all, 0).unwrap();
            for _ in 0..4 {
                let words = [noise.word(), noise.word()];
                let part = models.of_words(words.iter().map(String::as_str)).unwrap();
                n_parts += u32::from(matches!(part, Cow::Owned(_)));
                for word in &words {
                    assert_eq!(
                        part.tokenize(word).unwrap(),
                        whole.tokenize(word).unwrap(),
                        "{word}: {models:?}"
                    );
                }
            }
        }
        assert!(n_parts > 3000, "{n_parts}");
    }

    #[test]
    fn short_texts_need_no_whole_and_many_make_it_once() {
        let models = smollm2();
        for _ in 0..MOST_PARTS {
            let part = models.of_words(["Hello", "Ġworld"].into_iter()).unwrap();
            assert!(matches!(part, Cow::Owned(_)) && models.whole.get().is_none());
            assert!(part.get_vocab_size() < 60, "{}", part.get_vocab_size());
        }
        let made: Vec<*const BPE> = (0..3)
            .map(|_| std::ptr::from_ref(models.of_words(["Hello"].into_iter()).unwrap().as_ref()))
            .collect();
        assert_eq!(made, [std::ptr::from_ref(models.whole.get().unwrap()); 3]);
    }

    #[test]
    fn what_a_part_cannot_do_is_left_to_the_whole() {
        let is_whole = |words: &[&str]| {
            let models = smollm2();
            let is_borrowed = matches!(models.of_words(words.iter().copied()).unwrap(), Cow::Borrowed(_));
            assert_eq!(is_borrowed, models.whole.get().is_some());
            is_borrowed
        };
        assert!(!is_whole(&["Hello", "Hello"]));
        assert!(is_whole(&["a漢b"]), "a character that is no token leaves its neighbours together");
        let numbers: String = (0..9000).map(|it| it.to_string()).collect();
        assert!(!is_whole(&[&numbers[..400]]) && is_whole(&[&numbers]), "it has too many texts within");
    }

    #[test]
    fn merges_that_make_nothing_are_found_in_any_order() {
        let mut noise = Noise(9);
        for _ in 0..300 {
            let mut spec = random_spec(&mut noise);
            assert_eq!(first_that_makes_nothing(&spec), None);
            let ids: Vec<(u32, Match)> = spec.tokens.iter().map(|it| (it.id, Match::default())).collect();
            let Some(&(left, right)) = spec.merges.first() else { continue };
            let made = [spec.text_of(left), spec.text_of(right)].concat();
            let (id, by) = ids[spec.tokens.iter().position(|it| it.text == made).unwrap()];
            spec.tokens[id as usize].kind = Kind::Control(by);
            assert_eq!(first_that_makes_nothing(&spec), Some((left, right)));
        }
    }
}
