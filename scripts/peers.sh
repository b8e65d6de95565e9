# Makes sure that `scripts/bench service` finds the servers it measures beside ours. Sourced by scripts/bench, in the root
# of the repository.
#
# They are built once, in the folder of what is built, and nowhere else: throttlecrab-server by cargo, with a protoc that is
# fetched as a Python package if there is none, and envoyproxy/ratelimit by Go, which is used if there is one. What cannot
# be built here is told, with why; the suite says then that it was not measured.
# shellcheck shell=bash

throttlecrab="throttlecrab-server@0.4.40"
protoc_packages="grpcio-tools==1.85.1 grpcio==1.85.1 protobuf==7.36.2 typing_extensions==4.16.0 setuptools==84.2.1"
ratelimit="v1.4.1-0.20260122083618-3fb702589d36"

absolute() {
    case "$1" in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}

PEERS=$(absolute "${CARGO_TARGET_DIR:-benches/target}/peers")
PEERS_VERSIONS="throttlecrab-server ${throttlecrab#*@}, envoyproxy/ratelimit $ratelimit"
export PEERS PEERS_VERSIONS

# It does not build without a protoc, though nothing of what is measured needs one.
find_protoc() {
    command -v protoc && return
    # shellcheck disable=SC2086 # one word per package
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install -q --upgrade --no-deps \
        --only-binary :all: --target "$PEERS/protoc" $protoc_packages >&2 || return
    printf '#!/bin/sh\nPYTHONPATH="%s" exec python3 -m grpc_tools.protoc "$@"\n' "$PEERS/protoc" > "$PEERS/protoc.sh"
    chmod +x "$PEERS/protoc.sh"
    echo "$PEERS/protoc.sh"
}

build_throttlecrab() {
    local protoc
    protoc=$(find_protoc) || return
    PROTOC="$protoc" CARGO_TARGET_DIR="$PEERS/building" cargo install --quiet --locked --root "$PEERS" "$throttlecrab"
}

build_ratelimit() {
    command -v go >/dev/null || { echo "there is no Go here to build it with"; return 1; }
    GOBIN="$PEERS/building" go install "github.com/envoyproxy/ratelimit/src/service_cmd@$ratelimit" || return
    mkdir -p "$PEERS/bin" && mv "$PEERS/building/service_cmd" "$PEERS/bin/ratelimit"
}

# Builds a peer unless it is there in this version. If it fails, the last line of what was said is kept, for the page.
ensure_peer() {
    local name=$1 version=$2 said="$PEERS/$1.said"
    [ -x "$PEERS/bin/$name" ] && [ "$(cat "$PEERS/$name.version" 2>/dev/null)" = "$version" ] && return
    echo "building $name $version" >&2
    mkdir -p "$PEERS"
    rm -f "$PEERS/bin/$name" "$PEERS/$name.why"
    if "$3" > "$said" 2>&1; then
        echo "$version" > "$PEERS/$name.version"
    else
        tail -n 1 "$said" > "$PEERS/$name.why"
        echo "$name could not be built: $(cat "$PEERS/$name.why")" >&2
    fi
}

ensure_peer throttlecrab-server "$throttlecrab" build_throttlecrab
ensure_peer ratelimit "$ratelimit" build_ratelimit
