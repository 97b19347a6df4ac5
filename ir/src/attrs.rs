//! Compile-time fields of ops: their types, and how each is written in IR text.

pub use waste_plan::{Act, RopeStyle, Scoring, UnaryKind};
use waste_plan::{Math, Tables, VqCode};

/// A field type with a text form. `parse(print(x)) == x`.
pub trait Attr: Sized + PartialEq {
    /// The text form: one token, or `name{field=value, …}` for [`RopeScaling`].
    fn print(&self) -> String;
    /// Parses [`Attr::print`]; `None` if `text` is not of this type.
    fn parse(text: &str) -> Option<Self>;
    /// Whether the field is left out of the text because it has its neutral value.
    fn is_neutral(&self) -> bool {
        false
    }
    /// The value of a field that the text leaves out; `None` if it must be given.
    fn neutral() -> Option<Self> {
        None
    }
}

impl Attr for u32 {
    fn print(&self) -> String {
        self.to_string()
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Attr for bool {
    fn print(&self) -> String {
        self.to_string()
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Shortest text that reads back to the same bits.
impl Attr for f32 {
    fn print(&self) -> String {
        format!("{self:?}")
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|it: &Self| it.is_finite())
    }
}

impl Attr for f64 {
    fn print(&self) -> String {
        format!("{self:?}")
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|it: &Self| it.is_finite())
    }
}

/// The quantised form in which a producer writes its result; left out when it writes f32.
impl Attr for Option<Math> {
    fn print(&self) -> String {
        self.map_or("none", Math::name).to_owned()
    }
    fn parse(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { Math::from_name(text).map(Some) }
    }
    fn is_neutral(&self) -> bool {
        self.is_none()
    }
    fn neutral() -> Option<Self> {
        Some(None)
    }
}

macro_rules! word_attrs {
    ($($name:ident),+) => { $(
        impl Attr for $name {
            fn print(&self) -> String {
                self.name().to_owned()
            }
            fn parse(text: &str) -> Option<Self> {
                Self::from_name(text)
            }
        }
    )+ };
}
word_attrs!(Math, UnaryKind, RopeStyle, Scoring, VqCode, Tables);

/// Left out where it is the identity.
impl Attr for Act {
    fn print(&self) -> String {
        self.name().to_owned()
    }
    fn parse(text: &str) -> Option<Self> {
        Self::from_name(text)
    }
    fn is_neutral(&self) -> bool {
        *self == Self::None
    }
    fn neutral() -> Option<Self> {
        Some(Self::None)
    }
}

/// Rescaling of rotary frequencies for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by `factor` (Chen et al. 2023, position interpolation).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3's rule: wave lengths above `orig / low` divided by `factor`, below `orig / high` kept, smooth between.
    /// Source: transformers `_compute_llama3_parameters`.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// `low_freq_factor`.
        low: f64,
        /// `high_freq_factor`.
        high: f64,
        /// `original_max_position_embeddings`.
        orig: u32,
    },
    /// YaRN (Peng et al. 2023, §3.2): pairs that turn fewer than `slow` times in `orig` positions divided by `factor`, those that turn more
    /// than `fast` times kept, a ramp between. Its factor on attention is the front end's: part of the scale.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// `beta_fast`.
        fast: f64,
        /// `beta_slow`.
        slow: f64,
        /// `original_max_position_embeddings`.
        orig: u32,
    },
}

impl Attr for RopeScaling {
    fn print(&self) -> String {
        match *self {
            Self::None => "none".to_owned(),
            Self::Linear { factor } => format!("linear{{factor={factor:?}}}"),
            Self::Llama3 { factor, low, high, orig } => {
                format!("llama3{{factor={factor:?}, low={low:?}, high={high:?}, orig={orig}}}")
            }
            Self::Yarn { factor, fast, slow, orig } => {
                format!("yarn{{factor={factor:?}, fast={fast:?}, slow={slow:?}, orig={orig}}}")
            }
        }
    }
    fn parse(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self::None);
        }
        let (name, rest) = text.split_once('{')?;
        let fields: Vec<(&str, &str)> =
            rest.strip_suffix('}')?.split(',').map(|it| it.trim().split_once('=')).collect::<Option<_>>()?;
        let number =
            |i: usize, key: &str| fields.get(i).filter(|it| it.0 == key).and_then(|it| f64::parse(it.1));
        let orig = || fields.get(3).filter(|it| it.0 == "orig").and_then(|it| it.1.parse().ok());
        match (name, fields.len()) {
            ("linear", 1) => Some(Self::Linear { factor: number(0, "factor")? }),
            ("llama3", 4) => Some(Self::Llama3 {
                factor: number(0, "factor")?,
                low: number(1, "low")?,
                high: number(2, "high")?,
                orig: orig()?,
            }),
            ("yarn", 4) => Some(Self::Yarn {
                factor: number(0, "factor")?,
                fast: number(1, "fast")?,
                slow: number(2, "slow")?,
                orig: orig()?,
            }),
            _ => None,
        }
    }
    fn is_neutral(&self) -> bool {
        *self == Self::None
    }
    fn neutral() -> Option<Self> {
        Some(Self::None)
    }
}
