# shellcheck shell=bash
# What the scripts share. Sourced by them, never run.
#
# It installs only what dpkg does not have, and downloads only what is not in .cache/.

set -euo pipefail

# With --help, the comment at the head of the script is all that it prints.
if [[ ${1:-} == --help ]]; then
    awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
    exit 0
fi

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

# Where cargo leaves what it builds; a caller may have moved it.
TARGET=${CARGO_TARGET_DIR:-target}

# The second libfabric: a wheel of PyPI carries it. It is unpacked here and never installed into the system.
SECOND_LIBFABRIC=$ROOT/.cache/libfabric-2.5.1/data/lib/mpich/libfabric.so.1
SECOND_WHEEL="mpich==5.0.2 \
--hash=sha256:8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4 \
--hash=sha256:992ae6ebb0da97d49d7a67000ae8112da9a3825da1bb1e6f1d196428a0410f2d"

# Debian 12's packages, by what is to be done with them.
PACKAGES_RUN=(ca-certificates gcc libc6-dev libfabric1)
PACKAGES_TEST=("${PACKAGES_RUN[@]}" binutils libfabric-bin python3 python3-pip valgrind)
PACKAGES_CHECK=("${PACKAGES_TEST[@]}" libfabric-dev)

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# Those of the packages named that dpkg does not have.
missing_packages() {
    local name
    for name in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || printf '%s ' "$name"
    done
}

is_debian_12() (
    # shellcheck disable=SC1091
    . /etc/os-release 2>/dev/null && [[ ${ID:-} == debian && ${VERSION_ID:-} == 12 ]]
)

need_rust() {
    local tool
    for tool in cargo rustc "$@"; do
        command -v "$tool" >/dev/null || die "$tool is missing: install Rust 1.89 or newer (https://rustup.rs) with the components rustfmt and clippy."
    done
}

# Installs the missing ones of the packages named, or says in one sentence which they are.
need_packages() {
    [[ ${SKIP_SETUP:-0} != 1 ]] || return 0
    local missing
    missing=$(missing_packages "$@")
    missing=${missing% }
    [[ -n $missing ]] || return 0
    is_debian_12 ||
        die "this is not Debian 12, so install what its packages $missing hold by your own means, then run this again with SKIP_SETUP=1."
    [[ $(id -u) == 0 ]] || die "not root, so this cannot be done here: apt-get install $missing, then run this again."
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || say "apt-get update failed, trying with the lists at hand"
    # shellcheck disable=SC2086 # one word per package
    apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
        die "apt-get could not install $missing: see its message above."
}

# Unpacks the second libfabric, once: into the folder named, for the platform named, or for this machine.
need_second_libfabric() {
    local home=${1:-${SECOND_LIBFABRIC%/data/*}} platform=(${2:+--platform "$2"}) part
    [[ ! -d $home ]] || return 0
    say "fetching libfabric 2.5.1 (13 MB, into ${home#"$ROOT"/})"
    mkdir -p "$ROOT/.cache"
    part=$(mktemp -d "$ROOT/.cache/part.XXXXXX")
    printf '%s\n' "$SECOND_WHEEL" >"$part/requirements.txt"
    # Debian's own python: another one earlier in PATH may lack pip.
    if ! /usr/bin/python3 -m pip download --quiet --no-deps --only-binary=:all: "${platform[@]}" --require-hashes \
        -r "$part/requirements.txt" -d "$part" || ! /usr/bin/python3 -m zipfile -e "$part"/mpich-*.whl "$part/wheel"; then
        rm -rf "$part"
        die "pip could not fetch the wheel mpich==5.0.2, which carries libfabric 2.5.1: check the network, then run this again."
    fi
    mkdir "$part/whole"
    mv "$part"/wheel/mpich-*.data/data "$part"/wheel/mpich-*.dist-info/licenses "$part/whole/"
    # Whole or not at all: two runs at once may race here, and the loser keeps the winner's.
    mv -T "$part/whole" "$home" 2>/dev/null || [[ -d $home ]] || die "could not move libfabric 2.5.1 into $home."
    rm -rf "$part"
}

# Builds by cargo with the arguments given. The first time it compiles for minutes: cargo's own progress shows it on a terminal.
cargo_build() {
    local quiet=(--quiet)
    [[ ! -t 2 ]] || quiet=()
    say "building: minutes the first time, seconds later"
    cargo build "${quiet[@]}" "$@"
}

# What `run`, `test` or `check` needs beyond Rust.
set_up() {
    need_rust
    case $1 in
    run) need_packages "${PACKAGES_RUN[@]}" ;;
    test) need_packages "${PACKAGES_TEST[@]}" && need_second_libfabric ;;
    check) need_packages "${PACKAGES_CHECK[@]}" && need_second_libfabric && need_rust rustfmt cargo-clippy ;;
    *) die "there is no set-up for $1: run, test or check." ;;
    esac
}

# The commit that the plugin and the command show, for their build scripts. Sources without a repository have none, unless the caller knows it.
name_commit() {
    [[ -z ${IRONRAIL_COMMIT:-} && -e .git ]] || return 0
    IRONRAIL_COMMIT=$(git describe --always --abbrev=12 --dirty --exclude='*' 2>/dev/null) || return 0
    export IRONRAIL_COMMIT
}
