# Makes sure that there is a Rust new enough to build this. Sourced by the other scripts, in the root of the repository.
#
# An installed Rust is used as it is and never updated. Only where there is none, one is installed: with Debian's
# rustup package where the distribution has one, else with rustup's own installer.
# shellcheck shell=bash

wanted_rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@"
}

install_rust() {
    if command -v apt-get >/dev/null; then
        as_root apt-get update -q || true
        apt_install gcc libc6-dev ca-certificates curl || true
        apt_install rustup || true
    fi
    if command -v rustup >/dev/null; then
        rustup toolchain install stable --profile default && rustup default stable
    elif command -v curl >/dev/null; then
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default
    fi
}

ensure_rust() {
    export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    if ! command -v cargo >/dev/null; then
        echo "no cargo found; installing Rust" >&2
        install_rust >&2 || true
    fi
    if ! command -v cargo >/dev/null; then
        echo "Rust could not be installed here; install Rust $wanted_rust or later (https://rustup.rs) and run this again" >&2
        exit 1
    fi
    local found
    found=$(rustc --version | cut -d ' ' -f 2)
    if [ "$(printf '%s\n' "$wanted_rust" "$found" | sort -V | head -n 1)" != "$wanted_rust" ]; then
        echo "Rust $wanted_rust or later is needed, this is $found; try: rustup update stable" >&2
        exit 1
    fi
}

ensure_rust
