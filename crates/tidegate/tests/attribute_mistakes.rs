//! Mistakes in an attribute do not compile, and the compiler says what to do.

#![cfg(all(feature = "macros", feature = "tokio"))]

mod mistakes;

#[test]
fn mistakes_are_said_with_their_remedy() {
    mistakes::compare("ui");
}

#[test]
fn every_mistake_has_its_sentences_written_down() {
    mistakes::are_written_down("ui");
}
