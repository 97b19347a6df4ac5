//! Ids of one row as text: whole characters, and nothing past a stop string.

use std::ops::ControlFlow;

use crate::text::{StopFilter, TextStart, TextStream, Tokenizer};

/// Turns the ids of a continuation into pieces of text.
#[derive(Clone, Debug)]
pub struct TextRow<'a> {
    stream: TextStream<'a>,
    filter: StopFilter,
}

impl<'a> TextRow<'a> {
    /// A row that ends before the first of `stops`.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, stops: Vec<String>) -> Self {
        Self { stream: tokenizer.stream(TextStart::Continuation), filter: StopFilter::new(stops) }
    }

    /// Takes an id; gives the text that is certain now, and whether a stop string was completed.
    pub fn push(&mut self, id: u32) -> (String, ControlFlow<()>) {
        let piece = self.stream.push(id).unwrap_or_default();
        let text = self.filter.push(&piece);
        (text, if self.filter.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// The rest of the text, once there are no more ids.
    pub fn finish(&mut self) -> String {
        let piece = self.stream.finish().unwrap_or_default();
        let mut text = self.filter.push(&piece);
        text.push_str(&self.filter.finish());
        text
    }
}
