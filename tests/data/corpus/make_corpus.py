#!/usr/bin/env python3
"""Makes what this corpus does not have from books and encyclopedias (SOURCES.md).

    make_corpus.py        # needs apt-get, dpkg-deb and network

calibration/code/*.txt and heldout_code/*.txt are cut from packages of Debian 12, all under permissive licences;
calibration and held-out files come from different packages. calibration/lookup/lookup.txt is made up: notes of
an office hidden in calibration prose, and later questions with their answers, so that rows which hold a fact
are looked back at.
"""
import json
import pathlib
import random
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


NAMES = ("Abel Brook", "Clara Finch", "Dora Hale", "Edwin Marsh", "Flora Kent", "George Lund", "Hester Vance", "Ivo Quill",
         "Jonas Reed", "Lydia Stone", "Martin Poole", "Nora Webb", "Oscar Tate", "Paula Crane", "Ralph Dunn", "Sarah Moss")
THINGS = ("boiler", "ledger", "telescope", "printing press", "canal lock", "pump house", "archive", "workshop", "greenhouse",
          "observatory", "warehouse", "reading room", "kiln", "weather station", "signal box", "tannery")
COLOURS = ("red", "blue", "grey", "white", "black", "brown", "yellow", "violet")
TOWNS = ("Ashford", "Brinley", "Calder", "Denholm", "Elmstead", "Farley", "Gorton", "Harwick", "Ilford", "Kelby", "Lorton", "Marden")

# A fact with its subject and value; a question; the answer. {s} is one of several alike subjects, {v} its value.
FACTS = (
    ("The serial number of the {s} is {v}.", "What is the serial number of the {s}?", "It is {v}."),
    ("For the record, {s} can be reached at {v}.", "At which number can {s} be reached?", "{s} can be reached at {v}."),
    ("Parcel {v} is addressed to {s}.", "Which parcel is addressed to {s}?", "Parcel {v}."),
    ("The account of {s} stands at {v} pounds.", "How much is in the account of {s}?", "{v} pounds."),
    ("{s}: locker {v}", "Which locker has {s}?", "Locker {v}."),
    ("The {s} opened in {v}.", "When did the {s} open?", "In {v}."),
    ("The key of the {s} hangs in {v}.", "Where does the key of the {s} hang?", "In {v}."),
    ("Note: the password for the {s} was changed to {v}.", "What is the password for the {s}?", "The password is {v}."),
)


def values(rng, kind):
    if kind == 1:
        return f"{rng.randrange(100, 1000)}-{rng.randrange(1000, 10000)}"
    if kind == 4:
        return f"{rng.choice('ABCDEFGH')}{rng.randrange(10, 1000)}"
    if kind == 5:
        return str(rng.randrange(1640, 1990))
    if kind == 6:
        return rng.choice(TOWNS)
    if kind == 7:
        return "".join(rng.choice("abcdefghkmnprstuvwxyz") for _ in range(4)) + str(rng.randrange(10, 100))
    digits = rng.randrange(3, 9)
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def lookups(prose, blocks):
    """Blocks of some 2,000 tokens: sentences with facts of a few kinds among them, several alike of each; then questions."""
    rng = random.Random(7)
    sentences = [s.strip() + "." for s in " ".join(prose.split()).split(". ") if 40 < len(s) < 240]
    at, out = 0, []
    for _ in range(blocks):
        facts = []
        for kind in rng.sample(range(len(FACTS)), 3):
            people = kind in (1, 2, 3, 4)
            subjects = rng.sample(NAMES, 4) if people else [f"{rng.choice(COLOURS)} {t}" for t in rng.sample(THINGS, 4)]
            facts += [(kind, s, values(rng, kind)) for s in subjects]
        told = rng.sample(facts, len(facts))
        text = []
        for kind, subject, value in told:
            count = rng.randrange(2, 5)
            text += sentences[at:at + count]
            at = (at + count) % (len(sentences) - 50)
            text.append(FACTS[kind][0].format(s=subject, v=value))
        body = " ".join(text + sentences[at:at + 8])
        at += 8
        asked = rng.sample(facts, 8)
        questions = "\n".join(f"Question: {FACTS[k][1].format(s=s)}\nAnswer: {FACTS[k][2].format(s=s, v=v)}" for k, s, v in asked)
        out.append(body + "\n\n" + questions)
    return "\n\n".join(out) + "\n"


def main():
    with tempfile.TemporaryDirectory() as folder:
        packages = Packages(folder)
        texts = {"calibration/code/data.txt": records(packages)}
        for name, (package, most, files) in CODE.items():
            root = packages.root(package)
            texts[name] = "\n\n".join((root / file).read_text()[:most] for file in files)
        prose = (HERE / "calibration/prose/news-from-nowhere.txt").read_text()
        texts["calibration/lookup/lookup.txt"] = lookups(prose[60000:], 64)
        for name, text in texts.items():
            path = HERE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
