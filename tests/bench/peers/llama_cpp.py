#!/usr/bin/env python3
"""EXACT prefill of RidgeFill beside llama.cpp on this machine, in one run.

  tests/bench/peers/llama_cpp.py [--model MODEL.gguf] [--lengths 512,2048] [--reps 5] [--ridgefill build/release/bin/ridgefill]

Builds llama.cpp once (from the source package llama-cpp-python on PyPI; about seven minutes on two cores), re-encodes
the model to the types that llama.cpp is fastest with, and lets both programs take turns: RidgeFill, then every type of
the peer, --reps rounds. Prints one JSON line per length: medians of both, the peer's best type, the ratio of the medians.
Needs g++, cmake and python3-venv (deploy/install_deps.sh --test); keeps everything under ~/.cache/ridgefill/peers.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile

VERSION = "0.3.36"
TYPES = ("BF16", "F16", "Q8_0")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "ridgefill/peers"
ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, stdin=subprocess.DEVNULL, **options)


def build_peer():
    """The folder with llama-bench and llama-quantize, built on first use."""
    source = CACHE / f"llama_cpp_python-{VERSION}/vendor/llama.cpp"
    binaries = source / "build/bin"
    if (binaries / "llama-bench").exists() and (binaries / "llama-quantize").exists():
        return binaries
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run(sys.executable, "-m", "venv", f"{scratch}/venv", stdout=sys.stderr)
        pip = f"{scratch}/venv/bin/pip"
        run(pip, "install", "--quiet", "scikit-build-core", "cmake", "ninja", stdout=sys.stderr)
        path = f"{scratch}/venv/bin:{os.environ['PATH']}"
        run(pip, "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", scratch,
            f"llama-cpp-python=={VERSION}", stdout=sys.stderr, env={**os.environ, "PATH": path})
        with tarfile.open(f"{scratch}/llama_cpp_python-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    off = [f"-DLLAMA_{name}=OFF" for name in
           ("OPENSSL", "CURL", "BUILD_UI", "USE_PREBUILT_UI", "BUILD_TESTS", "BUILD_EXAMPLES")]
    run("cmake", "-S", source, "-B", source / "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *off,
        stdout=sys.stderr)
    run("cmake", "--build", source / "build", "--parallel", os.cpu_count(), "--target", "llama-bench",
        "llama-quantize", stdout=sys.stderr)
    return binaries


def encodings(binaries, model):
    """The model as it is, and re-encoded to each of TYPES."""
    files = {"as given": model}
    for kind in TYPES:
        file = CACHE / f"{model.stem}.{kind}.gguf"
        if not file.exists():
            run(binaries / "llama-quantize", "--allow-requantize", "--pure", model, file, kind, stdout=sys.stderr,
                stderr=subprocess.DEVNULL)
        files[kind] = file
    return files


def peer_rate(binaries, file, length, threads):
    """Tokens per second of one prefill; flash attention on, the peer's best setting."""
    result = run(binaries / "llama-bench", "-m", file, "-t", threads, "-p", length, "-n", 0, "-fa", 1, "-r", 1, "-o",
                 "jsonl", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(result.stdout.splitlines()[0])["avg_ts"]


def own_rate(program, model, length, threads):
    result = run(program, "bench", "prefill", "--model", model, "--maps", "none", "--modes", "EXACT", "--lengths", length,
                 "--reps", 1, "--threads", threads, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(result.stdout.splitlines()[0])["tokens_per_s"]


def main():
    home = pathlib.Path(os.environ.get("RIDGEFILL_HOME", pathlib.Path.home() / ".cache/ridgefill"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=home / "models/smollm2-135m-instruct.gguf")
    parser.add_argument("--lengths", default="512,2048")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ridgefill", type=pathlib.Path, default=ROOT / "build/release/bin/ridgefill")
    args = parser.parse_args()
    binaries = build_peer()
    files = encodings(binaries, args.model.resolve())
    for length in map(int, args.lengths.split(",")):
        own, peer = [], {kind: [] for kind in files}
        for _ in range(args.reps):
            own.append(own_rate(args.ridgefill, args.model, length, args.threads))
            for kind, file in files.items():
                peer[kind].append(peer_rate(binaries, file, length, args.threads))
        medians = {kind: statistics.median(rates) for kind, rates in peer.items()}
        best = max(medians, key=medians.get)
        mine = statistics.median(own)
        print(json.dumps({
            "bench": "prefill_vs_llama_cpp", "model": args.model.stem, "prompt_tokens": length, "reps": args.reps,
            "threads": args.threads, "tokens_per_s": round(mine, 1), "range": [round(min(own), 1), round(max(own), 1)],
            "peer_best_type": best, "peer_tokens_per_s": round(medians[best], 1),
            "peer_range": [round(min(peer[best]), 1), round(max(peer[best]), 1)],
            "peer_types": {kind: round(rate, 1) for kind, rate in medians.items()}, "ratio": round(mine / medians[best], 3),
        }), flush=True)


if __name__ == "__main__":
    main()
