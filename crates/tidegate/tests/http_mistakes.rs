//! Mistakes in limits for HTTP that do not compile, and what the compiler says to do.

mod mistakes;

#[test]
fn mistakes_are_said_with_their_remedy() {
    mistakes::compare("ui_http");
}

#[test]
fn every_mistake_has_its_sentences_written_down() {
    mistakes::are_written_down("ui_http");
}
