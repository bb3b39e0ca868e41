"""Starts the real programs on loopback and talks to them with stubs made from the protos: what the tests of whole
processes share."""

import atexit
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("RIDGEFILL_BIN", ROOT / "build/dev/bin"))
# Sanitizers and a busy machine make everything slower, not different.
PATIENCE = float(os.environ.get("RIDGEFILL_PATIENCE", "150"))
TINY = ROOT / "tests/data/golden/tiny/llama"
CORPUS = ROOT / "tests/data/corpus/heldout"

SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="ridgefill-e2e-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

try:
    import grpc
    from grpc_tools import protoc
except ImportError as error:
    print(f"skipped: {error}; tests/run.sh makes an environment with tests/requirements.txt")
    sys.exit(77)


def generate_stubs():
    protos = [str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto")]
    out = SCRATCH / "stubs"
    out.mkdir()
    # The standard types (google/protobuf/any.proto) lie beside the compiler.
    standard = pathlib.Path(protoc.__file__).parent / "_proto"
    code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"-I{standard}", f"--python_out={out}", f"--grpc_python_out={out}", *protos])
    if code != 0:
        raise RuntimeError("protoc failed")
    # `google` is a package of the protobuf runtime and `grpc` one of grpcio: ours go beside them.
    import google
    google.__path__.append(str(out / "google"))
    grpc.__path__.append(str(out / "grpc"))
    sys.path.insert(0, str(out))


generate_stubs()

from google.rpc import error_details_pb2, status_pb2  # noqa: E402
from grpc.health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from ridgefill.v1 import decode_pb2, decode_pb2_grpc, generation_pb2, generation_pb2_grpc  # noqa: E402
from ridgefill.v1 import prefill_pb2, prefill_pb2_grpc  # noqa: E402

pb = generation_pb2
EXACT, SPEED, AUTO, QUALITY = (pb.FILL_MODE_EXACT, pb.FILL_MODE_SPEED, pb.FILL_MODE_AUTO, pb.FILL_MODE_QUALITY)


class Program:
    """One of the programs, running. Its log is read as it comes."""

    def __init__(self, name, *arguments, ready=True):
        environment = dict(os.environ, RIDGEFILL_HOME=str(SCRATCH / "home"))
        # A session of its own: Ctrl-C reaches the test alone, which then stops its programs.
        self.process = subprocess.Popen([str(BIN / name), *map(str, arguments)], stderr=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, text=True, env=environment, start_new_session=True)
        self.name = name
        self.lines = []
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        atexit.register(self.kill)
        if ready:
            self.port = self.wait_log("serving")["port"]
            self.address = f"127.0.0.1:{self.port}"

    def _read(self):
        for line in self.process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": "text", "text": line.rstrip()}
            with self.changed:
                self.lines.append(entry)
                self.changed.notify_all()
        with self.changed:
            self.lines.append({"event": "eof"})
            self.changed.notify_all()

    def wait_log(self, event, **fields):
        def found():
            for line in self.lines:
                if line["event"] == event and all(line.get(k) == v for k, v in fields.items()):
                    return line
                if line["event"] == "eof":
                    raise AssertionError(f"{self.name} ended: {self.lines[-20:]}")
            return None

        with self.changed:
            entry = self.changed.wait_for(found, PATIENCE)
        if entry is None:
            raise AssertionError(f"{self.name}: no {event} {fields} in its log: {self.lines[-20:]}")
        return entry

    def log(self, event):
        with self.changed:
            return [line for line in self.lines if line["event"] == event]

    def text(self):
        with self.changed:
            return "\n".join(line.get("text", json.dumps(line)) for line in self.lines)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()

    def wait(self):
        return self.process.wait(PATIENCE)

    def stop(self):
        """SIGTERM; anything but exit status 0 fails the test: a sanitizer's finding, too."""
        if self.process.poll() is None:
            self.terminate()
        code = self.wait()
        if code != 0:
            raise AssertionError(f"{self.name} exited with {code}:\n{self.text()[-4000:]}")


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def prefill(*arguments, model=TINY, **kwargs):
    return Program("ridgefill-prefill", "--model", model, "--listen", "127.0.0.1:0", "--threads", 1, *arguments,
                   **kwargs)


def decode(*arguments, model=TINY, **kwargs):
    if "--kv_memory_mb" not in arguments:
        arguments += ("--kv_memory_mb", 32)
    return Program("ridgefill-decode", "--model", model, "--listen", "127.0.0.1:0", "--threads", 1, *arguments,
                   **kwargs)


def slow_decode(*arguments, **kwargs):
    """On the scalar backend, so that 1900 tokens take seconds: time enough to interfere."""
    return decode("--backend", "reference", *arguments, **kwargs)


def router(prefill_workers, decode_workers, *arguments, model=TINY, **kwargs):
    workers = ["--decode_workers", ",".join(w if isinstance(w, str) else w.address for w in decode_workers)]
    if prefill_workers:
        workers += ["--prefill_workers", ",".join(w if isinstance(w, str) else w.address for w in prefill_workers)]
    # Short prompts go through the prefill worker too: most of what is tested here are short prompts.
    return Program("ridgefill-router", "--model", model, "--listen", "127.0.0.1:0", "--local_max_tokens", 4, *workers,
                   *arguments, **kwargs)


@contextlib.contextmanager
def running(*programs):
    """Stops them at the end, whatever happens; fails when one does not end well."""
    try:
        yield programs
    except BaseException:
        for program in programs:
            program.kill()
            print(f"--- {program.name}\n{program.text()[-3000:]}", file=sys.stderr)
        raise
    for program in programs:
        program.stop()


_maps = None


def tiny_maps(split=2):
    """A map set for the tiny model of 4 layers, split 1 or 2; both fitted once by the real command."""
    global _maps
    if _maps is None:
        _maps = SCRATCH / "maps"
        command = [BIN / "ridgefill", "fit", "--model", TINY, "--corpus", CORPUS, "--split", "1,2", "--rows", 4096,
                   "--document_tokens", 1024, "--held_out", 1, "--tail", 32, "--tail_minimum", 16, "--min_bulk", 32,
                   "--threads", 1, "--out", _maps]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _maps / f"split-{split}"


def stub(program_or_address):
    address = getattr(program_or_address, "address", program_or_address)
    return generation_pb2_grpc.GenerationServiceStub(grpc.insecure_channel(address))


def token_prompt(count, seed=1):
    """Ids of the tiny model's vocabulary that are no special tokens, the same for the same seed."""
    state = seed * 2654435761 % 2**32
    ids = []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        ids.append(10 + (state >> 8) % 300)
    return ids


def request(prompt=100, mode=EXACT, max_tokens=8, seed=1, **options):
    """Greedy, without an end of its own; `prompt` is a length, a text or a list of ids."""
    if isinstance(prompt, int):
        prompt = token_prompt(prompt, seed)
    out = pb.GenerateRequest(mode=mode)
    if isinstance(prompt, str):
        out.text = prompt.encode()
    else:
        out.tokens.ids.extend(prompt)
    out.sampling.temperature = 0
    out.stop.max_tokens = max_tokens
    out.stop.ignore_eos = True
    for name, value in options.items():
        if isinstance(value, int):
            setattr(out, name, value)
        else:
            getattr(out, name).MergeFrom(value)
    return out


class Answer:
    """All messages of one call, put together."""

    def __init__(self, call):
        self.started = self.finished = None
        self.text, self.tokens, self.messages = "", [], 0
        for message in call:
            self.messages += 1
            kind = message.WhichOneof("event")
            if kind == "started":
                assert self.started is None and self.messages == 1, "Started is the first message"
                self.started = message.started
            elif kind == "delta":
                assert self.started is not None and self.finished is None
                self.text += message.delta.text
                self.tokens += message.delta.tokens
            else:
                self.finished = message.finished
        self.metadata = dict(call.initial_metadata())

    @property
    def ids(self):
        return [token.id for token in self.tokens]


def ask(service, *args, timeout=None, metadata=None, **kwargs):
    built = args[0] if args and isinstance(args[0], pb.GenerateRequest) else request(*args, **kwargs)
    return Answer(service.Generate(built, timeout=timeout or PATIENCE, metadata=metadata))


class Error:
    """What a client learns from a failed call."""

    def __init__(self, error):
        self.code = error.code()
        self.message = error.details()
        self.reason, self.domain, self.metadata, self.fields, self.retry = None, None, {}, [], None
        trailing = dict(error.trailing_metadata() or ())
        if "grpc-status-details-bin" not in trailing:
            return
        status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
        assert status.code == self.code.value[0]
        for detail in status.details:
            info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                self.reason, self.domain, self.metadata = info.reason, info.domain, dict(info.metadata)
            elif detail.Unpack(bad):
                self.fields = [violation.field for violation in bad.field_violations]
            elif detail.Unpack(retry):
                self.retry = retry.retry_delay.ToTimedelta().total_seconds()

    def __repr__(self):
        return f"{self.code} {self.reason} {self.fields}: {self.message}"


def error_of(work):
    """Runs `work`, which must fail with an RPC error."""
    try:
        result = work()
    except grpc.RpcError as error:
        return Error(error)
    raise AssertionError(f"no error, but {result}")


def eventually(condition, what):
    """Waits until `condition()` is true; returns its value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true: {what}")
        time.sleep(0.02)


def http_get(address, path):
    """(status code, body); 0 when nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metrics(address):
    """{'name{labels}': value} of a program's /metrics."""
    code, body = http_get(address, "/metrics")
    assert code == 200, code
    out = {}
    for line in body.splitlines():
        match = re.match(r"^([a-z_0-9]+(?:\{.*\})?) (\S+)$", line)
        if match:
            out[match[1]] = float(match[2])
    return out


def describe_decode(worker):
    with grpc.insecure_channel(worker.address) as channel:
        return decode_pb2_grpc.DecodeServiceStub(channel).DescribeDecode(decode_pb2.DescribeDecodeRequest(), timeout=10)


def describe_prefill(worker):
    with grpc.insecure_channel(worker.address) as channel:
        return prefill_pb2_grpc.PrefillServiceStub(channel).DescribePrefill(prefill_pb2.DescribePrefillRequest(),
                                                                            timeout=10)


def all_blocks_free(worker):
    state = describe_decode(worker)
    return state.blocks_free == state.blocks_total and state.running == 0 and state.queued == 0


def main():
    unittest.main(verbosity=2)
