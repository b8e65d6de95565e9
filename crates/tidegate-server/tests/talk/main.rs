//! Conversations without sockets: bytes in, bytes out, on a clock that the test moves.

mod handshake;
mod lease;
mod parser;
mod rules;
mod support;
mod throttle;
