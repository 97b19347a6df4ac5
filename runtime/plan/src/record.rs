//! The header of an expert record in a version 0 container: what a reader checks of every record that it brings in.
//!
//! | at | type | field | must be |
//! |---|---|---|---|
//! | 0 | u32 | magic | "WEXP" |
//! | 4, 6 | u16 | layer, expert | those asked for |
//! | 8 | u8 | format | 8 for six-bit indices, else 4 or 5 |
//! | 10 | u16 | first codebook | the bank's |
//! | 12 | u16 | low-rank id | 0 |
//! | 16 | u32 | size in blocks of 4096 | the bank's |
//! | 20, 24, 28 | u32 | where the gate's, up's and down's indices begin | as planned |
//! | 32 | u32 | where the scales begin | as planned |
//! | 36 | u32 | CRC-32 of all from the header's end to the last scale | – |
//!
//! Source: the public description of WARP's container, version 0. Deliberately absent: reading, and the CRC itself.

use sha2::{Digest, Sha256};

/// Bytes of a header.
pub const HEADER: usize = 48;
/// "WEXP".
pub const MAGIC: u32 = 0x5058_4557;
/// Records are whole blocks of this many bytes.
pub const BLOCK: u64 = 4096;
/// Records whose headers stand for a bank: few enough that opening a plan stays a matter of milliseconds.
const SAMPLE: u32 = 32;

/// What the header of one record must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The number of the layer in the model.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
    /// The first codebook of the layer.
    pub codebooks: u32,
    /// Whether indices have six bits.
    pub is_packed: bool,
    /// Bytes of the record.
    pub bytes: u64,
    /// Where the indices of gate, up and down begin.
    pub indices: [u64; 3],
    /// Where the scales begin.
    pub scales: u64,
}

/// Compares the header of `record` with what it must say.
///
/// # Errors
/// The first field that differs, with found and expected.
pub fn check(record: &[u8], it: &Expected) -> Result<(), String> {
    if record.len() < HEADER {
        return Err(format!("{} bytes are no record", record.len()));
    }
    let half = |at: usize| u64::from(u16::from_le_bytes([record[at], record[at + 1]]));
    let fields = [
        ("magic", word(record, 0), MAGIC.into()),
        ("layer", half(4), it.layer.into()),
        ("expert", half(6), it.expert.into()),
        ("first codebook", half(10), it.codebooks.into()),
        ("low-rank id", half(12), 0),
        ("size in blocks", word(record, 16), it.bytes / BLOCK),
        ("place of the gate's indices", word(record, 20), it.indices[0]),
        ("place of up's indices", word(record, 24), it.indices[1]),
        ("place of down's indices", word(record, 28), it.indices[2]),
        ("place of the scales", word(record, 32), it.scales),
    ];
    if let Some((name, found, expected)) = fields.into_iter().find(|it| it.1 != it.2) {
        return Err(format!("{name} is {found:#x}, expected {expected:#x}"));
    }
    let format = record[8];
    let is_known = if it.is_packed { format == 8 } else { matches!(format, 4 | 5) };
    if is_known { Ok(()) } else { Err(format!("format {format} is that of other indices")) }
}

/// The numbers of layer and first codebook in a record's header, for a reader that has none to expect.
#[must_use]
pub fn layer_and_codebooks(record: &[u8]) -> Option<(u32, u32)> {
    let half = |at: usize| Some(u32::from(u16::from_le_bytes([*record.get(at)?, *record.get(at + 1)?])));
    Some((half(4)?, half(10)?))
}

/// The size in bytes that a record's header states, for a reader that knows nothing else; `None` if it is no such header.
#[must_use]
pub fn stated_bytes(record: &[u8]) -> Option<u64> {
    if record.len() < HEADER || word(record, 0) != u64::from(MAGIC) {
        return None;
    }
    Some(BLOCK * word(record, 16)).filter(|it| *it > 0)
}

/// The CRC-32 that the header of `record` states.
///
/// # Panics
/// If `record` is shorter than a header.
#[must_use]
pub fn stored_crc(record: &[u8]) -> u32 {
    u32::from_le_bytes([record[36], record[37], record[38], record[39]])
}

/// SHA-256, as lower-case hex digits, of the headers of a bank's records: of all, or of 32 of them, the first, the last and such as
/// are evenly spread between. As a header holds the CRC-32 of its record, banks of one hash hold the same experts, unless somebody
/// changed some of those between. `header` reads that of an expert.
///
/// # Errors
/// What `header` says.
pub fn bank_sha256<E>(
    experts: u32,
    mut header: impl FnMut(u32) -> Result<[u8; HEADER], E>,
) -> Result<String, E> {
    let mut hash = Sha256::new();
    for expert in sample(experts) {
        hash.update(header(expert)?);
    }
    Ok(hash.finalize().iter().map(|it| format!("{it:02x}")).collect())
}

fn sample(experts: u32) -> impl Iterator<Item = u32> {
    let n = experts.min(SAMPLE);
    let last = u64::from(experts.saturating_sub(1));
    let at = move |i: u32| u64::from(i) * last / u64::from(n - 1).max(1);
    (0..n).map(move |i| u32::try_from(at(i)).expect("at most the last"))
}

fn word(record: &[u8], at: usize) -> u64 {
    let bytes = [record[at], record[at + 1], record[at + 2], record[at + 3]];
    u64::from(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(it: &Expected) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC.to_le_bytes());
        for n in [it.layer, it.expert] {
            out.extend(u16::try_from(n).expect("small").to_le_bytes());
        }
        out.extend([if it.is_packed { 8 } else { 4 }, 0]);
        out.extend(u16::try_from(it.codebooks).expect("small").to_le_bytes());
        out.extend([0; 4]);
        for n in [it.bytes / BLOCK, it.indices[0], it.indices[1], it.indices[2], it.scales, 0xdead_beef, 0, 0]
        {
            out.extend(u32::try_from(n).expect("small").to_le_bytes());
        }
        out
    }

    #[test]
    fn a_bank_is_known_by_its_first_its_last_and_records_between() {
        let all = |n| sample(n).collect::<Vec<u32>>();
        assert_eq!((all(0), all(1), all(3)), (vec![], vec![0], vec![0, 1, 2]));
        assert_eq!(all(32), (0..32).collect::<Vec<_>>());
        let many = all(896);
        assert_eq!((many.len(), many[0], many[31]), (32, 0, 895));
        assert!(many.windows(2).all(|it| it[0] + 20 < it[1]), "{many:?}");
        let hash = |changed: u32| {
            let header = |e: u32| Ok::<_, ()>([u8::from(e == changed); HEADER]);
            bank_sha256(896, header).expect("no reader fails")
        };
        assert_eq!(hash(1000).len(), 64);
        assert!(many.iter().all(|it| hash(*it) != hash(1000)));
        assert_eq!(bank_sha256(2, |e| if e == 1 { Err("gone") } else { Ok([0; HEADER]) }), Err("gone"));
    }

    #[test]
    fn each_field_is_compared() {
        let it = Expected {
            layer: 3,
            expert: 7,
            codebooks: 27,
            is_packed: false,
            bytes: 2 * BLOCK,
            indices: [48, 1000, 2000],
            scales: 3000,
        };
        let good = header(&it);
        assert_eq!(good.len(), HEADER);
        assert_eq!(check(&good, &it), Ok(()));
        assert_eq!((layer_and_codebooks(&good), stored_crc(&good)), (Some((3, 27)), 0xdead_beef));
        for at in [0, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(check(&bad, &it).is_err(), "byte {at}");
        }
        assert!(check(&good[..40], &it).is_err());
        assert_eq!(stated_bytes(&good), Some(2 * BLOCK));
        assert_eq!((stated_bytes(&good[..40]), stated_bytes(&[0; HEADER])), (None, None));
    }
}
