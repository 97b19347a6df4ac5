//! Builds small GGUF files, well-formed or deliberately not.

#![allow(dead_code, reason = "each test crate uses a part")]

/// GGUF value types.
pub(crate) const U8: u32 = 0;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const TEXT: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

/// A GGUF in the making; every field may be made wrong before [`Gguf::bytes`].
#[derive(Clone)]
pub(crate) struct Gguf {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) n_tensors: Option<u64>,
    pub(crate) n_keys: Option<u64>,
    pub(crate) alignment: u64,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<Vec<u8>>,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn text(it: &str) -> Vec<u8> {
    raw_text(it.as_bytes())
}

pub(crate) fn raw_text(it: &[u8]) -> Vec<u8> {
    [&(it.len() as u64).to_le_bytes(), it].concat()
}

impl Gguf {
    pub(crate) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_keys: None,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }

    /// A key with a value of any type, given as bytes.
    pub(crate) fn raw(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push([text(name).as_slice(), &kind.to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn str(self, name: &str, value: &str) -> Self {
        self.raw(name, TEXT, &text(value))
    }

    pub(crate) fn u32(self, name: &str, value: u32) -> Self {
        self.raw(name, U32, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, name: &str, value: f32) -> Self {
        self.raw(name, F32, &value.to_le_bytes())
    }

    pub(crate) fn bool(self, name: &str, value: bool) -> Self {
        self.raw(name, BOOL, &[value.into()])
    }

    pub(crate) fn array(self, name: &str, elem: u32, count: u64, elems: &[u8]) -> Self {
        self.raw(name, ARRAY, &[&elem.to_le_bytes(), &count.to_le_bytes()[..], elems].concat())
    }

    pub(crate) fn strs<T: AsRef<str>>(self, name: &str, all: &[T]) -> Self {
        let elems: Vec<u8> = all.iter().flat_map(|it| text(it.as_ref())).collect();
        self.array(name, TEXT, all.len() as u64, &elems)
    }

    pub(crate) fn i32s(self, name: &str, all: &[i32]) -> Self {
        let elems: Vec<u8> = all.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.array(name, I32, all.len() as u64, &elems)
    }

    pub(crate) fn f32s(self, name: &str, all: &[f32]) -> Self {
        let elems: Vec<u8> = all.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.array(name, F32, all.len() as u64, &elems)
    }

    /// A tensor of GGML type `kind`; `dims` innermost first.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], kind: u32, data: &[u8]) -> Self {
        let pad = self.data.len().next_multiple_of(usize::try_from(self.alignment).expect("small"));
        self.data.resize(pad, 0);
        let at = self.data.len() as u64;
        self.data.extend(data);
        self.row(&text(name), dims, kind, at)
    }

    /// A row of the tensor table with any offset, and no data.
    pub(crate) fn row(mut self, name: &[u8], dims: &[u64], kind: u32, offset: u64) -> Self {
        let n_dims = u32::try_from(dims.len()).expect("small");
        let mut row = [name, &n_dims.to_le_bytes()].concat();
        row.extend(dims.iter().flat_map(|it| it.to_le_bytes()));
        row.extend(kind.to_le_bytes());
        row.extend(offset.to_le_bytes());
        self.tensors.push(row);
        self
    }

    /// The bytes before the tensor data, without padding.
    pub(crate) fn header(&self) -> Vec<u8> {
        let n_tensors = self.n_tensors.unwrap_or(self.tensors.len() as u64);
        let n_keys = self.n_keys.unwrap_or(self.keys.len() as u64);
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(n_tensors.to_le_bytes());
        out.extend(n_keys.to_le_bytes());
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        out
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        let pad = out.len().next_multiple_of(usize::try_from(self.alignment).expect("small"));
        out.resize(pad, 0);
        out.extend(&self.data);
        out
    }
}
