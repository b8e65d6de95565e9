//! The peers, each in its default configuration.

pub(crate) mod governor;
pub(crate) mod limitador;
pub(crate) mod throttlecrab;
