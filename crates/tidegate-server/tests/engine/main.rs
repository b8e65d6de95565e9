//! The engine, asked as the doors ask it.

mod asking;
mod lending;
mod reload;
mod support;
