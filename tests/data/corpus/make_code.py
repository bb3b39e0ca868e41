#!/usr/bin/env python3
"""Makes calibration/code/*.txt and heldout_code/*.txt from packages of Debian 12, all under permissive licences.

    make_code.py        # in tests/data/corpus; needs apt-get, dpkg-deb and network

Calibration and held-out files come from different packages (SOURCES.md).
"""
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
GO = "usr/share/go-1.19/src/"
PYTHON = "usr/lib/python3/dist-packages/"
CARGO = "usr/share/cargo/registry/"
NLOHMANN = "usr/include/nlohmann/detail/"
STB = "usr/include/stb/"
NODE = "usr/share/nodejs/"

# File of the corpus: package, most characters of each of its files, the files.
CODE = {
    "calibration/code/go.txt": ("golang-1.19-src", 20000, [GO + f for f in (
        "encoding/json/decode.go", "net/http/transport.go", "strconv/ftoa.go", "text/template/exec.go")]),
    "calibration/code/python.txt": ("python3-flask", 26000, [PYTHON + "flask/" + f for f in (
        "app.py", "cli.py", "helpers.py", "sessions.py")]),
    "calibration/code/javascript.txt": ("node-lodash", 50000, [NODE + "lodash/lodash.core.js", NODE + "lodash/perf/perf.js"]),
    "calibration/code/rust.txt": ("librust-regex-dev", 30000, [CARGO + "regex-1.7.1/src/" + f for f in (
        "compile.rs", "exec.rs", "re_set.rs")]),
    "calibration/code/c.txt": ("libstb-dev", 30000, [STB + f for f in ("stb_ds.h", "stb_sprintf.h", "stb_image_write.h")]),
    "calibration/code/cpp.txt": ("nlohmann-json3-dev", 30000, [NLOHMANN + f for f in (
        "input/lexer.hpp", "json_pointer.hpp", "output/serializer.hpp")]),
    "heldout_code/python.txt": ("python3-requests", 36000, [PYTHON + "requests/" + f for f in (
        "models.py", "sessions.py", "utils.py", "adapters.py", "cookies.py")]),
    "heldout_code/rust.txt": ("librust-serde-json-dev", 36000, [CARGO + "serde_json-1.0.87/src/" + f for f in (
        "ser.rs", "value/de.rs", "read.rs", "map.rs")]),
    "heldout_code/javascript.txt": ("node-express", 30000, [NODE + "express/lib/" + f for f in (
        "response.js", "application.js", "request.js", "router/index.js", "router/route.js", "utils.js")]),
}


class Packages:
    """Debian packages, downloaded and unpacked once each."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def root(self, name):
        root = self.folder / name
        if not root.exists():
            subprocess.run(["apt-get", "download", name], cwd=self.folder, check=True)
            deb = next(self.folder.glob(f"{name}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
        return root


def records(packages):
    """Data as programs print it: JSON, CSV, key and value, one kind after the other."""
    zones = (packages.root("tzdata") / "usr/share/zoneinfo/zone1970.tab").read_text().splitlines()
    zones = [line.split("\t") for line in zones if not line.startswith("#")]
    rules = (packages.root("tzdata") / "usr/share/zoneinfo/tzdata.zi").read_text()
    codes = (packages.root("unicode-data") / "usr/share/unicode/UnicodeData.txt").read_text().splitlines()
    codes = [line.split(";") for line in codes]
    out = json.dumps([{"countries": z[0].split(","), "coordinates": z[1], "zone": z[2]} for z in zones[:130]], indent=2)
    out += "\n\n" + "\n".join(f'{{"code": "U+{c[0]}", "decimal": {int(c[0], 16)}, "name": "{c[1]}", "category": "{c[2]}"}}'
                              for c in codes[900:1150])
    out += "\n\nzone,countries,coordinates\n" + "\n".join(f"{z[2]},{z[0].replace(',', ' ')},{z[1]}" for z in zones[130:])
    out += "\n\n" + "\n".join(f"{c[1].lower().replace(' ', '_')} = {int(c[0], 16)}" for c in codes[8000:8150])
    return out + "\n\n" + rules[:14000]


def main():
    with tempfile.TemporaryDirectory() as folder:
        packages = Packages(folder)
        texts = {"calibration/code/data.txt": records(packages)}
        for name, (package, most, files) in CODE.items():
            root = packages.root(package)
            texts[name] = "\n\n".join((root / file).read_text()[:most] for file in files)
        for name, text in texts.items():
            path = HERE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
