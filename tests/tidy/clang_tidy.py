#!/usr/bin/env python3
"""Runs clang-tidy over every source file of a build tree; files that passed before and have not changed are skipped.

Usage: clang_tidy.py [--minutes N] BUILD_DIR [FILE...]

A pass is remembered under ~/.cache/ridgefill/clang-tidy by a digest of all that decides it: the file, the project
headers that it includes at any depth, its compile command, every .clang-tidy above it and clang-tidy's version. A
failure is never remembered. FILEs (paths from the root of the repository) limit the run to some; --minutes ends it
early, with a line about the files that were not reached: the next run goes on with them.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

import layering

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ridgefill/clang-tidy"
KEEP_DAYS = 30


class Digests:
    """Digest of a source file with all that decides clang-tidy's verdict on it."""

    def __init__(self, build):
        self.build = str(build)
        self.version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
        self.texts = {}

    def text(self, path):
        if path not in self.texts:
            self.texts[path] = path.read_bytes() if path.is_file() else b""
        return self.texts[path]

    def includes(self, path):
        """Project files that `path` includes; a generated header stands for all protos."""
        for match in layering.INCLUDE.finditer(self.text(path).decode(errors="replace")):
            if match[2].startswith("ridgefill/"):
                yield from (ROOT / "proto").rglob("*.proto")
            for candidate in (ROOT / match[2], path.parent / match[2]):
                if candidate.is_file():
                    yield candidate

    def closure(self, path):
        seen, todo = set(), [path]
        while todo:
            current = todo.pop()
            if current not in seen:
                seen.add(current)
                todo.extend(self.includes(current))
        return sorted(seen)

    def of(self, path, command):
        configs = [folder / ".clang-tidy" for folder in path.parents if folder.is_relative_to(ROOT)]
        digest = hashlib.sha256(self.version)
        digest.update(command.replace(self.build, "BUILD").replace(str(ROOT), "ROOT").encode())
        for part in self.closure(path) + configs:
            digest.update(f"\0{part.relative_to(ROOT)}\0".encode() + self.text(part))
        return digest.hexdigest()


def commands(build):
    """Source file -> compile command, for files of the repository (not generated ones)."""
    entries = json.loads((build / "compile_commands.json").read_text())
    found = {}
    for entry in entries:
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(ROOT) and not path.is_relative_to(build) and not path.is_relative_to(ROOT / "build"):
            found[path] = entry.get("command") or " ".join(entry["arguments"])
    return found


def check(build, path):
    """clang-tidy's complaints about a file; empty when it passes."""
    run = subprocess.run(
        ["clang-tidy", "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", str(path)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return "" if run.returncode == 0 else run.stdout + run.stderr


def prune():
    for mark in CACHE.iterdir():
        if mark.stat().st_mtime < time.time() - KEEP_DAYS * 86400:
            mark.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    build = args.build.resolve()
    only = {(ROOT / name).resolve() for name in args.files}
    CACHE.mkdir(parents=True, exist_ok=True)
    digests = Digests(build)
    todo = {}
    sources = {path: command for path, command in commands(build).items() if not only or path in only}
    for path, command in sources.items():
        mark = CACHE / digests.of(path, command)
        if mark.exists():
            mark.touch()
        else:
            todo[path] = mark
    print(f"clang-tidy: {len(sources)} files, {len(todo)} to check", flush=True)

    failed = not_reached = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(lambda p: check(build, p) if time.monotonic() < end else None, path): mark
                   for path, mark in todo.items()}
        for done in concurrent.futures.as_completed(running):
            if done.result() is None:
                not_reached += 1
            elif done.result():
                failed += 1
                print(done.result(), flush=True)
            else:
                running[done].touch()
    prune()
    print(f"clang-tidy: {failed} of {len(sources)} files with complaints, {not_reached} not reached in time")
    return 1 if failed or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
