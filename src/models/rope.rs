//! Rotary position embeddings as configurations describe them.
//!
//! Sources: transformers 5, `modeling_rope_utils.py` (`rope_parameters`; before that `rope_theta` and `rope_scaling`);
//! the GGUF specification, keys `[arch].rope.*`.

use waste_ir::{RopeScaling, RopeStyle};

use crate::formats::{FormatError, Meta, shown};

/// How queries and keys are rotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rope {
    /// Elements of each head that turn; even.
    pub(super) dims: u32,
    pub(super) base: f64,
    pub(super) scaling: RopeScaling,
    pub(super) style: RopeStyle,
}

const DEFAULT_BASE: f64 = 10_000.0;

impl Rope {
    /// From config.json: rows lie so that halves turn together.
    pub(super) fn from_config(meta: &Meta, head_dim: u32) -> Result<Self, FormatError> {
        let is_new = meta.keys().any(|it| it.starts_with("rope_parameters."));
        let keys = Section { meta, name: if is_new { "rope_parameters" } else { "rope_scaling" } };
        let base = keys.here_or_above("rope_theta")?.unwrap_or(DEFAULT_BASE);
        if base <= 0.0 {
            return Err(meta.refuse("rope_theta", format!("{base}, expected a positive number")));
        }
        let dims = match keys.here_or_above("partial_rotary_factor")? {
            None => head_dim,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0 ..= head_dim")]
            Some(share) if share > 0.0 && share <= 1.0 => (f64::from(head_dim) * share) as u32,
            Some(share) => {
                return Err(
                    meta.refuse("partial_rotary_factor", format!("{share}, expected a share up to 1"))
                );
            }
        };
        check_dims(meta, "partial_rotary_factor", dims, head_dim)?;
        Ok(Self { dims, base, scaling: keys.scaling()?, style: RopeStyle::Half })
    }

    /// Of latent attention, from config.json: neighbours turn together; and the factor by which YaRN sharpens the softmax.
    ///
    /// YaRN multiplies cosines and sines by mscale(mscale) / mscale(mscale_all_dim), which must be 1 here, and the scale of the softmax by
    /// mscale(mscale_all_dim)², where mscale(m) = 0.1 m ln(factor) + 1 (DeepSeek-V2 report 2024, §3.1.4; `modeling_deepseek_v3.py`).
    pub(super) fn latent(meta: &Meta, dims: u32) -> Result<(Self, f64), FormatError> {
        let is_new = meta.keys().any(|it| it.starts_with("rope_parameters."));
        let keys = Section { meta, name: if is_new { "rope_parameters" } else { "rope_scaling" } };
        let base = keys.here_or_above("rope_theta")?.unwrap_or(DEFAULT_BASE);
        if base <= 1.0 {
            return Err(meta.refuse("rope_theta", format!("{base}, expected a number above 1")));
        }
        check_dims(meta, "qk_rope_head_dim", dims, dims)?;
        let (scaling, sharper) = keys.latent_scaling()?;
        Ok((Self { dims, base, scaling, style: RopeStyle::Pair }, sharper))
    }

    /// From a GGUF of `arch`, whose rows lie as `style` says.
    pub(super) fn from_gguf(
        meta: &Meta,
        arch: &str,
        head_dim: u32,
        style: RopeStyle,
    ) -> Result<Self, FormatError> {
        let key = |name: &str| format!("{arch}.rope.{name}");
        let base = meta.get_f64(&key("freq_base"))?.unwrap_or(DEFAULT_BASE);
        if base <= 0.0 {
            return Err(meta.refuse(&key("freq_base"), format!("{base}, expected a positive number")));
        }
        let dims = meta.get_u32(&key("dimension_count"))?.unwrap_or(head_dim);
        check_dims(meta, &key("dimension_count"), dims, head_dim)?;
        // A factor without a type is linear; 0 and 1 are none.
        let kind = meta.get_str(&key("scaling.type"))?;
        let factor_key =
            if meta.contains(&key("scaling.factor")) { "scaling.factor" } else { "scale_linear" };
        let factor = meta.get_f64(&key(factor_key))?.filter(|it| *it != 0.0 && *it != 1.0);
        let scaling = match (kind, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => RopeScaling::None,
            (None | Some("linear"), Some(factor)) if factor > 0.0 => RopeScaling::Linear { factor },
            (None | Some("linear"), Some(factor)) => {
                return Err(meta.refuse(&key(factor_key), format!("{factor}, expected a positive number")));
            }
            (Some(other), _) => {
                let reason = format!("'{}' is not supported (none and linear are)", shown(other));
                return Err(meta.refuse(&key("scaling.type"), reason));
            }
        };
        Ok(Self { dims, base, scaling, style })
    }
}

fn check_dims(meta: &Meta, key: &str, dims: u32, head_dim: u32) -> Result<(), FormatError> {
    if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
        let reason = format!("rotates {dims} of {head_dim} elements, expected an even number up to that");
        return Err(meta.refuse(key, reason));
    }
    Ok(())
}

/// The keys of `rope_parameters` or `rope_scaling`.
struct Section<'a> {
    meta: &'a Meta,
    name: &'static str,
}

impl Section<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    fn number(&self, name: &str) -> Result<f64, FormatError> {
        let value = self.meta.f64(&self.key(name))?;
        if value > 0.0 {
            return Ok(value);
        }
        Err(self.meta.refuse(&self.key(name), format!("{value}, expected a positive number")))
    }

    /// A number given in the section, at the top level, or in both if they agree.
    fn here_or_above(&self, name: &str) -> Result<Option<f64>, FormatError> {
        let (here, above) = (self.meta.get_f64(&self.key(name))?, self.meta.get_f64(name)?);
        match (here, above) {
            (Some(here), Some(above)) if here != above => {
                Err(self.meta.refuse(&self.key(name), format!("{here}, but '{name}' is {above}")))
            }
            _ => Ok(here.or(above)),
        }
    }

    fn scaling(&self) -> Result<RopeScaling, FormatError> {
        let is_old_name = !self.meta.contains(&self.key("rope_type"));
        let key = self.key(if is_old_name { "type" } else { "rope_type" });
        self.meta.ignore(&self.key("type"));
        match self.meta.get_str(&key)? {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: self.number("factor")? }),
            Some("llama3") => self.llama3(),
            Some(other) => {
                let reason = format!("'{}' is not supported (default, linear and llama3 are)", shown(other));
                Err(self.meta.refuse(&key, reason))
            }
        }
    }

    fn latent_scaling(&self) -> Result<(RopeScaling, f64), FormatError> {
        let is_old_name = !self.meta.contains(&self.key("rope_type"));
        let key = self.key(if is_old_name { "type" } else { "rope_type" });
        self.meta.ignore(&self.key("type"));
        match self.meta.get_str(&key)? {
            None if !self.meta.contains(&self.key("factor")) => Ok((RopeScaling::None, 1.0)),
            None => Err(self.meta.missing(&key)),
            Some("default") => Ok((RopeScaling::None, 1.0)),
            Some("yarn") => self.yarn(),
            Some(other) => {
                let reason = format!("'{}' is not supported (default and yarn are)", shown(other));
                Err(self.meta.refuse(&key, reason))
            }
        }
    }

    fn yarn(&self) -> Result<(RopeScaling, f64), FormatError> {
        let factor = self.number("factor")?;
        let or = |name: &str, default: f64| -> Result<f64, FormatError> {
            if self.meta.contains(&self.key(name)) { self.number(name) } else { Ok(default) }
        };
        let (fast, slow) = (or("beta_fast", 32.0)?, or("beta_slow", 1.0)?);
        let (mscale, all) = (or("mscale", 1.0)?, self.number("mscale_all_dim")?);
        if mscale != all {
            let reason = format!("{mscale}, but mscale_all_dim is {all}: only equal ones are supported");
            return Err(self.meta.refuse(&self.key("mscale"), reason));
        }
        let orig = super::keys::positive(self.meta, &self.key("original_max_position_embeddings"))?;
        let sharper = if factor > 1.0 { 0.1 * all * libm::log(factor) + 1.0 } else { 1.0 };
        Ok((RopeScaling::Yarn { factor, fast, slow, orig }, sharper * sharper))
    }

    fn llama3(&self) -> Result<RopeScaling, FormatError> {
        let (low, high) = (self.number("low_freq_factor")?, self.number("high_freq_factor")?);
        if low >= high {
            let reason = format!("{high}, expected more than low_freq_factor, which is {low}");
            return Err(self.meta.refuse(&self.key("high_freq_factor"), reason));
        }
        let orig = super::keys::positive(self.meta, &self.key("original_max_position_embeddings"))?;
        Ok(RopeScaling::Llama3 { factor: self.number("factor")?, low, high, orig })
    }
}
