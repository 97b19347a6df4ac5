//! Random numbers, the same for a seed on any machine.
//!
//! Invariant: what a seed gives does not change between versions: tokens drawn, containers converted and reports depend on it.
//!
//! Deliberately absent: seeds from clock or system (the program's), and other distributions than the uniform.

/// The generator xoshiro256++ 1.0 of Blackman and Vigna, seeded by SplitMix64 as its authors advise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xoshiro256PlusPlus {
    state: [u64; 4],
}

impl Xoshiro256PlusPlus {
    /// The generator for `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut mixer = seed;
        let mut next = || {
            mixer = mixer.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = mixer;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self { state: [next(), next(), next(), next()] }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let out = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let (s2, s3) = (s2 ^ s0, s3 ^ s1);
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ (s1 << 17), s3.rotate_left(45)];
        out
    }

    /// A number in [0, 1), a multiple of 2⁻⁵³.
    pub fn next_f64(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let bits = (self.next_u64() >> 11) as f64;
        bits * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        let mut rng = Xoshiro256PlusPlus { state: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..6).map(|_| rng.next_u64()).collect();
        let want = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ];
        assert_eq!(got, want);
        assert_eq!(
            Xoshiro256PlusPlus::from_seed(0).state[..2],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]
        );
    }
}
