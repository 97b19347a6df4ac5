//! The plan checker.
