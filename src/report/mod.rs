//! What commands say about plans and measurements: predictions, statistics, tables.
//!
//! | file | holds |
//! |---|---|
//! | `cost` | bytes and operations of a call, predicted from its plan |
//! | `ops`, `classes` | prediction beside measured time, of each op and by class |
//! | `layers` | which layer a step belongs to |
//! | `buffers` | what lies in scratch, and when |
//! | `passes`, `missed` | the pass report read back; what refusals cost and what would change them |
//! | `lifetimes` | when the values of a plan die, by its graphs |
//! | `bisect` | each op on a reference's own inputs |
//! | `hidden`, `segments` | a reference's hidden states; the steps between two of them on the first |
//! | `diff` | two plans side by side |
//! | `html` | a plan as one page for a browser |
//! | `probe` | this machine's own reading speed over a working set |
//! | `roofline` | what this machine could do at best, beside what it did |
//! | `compare` | two programs in turn: ratios with intervals |
//! | `likelihood` | perplexity and bits per byte of a text |
//! | `kl` | how far two models' predictions are apart |
//! | `stats` | mean, deviation, standard error |
//! | `table` | Markdown and CSV |
//! | `trace` | a recorded run as a timeline |
//! | `units` | bytes and counts as people write them |
//! | `npy`, `npz` | arrays for NumPy, written and read; archives of them, read |
//!
//! Invariants
//! - nothing here prints, reads the clock of a session or looks at the environment;
//! - a prediction is a function of the plan alone.
//!
//! Deliberately absent: any model of caches. Predicted bytes are those that must move once a call.

pub mod bisect;
pub mod budget;
pub mod buffers;
pub mod classes;
pub mod compare;
pub mod cost;
pub mod diff;
pub mod hidden;
pub mod html;
pub mod kl;
pub mod layers;
pub mod lifetimes;
pub mod likelihood;
pub mod missed;
pub mod npy;
pub mod npz;
pub mod ops;
pub mod passes;
pub mod probe;
pub mod roofline;
pub mod segments;
pub mod stats;
pub mod table;
pub mod trace;
pub mod units;
