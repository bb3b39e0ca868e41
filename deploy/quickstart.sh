#!/usr/bin/env bash
# From a clean clone to an answer over a long prompt, exact and ridge-filled, through router, prefill and decode worker.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'END'
Usage: deploy/quickstart.sh [--port PORT]

Installs Debian packages that are missing, builds the `release` preset, fetches SmolLM2-135M-Instruct, fits its map set
once, starts the three programs on loopback, asks a question about a long document in mode EXACT and in mode SPEED,
prints both answers with their times to first token, and stops what it started.

  --port PORT   the first of six ports on 127.0.0.1: router, prefill and decode worker, then the metrics of each
                (default 50151)

Models, map sets and logs are kept under ${RIDGEFILL_HOME:-~/.cache/ridgefill}. About 15 minutes on two cores the first
time, under one minute after that.
END
}

fail() {
  printf 'quickstart.sh: %s\n' "$*" >&2
  exit 1
}

step() { printf '\n== %s\n' "$*"; }

port=50151
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --port) port=${2-}; shift ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
  esac
  shift || fail "--port needs a value"
done
if ! [[ $port =~ ^[1-9][0-9]{0,4}$ ]] || ((port > 65530)); then fail "--port must be in 1..65530, got '$port'"; fi

model=smollm2-135m-instruct
home=${RIDGEFILL_HOME:-$HOME/.cache/ridgefill}
maps=$home/maps/$model
logs=$home/logs
bin=build/release/bin
names=(prefill decode router)
declare -A address=([router]=127.0.0.1:$port [prefill]=127.0.0.1:$((port + 1)) [decode]=127.0.0.1:$((port + 2)))
declare -A metrics=([router]=$((port + 3)) [prefill]=$((port + 4)) [decode]=$((port + 5)))
declare -A pid=()

# Nothing of ours outlives this script, however it ends.
stop() {
  local name
  for name in "${!pid[@]}"; do kill -TERM "${pid[$name]}" 2>/dev/null || true; done
  for name in "${!pid[@]}"; do
    for _ in {1..100}; do
      kill -0 "${pid[$name]}" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "${pid[$name]}" 2>/dev/null || true
    wait "${pid[$name]}" 2>/dev/null || true
  done
  rm -rf "$work"
}
work=$(mktemp -d)
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

check_ports() {
  local candidate
  for candidate in $(seq "$port" $((port + 5))); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then
      fail "port $candidate on 127.0.0.1 is taken; choose six free ones with --port"
    fi
  done
}

fit_maps() {
  if [ -e "$maps/ridgefill.json" ]; then
    echo "have $maps"
    return
  fi
  # Beside its place until it is whole: an interrupted fit is never taken for a map set.
  mkdir -p "$home/maps"
  "$bin/ridgefill" fit --model $model --corpus tests/data/corpus/calibration --split 18 --out "$home/maps/.$model.partial"
  # Where a fit was interrupted there are rows and no map set; somebody may want to go on with them.
  if [ -e "$maps" ]; then
    local aside
    aside=$(mktemp -d "$home/maps/.$model.unfinished.XXXXXX")
    mv "$maps" "$aside"
    echo "moved the unfinished $maps to $aside"
  fi
  mv -T "$home/maps/.$model.partial" "$maps"
}

start() {
  local name=$1
  shift
  "$bin/ridgefill-$name" --model $model --listen "${address[$name]}" --metrics_listen "127.0.0.1:${metrics[$name]}" \
    --drain_seconds 1 "$@" >"$logs/$name.log" 2>&1 </dev/null &
  pid[$name]=$!
}

# First line of a GET, e.g. "HTTP/1.1 200 OK"; fails when nobody listens.
http_status() {
  (
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit
    printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
    IFS= read -r -t 5 line <&3
    printf '%s\n' "$line"
  ) 2>/dev/null
}

wait_ready() {
  local name=$1
  for _ in {1..600}; do
    if ! kill -0 "${pid[$name]}" 2>/dev/null; then
      tail -n 5 "$logs/$name.log" >&2
      fail "ridgefill-$name stopped at start; its log is $logs/$name.log"
    fi
    case $(http_status "${metrics[$name]}" /readyz || true) in *' 200 '*) return ;; esac
    sleep 0.1
  done
  fail "ridgefill-$name is not ready after 60 s; its log is $logs/$name.log"
}

check_ports

step 'packages'
deploy/install_deps.sh --build

step 'model'
deploy/fetch_model.sh

step 'build'
cmake --preset release >"$work/configure.log" || { cat "$work/configure.log" >&2; fail 'cmake could not configure'; }
cmake --build --preset release --target programs --parallel "$(nproc)" || fail 'the build failed'

step 'map set'
fit_maps

step 'start'
mkdir -p "$logs"
start prefill
start decode
start router --prefill_workers "${address[prefill]}" --decode_workers "${address[decode]}"
for name in "${names[@]}"; do wait_ready "$name"; done
for name in "${names[@]}"; do echo "ridgefill-$name on ${address[$name]}, metrics on 127.0.0.1:${metrics[$name]}"; done

# The router looks for its workers four times a second; its first answer shows that it has found them.
# Long enough that the decode worker does not prefill by itself: the answer shows that all three programs work.
wait_answer() {
  for _ in {1..50}; do
    generate --prompt "$(printf 'Hello. %.0s' {1..200})" --max_tokens 1 >"$work/answer" 2>&1 && return
    sleep 0.1
  done
  cat "$work/answer" >&2
  fail 'the router gives no answer'
}

# Greedy, so that two answers to one prompt differ by mode alone.
generate() { "$bin/ridgefill" generate --target "${address[router]}" --temperature 0 "$@" </dev/null; }

ask() {
  printf '\n-- %s\n' "$1"
  generate --mode "$1" --prompt_file "$work/prompt" --max_tokens 64 2>"$work/$1" ||
    { cat "$work/$1" >&2; fail "no answer in mode $1"; }
  cat "$work/$1"
}

ttft() { sed -n 's/.*time to first token \([0-9.]* s\).*/\1/p' "$work/$1"; }

step 'a question about a long document'
wait_answer
{
  head -c 30500 tests/data/corpus/heldout/katrine.txt # about 7,800 tokens
  printf '\n\nQuestion: In two sentences, who is Katrine and what happens to her?\n'
} >"$work/prompt"
ask EXACT
ask SPEED

printf '\ntime to first token: EXACT %s, SPEED %s\n' "$(ttft EXACT)" "$(ttft SPEED)"
