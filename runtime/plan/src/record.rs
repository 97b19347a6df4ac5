//! The header of an expert record in a version 0 container: what a converter writes, and a reader checks of every record that it
//! brings in.
//!
//! | at | type | field | must be |
//! |---|---|---|---|
//! | 0 | u32 | magic | "WEXP" |
//! | 4, 6 | u16 | layer, expert | those asked for |
//! | 8 | u8 | format | that of the indices: 8 for six bits, else 4 or 5 (a reader takes either) |
//! | 10 | u16 | first codebook | the bank's |
//! | 12 | u16 | low-rank id | 0 |
//! | 16 | u32 | size in blocks of 4096 | the bank's |
//! | 20, 24, 28 | u32 | where the gate's, up's and down's indices begin | as planned |
//! | 32 | u32 | where the scales begin | as planned |
//! | 36 | u32 | CRC-32 of all from the header's end to the last scale | – |
//!
//! Source: the public description of WARP's container, version 0. Deliberately absent: reading, and the CRC itself.

use sha2::{Digest, Sha256};

use crate::vq::VqCode;

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

/// What is wrong with a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, in bytes from the start of the record.
    pub at: u64,
    /// Found and expected.
    pub reason: String,
}

/// The header of a record that says `it` of indices coded as `code`, and has the CRC-32 `crc`.
///
/// # Panics
/// If a number does not fit its field.
#[must_use]
pub fn header(it: &Expected, code: VqCode, crc: u32) -> [u8; HEADER] {
    let half = |n: u32| u16::try_from(n).expect("numbered in 16 bits").to_le_bytes();
    let word = |n: u64| u32::try_from(n).expect("placed in 32 bits").to_le_bytes();
    let format = match code {
        VqCode::Vq3r => 4,
        VqCode::Vq2r => 5,
        VqCode::Vq4p => 8,
    };
    let mut out = [0; HEADER];
    let mut put = |at: usize, field: &[u8]| out[at..at + field.len()].copy_from_slice(field);
    put(0, &MAGIC.to_le_bytes());
    put(4, &half(it.layer));
    put(6, &half(it.expert));
    put(8, &[format]);
    put(10, &half(it.codebooks));
    put(16, &word(it.bytes / BLOCK));
    for (at, place) in [20, 24, 28].into_iter().zip(it.indices) {
        put(at, &word(place));
    }
    put(32, &word(it.scales));
    put(36, &crc.to_le_bytes());
    out
}

/// What of the header of `record` differs from what it must say: the first such field.
#[must_use]
pub fn fault(record: &[u8], it: &Expected) -> Option<Fault> {
    if record.len() < HEADER {
        return Some(Fault { at: 0, reason: format!("{} bytes are no record", record.len()) });
    }
    let half = |at: usize| u64::from(u16::from_le_bytes([record[at], record[at + 1]]));
    // Two-stage records may have the number of three-stage ones.
    let (known, codes): (&[u8], _) = if it.is_packed { (&[8], "vq4p") } else { (&[4, 5], "vq3r or vq2r") };
    if word(record, 0) == u64::from(MAGIC) && !known.contains(&record[8]) {
        return Some(Fault { at: 8, reason: format!("fmt {} is not that of {codes}", record[8]) });
    }
    let fields = [
        (0, "magic", word(record, 0), MAGIC.into()),
        (4, "layer", half(4), it.layer.into()),
        (6, "expert_id", half(6), it.expert.into()),
        (10, "codebook_id", half(10), it.codebooks.into()),
        (12, "lowrank_id", half(12), 0),
        (16, "rec_4k_blocks", word(record, 16), it.bytes / BLOCK),
        (20, "gate_off", word(record, 20), it.indices[0]),
        (24, "up_off", word(record, 24), it.indices[1]),
        (28, "down_off", word(record, 28), it.indices[2]),
        (32, "chan_corr_off", word(record, 32), it.scales),
    ];
    let (at, name, found, expected) = fields.into_iter().find(|it| it.2 != it.3)?;
    Some(Fault { at, reason: format!("{name} is {found:#x}, expected {expected:#x}") })
}

/// Compares the header of `record` with what it must say.
///
/// # Errors
/// The reason of its [`fault`].
pub fn check(record: &[u8], it: &Expected) -> Result<(), String> {
    fault(record, it).map_or(Ok(()), |it| Err(it.reason))
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
        let good = header(&it, VqCode::Vq3r, 0xdead_beef).to_vec();
        assert_eq!(check(&good, &it), Ok(()));
        assert_eq!((layer_and_codebooks(&good), stored_crc(&good)), (Some((3, 27)), 0xdead_beef));
        for at in [0, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(fault(&bad, &it).expect("it differs").at, at as u64, "byte {at}");
        }
        assert!(check(&good[..40], &it).is_err());
        assert_eq!(stated_bytes(&good), Some(2 * BLOCK));
        assert_eq!((stated_bytes(&good[..40]), stated_bytes(&[0; HEADER])), (None, None));
    }

    /// Field by field, as the table above has them.
    #[test]
    fn a_header_has_these_bytes() {
        let it = Expected {
            layer: 3,
            expert: 0x107,
            codebooks: 27,
            is_packed: true,
            bytes: 2 * BLOCK,
            indices: [48, 1000, 2000],
            scales: 3000,
        };
        let words: [&[u8]; 12] = [
            b"WEXP",
            &[3, 0, 7, 1],
            &[8, 0, 27, 0],
            &[0; 4],
            &[2, 0, 0, 0],
            &[48, 0, 0, 0],
            &[0xe8, 3, 0, 0],
            &[0xd0, 7, 0, 0],
            &[0xb8, 11, 0, 0],
            &[4, 3, 2, 1],
            &[0; 4],
            &[0; 4],
        ];
        let found = header(&it, VqCode::Vq4p, 0x0102_0304);
        assert_eq!(found.to_vec(), words.concat());
        assert_eq!(fault(&found, &it), None);
        let plain = Expected { is_packed: false, ..it };
        assert_eq!([header(&plain, VqCode::Vq3r, 0)[8], header(&plain, VqCode::Vq2r, 0)[8]], [4, 5]);
        for other in [VqCode::Vq3r, VqCode::Vq2r] {
            assert_eq!(fault(&header(&it, other, 0), &plain), None, "a reader takes either");
        }
        let reason = fault(&found, &plain).expect("of other indices").reason;
        assert_eq!(reason, "fmt 8 is not that of vq3r or vq2r");
    }
}
