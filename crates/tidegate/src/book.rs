//! The examples of the README and of the book, as tests. Only in the repository: a published crate has no `docs`.

macro_rules! pages {
    ($($name:ident = $path:literal),* $(,)?) => {
        $(#[doc = include_str!($path)] struct $name;)*
    };
}

pages! {
    Readme = "../../../README.md",
    ReadmeInChinese = "../../../README.zh-CN.md",
    Contents = "../../../docs/README.md",
    Choosing = "../../../docs/choosing.md",
    Quotas = "../../../docs/quotas.md",
    Decisions = "../../../docs/decisions.md",
    Keys = "../../../docs/keys.md",
    Clocks = "../../../docs/clocks.md",
    Changing = "../../../docs/changing.md",
    Pacing = "../../../docs/pacing.md",
    Waiting = "../../../docs/waiting.md",
    Concurrency = "../../../docs/concurrency.md",
    Policies = "../../../docs/policies.md",
    Http = "../../../docs/http.md",
    Testing = "../../../docs/testing.md",
}

#[cfg(feature = "macros")]
pages! { Attribute = "../../../docs/attribute.md" }
