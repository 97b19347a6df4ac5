//! The experts of a container: vector-quantised banks in records, and their codebooks.

use waste_ir::{Dim, TensorType, WeightId, WeightInit};
use waste_plan::vq::VEC_DIM;
use waste_plan::{DType, VqCode};

use crate::formats::container::{Bank, Container, MatrixKind};
use crate::formats::shown;

use crate::models::{ModelError, Result};

use super::Weights;

impl Weights<'_> {
    /// The matrices `kind` of the experts of the layer before whose tensors `layer` stands, each of `rows` × `cols`, as the bank `name`;
    /// `None` if the model keeps no such records.
    ///
    /// Of the records, the headers of the first and the last are read: all of them would be a walk through the file. Readers check each
    /// one that they read.
    pub(in crate::models) fn coded_bank(
        &mut self,
        layer: &str,
        kind: MatrixKind,
        name: &str,
        [rows, cols]: [u32; 2],
    ) -> Result<Option<WeightId>> {
        let Some(container) = self.files.container() else { return Ok(None) };
        let is_of_layer = |it: &&Bank| layer.starts_with(&format!("model.layers.{}.", it.layer()));
        let Some(bank) = container.banks().values().find(is_of_layer) else { return Ok(None) };
        let matrix = bank.matrix(kind);
        if (matrix.rows, matrix.cols) != (rows, cols) {
            let (found, expected) = ([matrix.rows, matrix.cols], [rows, cols]);
            return Err(ModelError::Shape {
                file: self.file_name(bank.file()),
                tensor: shown(name),
                found: found.map(u64::from).to_vec(),
                expected: expected.map(u64::from).to_vec(),
            });
        }
        if !container.sources()[bank.file()].is_absent() {
            for expert in [0, bank.experts() - 1] {
                container.record(bank, expert)?;
            }
        }
        let name = format!("{}{name}", container.prefix());
        let code = bank.code();
        let books = self.codebooks(container, bank, kind, (&name, code));
        let init = WeightInit::Records {
            source: self.sources[bank.file()],
            first: 0,
            stride: bank.record_bytes(),
            indices: matrix.indices,
            scales: matrix.scales,
        };
        let dtype = DType::ALL.into_iter().find(|it| it.vq() == Some(code)).expect("each code has a dtype");
        let ty = TensorType::new(dtype, &[bank.experts(), rows, cols].map(Dim::Const));
        Ok(Some(self.module.add_vq_bank(&name, ty, init, books)))
    }

    /// The codebooks of `kind`, one a stage: `f32[stages, entries, 8]`, stored as f16.
    fn codebooks(
        &mut self,
        container: &Container,
        bank: &Bank,
        kind: MatrixKind,
        (name, code): (&str, VqCode),
    ) -> WeightId {
        let source = self.sources[Container::CODEBOOKS];
        let parts = bank.books(kind).map(|it| (source, container.book_offset(it))).collect();
        let size = |it: usize| u32::try_from(it).expect("a few hundred");
        let dims = [code.stages(), code.entries(), VEC_DIM].map(size);
        let ty = TensorType::new(DType::F32, &dims.map(Dim::Const));
        let name = format!("{}.books", name.strip_suffix(".weight").unwrap_or(name));
        self.module.add_weight(&name, ty, WeightInit::Bank { stored: DType::F16, parts })
    }
}
