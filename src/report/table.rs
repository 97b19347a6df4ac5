//! Tables as Markdown, aligned so that they also read well on a terminal, and as CSV.

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of text under named columns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not one cell a column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.columns.len(), "one cell a column");
        self.rows.push(cells.into());
    }

    /// A Markdown table, one line a row.
    #[must_use]
    pub fn markdown(&self) -> String {
        let width = |text: &str| text.chars().count();
        let cells = |column: usize| self.rows.iter().map(move |row| width(&row[column]));
        let name_width = |column: usize| width(self.columns[column].0);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|it| cells(it).chain([name_width(it), 3]).max().unwrap_or(3))
            .collect();
        let line = |texts: &mut dyn Iterator<Item = &str>| {
            let padded = texts.zip(&self.columns).zip(&widths).map(|((text, (_, align)), wide)| {
                let gap = " ".repeat(wide - width(text));
                if *align == Align::Right { format!(" {gap}{text} |") } else { format!(" {text}{gap} |") }
            });
            format!("|{}\n", padded.collect::<String>())
        };
        let rule = self.columns.iter().zip(&widths).map(|((_, align), wide)| match align {
            Align::Left => format!(" {} |", "-".repeat(*wide)),
            Align::Right => format!(" {}: |", "-".repeat(wide - 1)),
        });
        let head = line(&mut self.columns.iter().map(|it| it.0));
        let rows = self.rows.iter().map(|row| line(&mut row.iter().map(String::as_str)));
        format!("{head}|{}\n{}", rule.collect::<String>(), rows.collect::<String>())
    }

    /// CSV as RFC 4180 has it, lines ended by a line feed.
    #[must_use]
    pub fn csv(&self) -> String {
        let line =
            |texts: &mut dyn Iterator<Item = &str>| texts.map(csv_cell).collect::<Vec<_>>().join(",") + "\n";
        let head = line(&mut self.columns.iter().map(|it| it.0));
        let rows = self.rows.iter().map(|row| line(&mut row.iter().map(String::as_str)));
        head + &rows.collect::<String>()
    }
}

/// `text` as one cell of CSV: quoted where it must be.
#[must_use]
pub fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("test", Align::Left), ("t/s", Align::Right)]);
        table.row(["pp512".into(), "21.45 ± 0.54".into()]);
        table.row(["a \"b\", c".into(), "7".into()]);
        table
    }

    #[test]
    fn markdown_is_aligned_by_characters() {
        let expected = "\
| test     |          t/s |
| -------- | -----------: |
| pp512    | 21.45 ± 0.54 |
| a \"b\", c |            7 |
";
        assert_eq!(table().markdown(), expected);
    }

    #[test]
    fn csv_quotes_what_it_must() {
        assert_eq!(table().csv(), "test,t/s\npp512,21.45 ± 0.54\n\"a \"\"b\"\", c\",7\n");
    }
}
