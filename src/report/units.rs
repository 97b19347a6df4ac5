//! Bytes and counts as people write them.

/// Bytes in a mebibyte.
pub const MIB: f64 = 1_048_576.0;

/// `n` as a float, for ratios and rates: exact below 2^53.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for printing: 53 bits are more than anyone reads")]
pub const fn float(n: u64) -> f64 {
    n as f64
}

/// Bytes with a binary unit: `129.87 MiB`, `512 B`.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = float(n) / 1024.0;
    let mut unit = 0;
    while 1024.0 <= value && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// A count with a decimal unit: `134.52 M`, `1.24 B` (10⁹), `999`.
#[must_use]
pub fn count(n: u64) -> String {
    match scaled(n) {
        (value, "") => format!("{value:.0}"),
        (value, unit) => format!("{value:.2} {unit}"),
    }
}

/// A count in three digits, for names: `135M`, `1.2B`, `12.3K`.
#[must_use]
pub fn short_count(n: u64) -> String {
    let (value, unit) = scaled(n);
    if value < 99.95 && !unit.is_empty() { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

fn scaled(n: u64) -> (f64, &'static str) {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];
    let value = float(n);
    units.into_iter().find(|it| it.0 <= value).map_or((value, ""), |(size, unit)| (value / size, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_binary_units() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (136_178_565, "129.87 MiB"),
            (u64::MAX, "16384.00 PiB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn counts_have_decimal_units() {
        let cases = [
            (7, "7", "7"),
            (12_345, "12.35 K", "12.3K"),
            (134_515_008, "134.52 M", "135M"),
            (1_235_814_432, "1.24 B", "1.2B"),
        ];
        for (n, long, short) in cases {
            assert_eq!((count(n).as_str(), short_count(n).as_str()), (long, short));
        }
    }
}
