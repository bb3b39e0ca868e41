#!/usr/bin/env bash
# Installs what RidgeFill Serve needs from Debian 12's package registry. The one list of packages: quickstart.sh,
# tests/run.sh, .ci/run and the Dockerfile call it. docs/dependencies.md says what each is for.
set -euo pipefail

usage() {
  cat <<'END'
Usage: deploy/install_deps.sh [--build | --test | --runtime] [--print]

Installs Debian packages that are missing; does nothing, at once, when none is.

  --build     what compiling and deploy/quickstart.sh need (default)
  --test      --build, and what tests/run.sh and .ci/run need
  --runtime   only what the built programs need
  --print     print the packages of the chosen group, one a line, and install nothing

Runs as root, or through sudo where that exists.
END
}

build=(
  ca-certificates ccache cmake g++ git ninja-build pkg-config python3 python3-pip
  libabsl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  prometheus-cpp-dev libcivetweb-dev libssl-dev
  libhwy-dev libeigen3-dev libpcre2-dev libutf8proc-dev nlohmann-json3-dev libcli11-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
test=(clang clang-format clang-tidy libclang-rt-14-dev python3-venv shellcheck)
runtime=(
  libabsl20220623 libatomic1 libcivetweb1 libgrpc++1.51 libgrpc29 libpcre2-8-0 libprometheus-cpp-core1.0 libprotobuf32
  libssl3 libutf8proc2
)

fail() {
  printf 'install_deps.sh: %s\n' "$*" >&2
  exit 1
}

packages=("${build[@]}") print=no
for argument in "$@"; do
  case "$argument" in
    --build) packages=("${build[@]}") ;;
    --test) packages=("${build[@]}" "${test[@]}") ;;
    --runtime) packages=("${runtime[@]}") ;;
    --print) print=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown argument '$argument'" ;;
  esac
done

if [ "$print" = yes ]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

for tool in dpkg-query apt-get; do
  command -v $tool >/dev/null || fail "this is not Debian (no $tool); what is needed goes by these names there: ${packages[*]}"
done

# `dpkg-query` fails for names that it has never seen; the ones it knows are listed all the same.
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "these packages are missing, and installing them needs root or sudo: ${missing[*]}"
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=2 -o Acquire::http::Timeout=30 \
    -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}

echo "install_deps.sh: installing ${missing[*]}" >&2
# A failed update of some other registry on this machine is no matter as long as the install goes through.
apt update || true
if ! apt install -y --no-install-recommends "${missing[@]}"; then
  grep -E '^(E|W|Err)' "$log" | tail -n 8 >&2 || tail -n 8 "$log" >&2
  fail "apt-get could not install: ${missing[*]}. Is Debian's package registry reachable, and is this Debian 12?"
fi
