"""deploy/quickstart.sh, with stand-ins for cmake and the programs: says what is wrong, and leaves nothing running.

Whether the real programs answer is for tests/e2e; here are the ways to fail that real ones do not offer at will.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import textwrap
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(os.environ.get("RIDGEFILL_HOME") or pathlib.Path.home() / ".cache/ridgefill")
MODEL = "smollm2-135m-instruct.gguf"

# A daemon that answers its probes, as the real ones do; what STUBS/<name> holds is done first.
DAEMON = """
    #!/usr/bin/env python3
    import http.server, pathlib, socket, sys, time
    name = pathlib.Path(sys.argv[0]).name
    order = pathlib.Path("STUBS", name)
    if order.exists():
        sys.exit(order.read_text())
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    grpc = socket.create_server(("127.0.0.1", int(flags["--listen"].split(":")[1])))
    class Probe(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/readyz" else 404)
            self.end_headers()
    http.server.HTTPServer(("127.0.0.1", int(flags["--metrics_listen"].split(":")[1])), Probe).serve_forever()
"""
CLI = """
    #!/usr/bin/env python3
    import pathlib, sys, time
    command, flags = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
    order = pathlib.Path("STUBS", command)
    if order.exists():
        exec(order.read_text())
    with open(pathlib.Path("STUBS", "calls"), "a") as calls:
        print(command, flags.get("--mode", ""), file=calls)
    if command == "generate":
        print("She is a girl.")
        print("[time to first token 1.500 s = admission 0.1]", file=sys.stderr)
    if command == "fit":
        out = pathlib.Path(flags["--out"])
        out.mkdir()
        (out / "ridgefill.json").write_text("{}")
"""


def free_ports():
    """The first of six free ports in a row."""
    for first in range(20000 + os.getpid() % 20000, 65000, 6):
        if not any(listening(first + offset) for offset in range(6)):
            return first
    raise RuntimeError("no six free ports in a row")


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Quickstart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "clone")
        self.stubs = pathlib.Path(folder.name, "stubs")
        self.home = pathlib.Path(folder.name, "home")
        self.port = free_ports()
        shutil.copytree(ROOT / "deploy", self.root / "deploy")
        (self.root / "tests").mkdir()
        (self.root / "tests/data").symlink_to(ROOT / "tests/data")
        self.stubs.mkdir()
        self.program(self.stubs / "cmake", "#!/bin/sh\n")
        for name in ("prefill", "decode", "router"):
            self.program(self.root / f"build/release/bin/ridgefill-{name}", DAEMON)
        self.program(self.root / "build/release/bin/ridgefill", CLI)
        (self.home / "models").mkdir(parents=True)
        (self.home / "models" / MODEL).symlink_to(CACHE / "models" / MODEL)

    def program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip().replace("STUBS", str(self.stubs)))
        path.chmod(0o755)

    def order(self, name, text):
        (self.stubs / name).write_text(text)

    def calls(self):
        calls = self.stubs / "calls"
        return calls.read_text().split("\n")[:-1] if calls.exists() else []

    def launch(self, *arguments):
        return subprocess.Popen(
            [str(self.root / "deploy/quickstart.sh"), *(arguments or ("--port", str(self.port)))],
            env=os.environ | {"PATH": f"{self.stubs}:{os.environ['PATH']}", "RIDGEFILL_HOME": str(self.home)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def run_script(self, *arguments):
        process = self.launch(*arguments)
        out, err = process.communicate(timeout=100)
        self.assert_nothing_runs(process)
        return process.returncode, out, err

    def assert_nothing_runs(self, process):
        with self.assertRaises(ProcessLookupError):
            os.killpg(process.pid, 0)

    def assert_fails(self, result, *parts):
        code, _, err = result
        self.assertNotEqual(code, 0)
        for part in parts:
            self.assertIn(part, err)

    def test_asks_in_both_modes_and_fits_once(self):
        for _ in range(2):
            code, out, err = self.run_script()
            self.assertEqual(code, 0, out + err)
            self.assertIn("time to first token: EXACT 1.500 s, SPEED 1.500 s\n", out)
            self.assertEqual(out.count("She is a girl."), 2)
        self.assertEqual(self.calls().count("fit "), 1)
        for mode in ("EXACT", "SPEED"):
            self.assertEqual(self.calls().count(f"generate {mode}"), 2)

    def test_unfinished_fit_is_moved_aside(self):
        maps = self.home / "maps" / MODEL.removesuffix(".gguf")
        maps.mkdir(parents=True)
        (maps / "00000.safetensors").write_text("rows")
        code, out, err = self.run_script()
        self.assertEqual(code, 0, out + err)
        self.assertEqual([path.name for path in maps.iterdir()], ["ridgefill.json"])
        (aside,) = maps.parent.glob(f".{maps.name}.unfinished.*/{maps.name}")
        self.assertEqual((aside / "00000.safetensors").read_text(), "rows")

    def test_bad_arguments(self):
        self.assert_fails(self.run_script("--port", "70000"), "--port must be in 1..65530, got '70000'")
        self.assert_fails(self.run_script("--port"), "--port needs a value")
        self.assert_fails(self.run_script("--fast"), "unknown argument '--fast'")

    def test_port_taken(self):
        with socket.create_server(("127.0.0.1", self.port + 4)):
            self.assert_fails(self.run_script(), f"port {self.port + 4} on 127.0.0.1 is taken")

    def test_corrupt_model(self):
        (self.home / "models" / MODEL).unlink()
        (self.home / "models" / MODEL).write_text("GGUF")
        self.assert_fails(self.run_script(), f"{MODEL} is corrupt: its sha256 is")
        self.assertEqual(self.calls(), [])

    def test_build_that_fails(self):
        self.program(self.stubs / "cmake", "#!/bin/sh\necho 'CMake Error: no compiler' >&2; exit 1\n")
        self.assert_fails(self.run_script(), "CMake Error: no compiler", "cmake could not configure")

    def test_fit_that_fails_leaves_no_map_set(self):
        self.order("fit", "sys.exit('fit: corpus too small')")
        self.assert_fails(self.run_script(), "fit: corpus too small")
        self.assertFalse((self.home / "maps/smollm2-135m-instruct").exists())

    def test_program_that_dies_at_start(self):
        self.order("ridgefill-decode", "maps: layer.19 is damaged")
        self.assert_fails(self.run_script(), "ridgefill-decode stopped at start", "maps: layer.19 is damaged")

    def test_router_without_workers(self):
        self.order("generate", "sys.exit('UNAVAILABLE: no worker')")
        self.assert_fails(self.run_script(), "UNAVAILABLE: no worker", "the router gives no answer")

    def test_answer_that_fails(self):
        self.order("generate", "if '--mode' in flags: sys.exit('INTERNAL: lost')")
        self.assert_fails(self.run_script(), "INTERNAL: lost", "no answer in mode EXACT")

    def test_interrupt(self):
        self.order("generate", "pathlib.Path('STUBS/asked').touch(); time.sleep(60)".replace("STUBS", str(self.stubs)))
        process = self.launch()
        while not (self.stubs / "asked").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        self.assert_nothing_runs(process)


if __name__ == "__main__":
    unittest.main()
