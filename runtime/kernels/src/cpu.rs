//! What the machine can execute, as a set of tiers.
//!
//! Invariants
//! - a [`CpuFeatures`] is made only by [`CpuFeatures::detect`] and can only shrink, but for
//!   [`CpuFeatures::assuming_amx`], whose caller vouches: having a tier in the set is the proof that its instructions
//!   may run here, operating-system support and permission included.
//!
//! Deliberately absent: the choice of a kernel (that is `table`), and any look at the environment.

#[cfg(target_arch = "x86_64")]
mod amx;

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

/// A tier of kernels: a set of instruction-set extensions that are used together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// The specification in plain Rust; compiled a second time with `fma` where the machine has it.
    Portable,
    /// NEON, which every 64-bit Arm processor has.
    Neon,
    /// NEON with the dot products of bytes (`sdot`).
    Dotprod,
    /// NEON with the matrix products of bytes (`smmla`), next to the dot products.
    I8mm,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with VNNI. The rows of it that permute bytes across a register (VBMI) are installed only where that is
    /// too: Cascade Lake has one without the other.
    Vnni,
    /// AMX tiles with int8, next to whatever of the other tiers is here, at least AVX2.
    Amx,
}

impl Isa {
    /// Every tier, ascending. No machine has tiers of two architectures, so how those stand to each other says only
    /// which caps leave which machines alone: [`Isa::Amx`] leaves them all.
    pub const ALL: [Self; 8] = [
        Self::Portable,
        Self::Neon,
        Self::Dotprod,
        Self::I8mm,
        Self::Avx2,
        Self::Avx512,
        Self::Vnni,
        Self::Amx,
    ];

    /// The name used in flags and listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Dotprod => "dotprod",
            Self::I8mm => "i8mm",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Vnni => "vnni",
            Self::Amx => "amx",
        }
    }

    /// Parses [`Isa::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The tiers this machine can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuFeatures {
    tiers: u8,
    has_fma: bool,
    has_vbmi: bool,
}

impl CpuFeatures {
    /// Asks the processor and the operating system; where only its permission to use AMX is missing, asks for that.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_mut, reason = "other architectures have no more tiers")
        )]
        let mut res = Self { tiers: Isa::Portable.bit(), has_fma: false, has_vbmi: false };
        #[cfg(target_arch = "x86_64")]
        res.add_x86();
        #[cfg(target_arch = "aarch64")]
        res.add_arm();
        res
    }

    #[cfg(target_arch = "aarch64")]
    fn add_arm(&mut self) {
        self.has_fma = true;
        self.tiers |= Isa::Neon.bit();
        if is_aarch64_feature_detected!("dotprod") {
            self.tiers |= Isa::Dotprod.bit();
            if is_aarch64_feature_detected!("i8mm") {
                self.tiers |= Isa::I8mm.bit();
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn add_x86(&mut self) {
        self.has_fma = is_x86_feature_detected!("fma");
        if self.has_fma && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            self.tiers |= Isa::Avx2.bit();
        }
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        if self.has(Isa::Avx2) && avx512 {
            self.tiers |= Isa::Avx512.bit();
            if is_x86_feature_detected!("avx512vnni") {
                self.tiers |= Isa::Vnni.bit();
                self.has_vbmi = is_x86_feature_detected!("avx512vbmi");
            }
        }
        if self.has(Isa::Avx2) && amx::available().is_ok() {
            self.tiers |= Isa::Amx.bit();
        }
    }

    /// The same machine with AMX, where AVX2 is: for tests, in which a handler of illegal instructions executes tiles.
    ///
    /// # Safety
    /// Wherever a kernel of a table made from the result is called, AMX's instructions have the effect that
    /// Intel's manual states.
    #[must_use]
    pub unsafe fn assuming_amx(self) -> Self {
        let amx = if self.has(Isa::Avx2) { Isa::Amx.bit() } else { 0 };
        Self { tiers: self.tiers | amx, ..self }
    }

    /// The same machine without the tiers above `max`.
    #[must_use]
    pub fn capped(self, max: Isa) -> Self {
        let tiers = self.tiers & (max.bit() | (max.bit() - 1));
        Self { tiers, has_vbmi: self.has_vbmi && tiers & Isa::Vnni.bit() != 0, ..self }
    }

    /// The portable tier alone, in the build that does not assume fused multiply-add: slow, and the same bits.
    #[must_use]
    pub fn without_fma(self) -> Self {
        Self { has_fma: false, ..self.capped(Isa::Portable) }
    }

    /// Whether kernels of `isa` may run.
    #[must_use]
    pub fn has(self, isa: Isa) -> bool {
        self.tiers & isa.bit() != 0
    }

    /// Whether the portable kernels may be the build with fused multiply-add.
    #[must_use]
    pub fn has_fma(self) -> bool {
        self.has_fma
    }

    /// Whether kernels of the tier [`Isa::Vnni`] may use `avx512vbmi` as well.
    #[must_use]
    pub fn has_vbmi(self) -> bool {
        self.has_vbmi
    }

    /// The tiers of the set, ascending.
    pub fn tiers(self) -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(move |&isa| self.has(isa))
    }

    /// The highest tier of the set.
    #[must_use]
    pub fn best(self) -> Isa {
        self.tiers().last().unwrap_or(Isa::Portable)
    }
}

impl Isa {
    /// Why kernels of this tier cannot run here, for people; `None` if they can.
    #[must_use]
    pub fn why_not(self) -> Option<String> {
        let missing = missing_extensions(self);
        if !missing.is_empty() {
            return Some(format!("the processor or the system has no {}", missing.join(", ")));
        }
        #[cfg(target_arch = "x86_64")]
        if self == Self::Amx {
            return amx::available().err().map(|it| it.to_string());
        }
        None
    }
}

/// Extensions other than AMX that `isa` needs and that are not here.
#[cfg(target_arch = "x86_64")]
fn missing_extensions(isa: Isa) -> Vec<&'static str> {
    let here = [
        ("fma", is_x86_feature_detected!("fma")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    let needed = match isa {
        Isa::Neon | Isa::Dotprod | Isa::I8mm => return vec![isa.name()],
        Isa::Portable => 0,
        Isa::Avx2 | Isa::Amx => 3,
        Isa::Avx512 => 7,
        Isa::Vnni => here.len(),
    };
    here[..needed].iter().filter(|it| !it.1).map(|it| it.0).collect()
}

/// Extensions that `isa` needs and that are not here.
#[cfg(target_arch = "aarch64")]
fn missing_extensions(isa: Isa) -> Vec<&'static str> {
    let here = [
        ("dotprod", is_aarch64_feature_detected!("dotprod")),
        ("i8mm", is_aarch64_feature_detected!("i8mm")),
    ];
    let needed = match isa {
        Isa::Portable | Isa::Neon => 0,
        Isa::Dotprod => 1,
        Isa::I8mm => 2,
        Isa::Avx2 | Isa::Avx512 | Isa::Vnni | Isa::Amx => return vec![isa.name()],
    };
    here[..needed].iter().filter(|it| !it.1).map(|it| it.0).collect()
}

/// Extensions that `isa` needs: this is another kind of processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn missing_extensions(isa: Isa) -> Vec<&'static str> {
    if isa == Isa::Portable { Vec::new() } else { vec![isa.name()] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_keeps_what_is_below_it() {
        let all = CpuFeatures { tiers: u8::MAX, has_fma: true, has_vbmi: true };
        for isa in Isa::ALL {
            let capped = all.capped(isa);
            assert_eq!(capped.best(), isa);
            assert!(Isa::ALL.into_iter().all(|it| capped.has(it) == (it <= isa)));
            assert_eq!(capped.has_vbmi(), isa >= Isa::Vnni);
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert!(!all.without_fma().has_fma());
    }

    #[test]
    fn a_tier_is_here_or_something_is_missing() {
        for isa in Isa::ALL {
            assert_eq!(
                isa.why_not().is_none(),
                CpuFeatures::detect().has(isa),
                "{}: {:?}",
                isa.name(),
                isa.why_not()
            );
        }
    }

    /// What a handler may execute is one more tier and nothing else; a machine without AVX2 has none.
    #[test]
    fn assuming_amx_adds_that_tier() {
        let detected = CpuFeatures::detect();
        for cpu in [detected, detected.capped(Isa::Avx2), detected.capped(Isa::Portable)] {
            // SAFETY: no kernel is called.
            let assumed = unsafe { cpu.assuming_amx() };
            assert_eq!(assumed.has(Isa::Amx), cpu.has(Isa::Avx2));
            assert_eq!(assumed.capped(Isa::Vnni), cpu.capped(Isa::Vnni));
        }
    }

    #[test]
    fn every_machine_has_the_portable_tier() {
        assert!(CpuFeatures::detect().has(Isa::Portable));
        assert_eq!(CpuFeatures::detect().capped(Isa::Portable).best(), Isa::Portable);
    }
}
