//! Fusions, one file each: two ops that run as one step, so that what lies between them never reaches memory.

pub mod conv_act;
pub mod epilogue;
pub mod glu;
pub mod quant;

pub use conv_act::FuseConvAct;
pub use epilogue::FuseEpilogue;
pub use glu::FuseGlu;
pub use quant::FuseQuant;
