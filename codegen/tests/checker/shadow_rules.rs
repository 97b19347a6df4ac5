//! What kernels take: places, rows and columns of operands and results, and how tiles may cut them.

use waste_plan::schema::{Operand, Place, Step};

use super::kernels::{Family, Kernel};
use super::shadow::Shadow;

/// Rows and columns that an operand must have; 0 columns: any.
type Size = (u64, u64);

impl Shadow<'_> {
    /// Blames a step whose kernel does not take its operands, results or tiles.
    pub(super) fn rules(&mut self, step: &Step, kernel: &Kernel) {
        let n_results = match kernel.family {
            Family::Conv | Family::Delta | Family::Route => 2,
            Family::Sort => 3,
            _ => 1,
        };
        if step.writes.len() != n_results {
            return self.blame(format!("{} results of {n_results}", step.writes.len()));
        }
        let has_state = kernel.family.is_recurrent() || kernel.family == Family::Append;
        for (i, y) in step.writes.iter().enumerate() {
            let is_state = has_state && i + 1 == n_results;
            if matches!(y.place, Place::Weight(_)) || matches!(y.place, Place::State(_)) != is_state {
                return self.blame("writes where it may not");
            }
        }
        self.tiles(step, kernel);
        for (slot, x) in step.reads.iter().enumerate() {
            if matches!(x.place, Place::Weight(_) | Place::State(_)) {
                continue;
            }
            let (rows, cols) = self.size_of_read(step, kernel, slot);
            self.has_size(x, (rows, cols), &format!("read {slot}"));
            let (order, _) = kernel.family.pair_slots();
            let is_list = match kernel.family {
                Family::Gather => slot == 1,
                Family::Sum => slot > 1,
                _ => kernel.family.is_by_expert() && slot == order,
            };
            if is_list && x.stride != 4 {
                self.blame("a list of numbers with gaps");
            }
        }
        for (index, y) in step.writes.iter().enumerate().filter(|it| !matches!(it.1.place, Place::State(_))) {
            if let Some(size) = self.size_of_write(step, kernel, index) {
                self.has_size(y, size, &format!("write {index}"));
            }
            if kernel.family == Family::Sort && index != 1 && y.stride != 4 {
                self.blame("a list of numbers with gaps");
            }
        }
    }

    pub(super) fn has_size(&mut self, it: &Operand, (rows, cols): Size, what: &str) {
        let row_bytes = it.dtype.row_bytes(it.cols.into()).unwrap_or(u64::MAX);
        let fits = cols == 0 || u64::from(it.cols) == cols;
        if self.rows(it.rows) != rows || !fits || it.stride < row_bytes {
            self.blame(format!("{what} has rows or columns that the kernel does not take"));
        }
    }

    /// Of an activation that is read.
    fn size_of_read(&self, step: &Step, kernel: &Kernel, slot: usize) -> Size {
        let (tokens, y) = (self.call.tokens, &step.writes[0]);
        let (rows, cols) = (self.rows(y.rows), u64::from(y.cols));
        let read = |slot: usize| step.reads.get(slot).map_or(0, |it| u64::from(it.cols));
        match (kernel.family, slot) {
            (Family::Elementwise | Family::Rope | Family::HeadNorm | Family::Gate, 0) => (rows, cols),
            (Family::Elementwise | Family::HeadNorm | Family::Gate, _) => (rows, cols),
            (Family::Rope, _) => (tokens, 0),
            (Family::Select, 0) => (tokens, cols),
            (Family::Product, 1..) => (rows, cols),
            (Family::Embed | Family::Angles, _) | (Family::Select, _) => (rows, 1),
            (Family::Append, 0) => (tokens, cols * self.heads_of(y)),
            (Family::Append, _) => (tokens, 1),
            (Family::Attention, 1..) => (rows, 1),
            (Family::Concat, 0) => (rows, cols.saturating_sub(read(1))),
            (Family::Concat, _) => (rows, cols.saturating_sub(read(0))),
            (Family::Conv, 0) => (tokens, cols),
            (Family::Conv, _) | (Family::Delta, 5..) => (tokens, 1),
            (Family::Delta, 2) => (tokens, cols),
            (Family::Delta, 4) => (tokens, cols / kernel.head),
            (Family::Delta, _) => (tokens, read(1)),
            (Family::Latent, 0) => (rows, cols),
            (Family::Latent, 2 | 3) => (rows / kernel.heads, 1),
            (Family::Route | Family::Sort, _) => (tokens, 0),
            (Family::Gather, 0) => (tokens, cols),
            (Family::Gather, _) => (rows, 1),
            (Family::Expert | Family::ExpertGlu | Family::ExpertLut | Family::ExpertVq, 0) => {
                (if kernel.gather { tokens } else { rows }, 0)
            }
            (Family::Expert | Family::ExpertGlu | Family::ExpertLut | Family::ExpertVq, slot) => {
                if slot == kernel.family.pair_slots().0 { (rows, 1) } else { (1, 2 * (kernel.heads + 1)) }
            }
            (Family::Sum, 0) => (tokens * read(1), cols),
            (Family::Sum, 1) => (tokens, 0),
            (Family::Sum, _) => (tokens * read(1), 1),
            (Family::Row | Family::Product | Family::Attention, _) => (rows, 0),
            (Family::HeadProduct | Family::HeadProductT | Family::Latent | Family::Tables, _) => (rows, 0),
        }
    }

    /// Of a result, where its reads determine it.
    fn size_of_write(&self, step: &Step, kernel: &Kernel, index: usize) -> Option<Size> {
        let tokens = self.call.tokens;
        let k = step.reads.first().map_or(0, |it| u64::from(it.cols));
        match (kernel.family, index) {
            (Family::Conv | Family::Delta, _) => Some((tokens, 0)),
            (Family::Route, _) => Some((tokens, step.writes[0].cols.into())),
            (Family::Sort, 1) => Some((1, 2 * (kernel.heads + 1))),
            (Family::Sort, _) => Some((tokens * k, 1)),
            _ => None,
        }
    }

    /// Tiles cut no group, head or line of lanes.
    fn tiles(&mut self, step: &Step, kernel: &Kernel) {
        let (y, tile) = (&step.writes[0], step.tile);
        let (cols, width) = (u64::from(tile.cols), u64::from(y.cols));
        let lanes = if y.dtype.fx().is_some() { 128 } else { 16 };
        let is_whole = cols >= width;
        let is_by_head = matches!(kernel.family, Family::HeadProduct | Family::HeadProductT);
        let all = if is_by_head { width * kernel.heads } else { width };
        let multiple_of = |unit: u64| cols >= all || (unit > 0 && cols.is_multiple_of(unit));
        let fits = match kernel.family {
            Family::Product | Family::Expert | Family::ExpertGlu => multiple_of(lanes),
            // Both halves of a gated product, too.
            Family::Row if matches!(step.kind, waste_plan::schema::StepKind::LinearGlu { .. }) => {
                multiple_of(lanes)
            }
            Family::Attention | Family::HeadNorm | Family::Gate | Family::Delta => multiple_of(kernel.head),
            Family::Conv | Family::ExpertLut | Family::ExpertVq => multiple_of(64),
            Family::Tables => multiple_of(256),
            // Lanes are counted from each head's first column.
            Family::HeadProduct => {
                multiple_of(width) || (cols.is_multiple_of(lanes) && width.is_multiple_of(cols.max(1)))
            }
            Family::HeadProductT => multiple_of(width),
            // All heads of a token at once.
            Family::Append => cols >= width * self.heads_of(y),
            _ => is_whole,
        };
        if !fits {
            self.blame("tiles that cut a row, a head, a group or a line of lanes");
        }
    }
}
