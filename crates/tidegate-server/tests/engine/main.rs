//! The engine, asked as the doors ask it.

mod asking;
mod reload;
mod support;
