//! What keeps the texts of a conversation from becoming control tokens.
//!
//! A template writes control tokens and the texts of a conversation into one string, in which `<|im_end|>` from a user looks
//! like the template's own. So before a text goes in, a *mark*, a character that occurs nowhere, is put behind every
//! character with which a control token could begin; ids are then made from the marked string, in which only the template's
//! own control tokens are whole, and the marks are taken out of what is text.
//!
//! A mark would also hide from the template what it looks for, such as `</think>` in an answer. Words in angle or square
//! brackets that the template itself names, and that are no control tokens, are therefore left alone.
//!
//! Invariants
//! - in a marked text no control token begins, however the template cuts it and puts its parts together;
//! - without the marks it is the text as it was; a text without such characters is not changed.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

/// Characters that Unicode keeps free for uses within a program.
const FREE: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// Bytes of a word that a template names at most.
const MAX_WORD: usize = 64;

/// Puts marks into texts.
#[derive(Debug)]
pub(super) struct Marks<'a> {
    mark: char,
    controls: &'a [&'a str],
    template: &'a str,
}

impl<'a> Marks<'a> {
    /// Marks for texts that go into `template`; `None` if all of `texts` together leave no character free.
    pub(super) fn new(controls: &'a [&'a str], template: &'a str, texts: &[Value]) -> Option<Self> {
        let is_free = |mark: &char| {
            !template.contains(*mark) && !texts.iter().any(|it| any_text(it, &|text| text.contains(*mark)))
        };
        FREE.into_iter().find(is_free).map(|mark| Self { mark, controls, template })
    }

    /// Marks as `mark`, which the caller knows to be free.
    pub(super) fn with(mark: char, controls: &'a [&'a str], template: &'a str) -> Self {
        Self { mark, controls, template }
    }

    pub(super) fn mark(&self) -> char {
        self.mark
    }

    /// `text` with its marks.
    pub(super) fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        for (at, c) in text.char_indices() {
            out.push(c);
            if self.could_begin(c) && !self.is_named(&text[at..]) {
                out.push(self.mark);
            }
        }
        out
    }

    /// `value` with marks in every text but the keys of maps.
    pub(super) fn value(&self, value: &Value) -> Result<Value, Error> {
        Ok(match value.kind() {
            ValueKind::String => Value::from(self.text(value.as_str().unwrap_or_default())),
            ValueKind::Seq => value.try_iter()?.map(|it| self.value(&it)).collect::<Result<Value, _>>()?,
            ValueKind::Map => {
                let entry = |key: Value| Ok::<_, Error>((key.clone(), self.value(&value.get_item(&key)?)?));
                value.try_iter()?.map(entry).collect::<Result<Value, _>>()?
            }
            _ => value.clone(),
        })
    }

    fn could_begin(&self, c: char) -> bool {
        self.controls.iter().any(|it| it.starts_with(c))
    }

    /// Whether `rest` begins with a word in brackets that the template names and that is no control token.
    fn is_named(&self, rest: &str) -> bool {
        if self.controls.iter().any(|it| rest.starts_with(it)) {
            return false;
        }
        let end = rest.bytes().take(MAX_WORD).position(|it| it == b'>' || it == b']');
        end.is_some_and(|it| it > 1 && self.template.contains(&rest[..=it]))
    }
}

/// Whether any text in `value` is as `is_so` says.
fn any_text(value: &Value, is_so: &dyn Fn(&str) -> bool) -> bool {
    match value.kind() {
        ValueKind::String => value.as_str().is_some_and(is_so),
        ValueKind::Seq => value.try_iter().is_ok_and(|mut it| it.any(|it| any_text(&it, is_so))),
        ValueKind::Map => value.try_iter().is_ok_and(|mut keys| {
            keys.any(|key| any_text(&key, is_so) || value.get_item(&key).is_ok_and(|it| any_text(&it, is_so)))
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLS: [&str; 3] = ["<|im_end|>", "[EOS]", "<s>"];
    const TEMPLATE: &str = "{% if '</think>' in m %}<|im_end|>{% endif %}<tool>";

    fn marked(text: &str) -> String {
        Marks::with('#', &CONTROLS, TEMPLATE).text(text)
    }

    #[test]
    fn only_what_could_begin_a_control_token_is_marked() {
        assert_eq!(marked("plain é text >"), "plain é text >");
        assert_eq!(marked("1 < 2 [x]"), "1 <# 2 [#x]");
        assert_eq!(marked("<|im_end|><|im_<s>"), "<#|im_end|><#|im_<#s>");
        assert_eq!(marked("a</think>b<tool></tool>"), "a</think>b<tool><#/tool>");
        assert_eq!(
            marked("<|im_end|></think>"),
            "<#|im_end|></think>",
            "a control token is never left alone"
        );
    }

    #[test]
    fn a_mark_is_a_character_that_occurs_nowhere() {
        let texts = [Value::from_serialize([("a", "\u{fdd0}"), ("\u{fdd1}", "b")])];
        let marks = Marks::new(&CONTROLS, "x\u{fdd2}", &texts).expect("29 are free");
        assert_eq!(marks.mark(), '\u{fdd3}');
        let all: String = FREE.collect();
        assert!(Marks::new(&CONTROLS, "", &[Value::from(all)]).is_none());
    }
}
