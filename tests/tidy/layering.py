#!/usr/bin/env python3
"""Checks the tree against layers.toml: include edges, cycles, forbidden words, stray files, file lengths.

Usage: layering.py [BUILD_DIR]. Prints one line per violation and exits 1 if there is any. BUILD_DIR is a configured build
tree; with it, source files that nothing builds are violations too.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

CODE = {".h", ".cc", ".cu", ".cuh", ".inc"}
COUNTED = CODE | {".py", ".sh", ".proto"}
COMMENT = re.compile(
    r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*')", re.DOTALL)
RAW_STRING = re.compile(r'R"([^()\\ ]{0,16})\(.*?\)\1"', re.DOTALL)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


class Table:
    """layers.toml, with the questions that the checks ask."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = tomllib.load(file)
        self.layers = {row["path"]: row for row in data["layer"]}
        self.outside = {name: re.compile(pattern) for name, pattern in data["outside"].items()}
        self.forbid = data["forbid"]
        self.tree = data["tree"]

    def layer_of(self, path):
        """The row of a file: the longest row path that is a folder above it or the stem of its name."""
        rows = [row for row in self.layers if within(path, row)]
        return max(rows, key=len, default=None)

    def errors(self):
        for path, row in self.layers.items():
            for below in row["layers"]:
                if below not in self.layers:
                    yield f"layers.toml: row {path} may include {below}, which has no row"
        edges = {path: row["layers"] for path, row in self.layers.items()}
        for cycle in cycles(edges):
            yield f"layers.toml: rows in a circle: {' -> '.join(cycle)}"


def within(path, row):
    return path.startswith(row) and (len(path) == len(row) or path[len(row)] in "/._")


def blank(text):
    """Spaces for `text`, keeping its line breaks, so that line numbers stay true."""
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    text = RAW_STRING.sub(lambda match: '""' + blank(match[0]), text)
    return COMMENT.sub(lambda match: match[1] or blank(match[0]), text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def cycles(edges):
    """One cycle for each group of nodes that reach each other, as a list of nodes."""
    state, found, stack = {}, [], []

    def visit(node):
        state[node] = "open"
        stack.append(node)
        for child in edges.get(node, ()):
            if state.get(child) == "open":
                found.append(stack[stack.index(child):] + [child])
            elif child not in state:
                visit(child)
        stack.pop()
        state[node] = "done"

    for node in edges:
        if node not in state:
            visit(node)
    return found


def list_files(root):
    """Tracked files of a work tree; all files of a plain folder."""
    if (root / ".git").exists():
        names = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
        return sorted(name for name in names.split("\0") if name and (root / name).is_file())
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class Tree:
    """The files of a work tree and their text without comments."""

    def __init__(self, root):
        self.root = root
        self.files = list_files(root)
        self.code = {name: without_comments(self.read(name)) for name in self.files if is_code(name)}

    def read(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")


def is_code(name):
    return pathlib.PurePath(name).suffix in CODE


def project_path(bracket, include, folder, known):
    """The repository path that an include names, or None for an outside header."""
    if include.startswith("ridgefill/"):
        return "proto/" + include  # generated from the proto of that name
    if include.split("/")[0] in known:
        return include
    beside = f"{folder}/{include}"
    return beside if bracket == '"' and beside in known else None


def check_includes(tree, table):
    known = set(tree.files) | set(table.tree["code"]) | {"tests"}
    graph = {}
    for name, text in tree.code.items():
        layer = table.layer_of(name)
        folder = str(pathlib.PurePath(name).parent)
        graph[name] = []
        for match in INCLUDE.finditer(text):
            bracket, include = match.groups()
            target = project_path(bracket, include, folder, known)
            if target in tree.code:
                graph[name].append(target)
            problem = layer and include_problem(include, target, layer, table)
            if problem:
                yield f"{name}:{line_of(text, match.start())}: {problem}"
    for cycle in cycles(graph):
        yield f"{cycle[0]}: headers include each other: {' -> '.join(cycle)}"


def include_problem(include, target, layer, table):
    row = table.layers[layer]
    if target is None:
        groups = [name for name, pattern in table.outside.items() if pattern.search(include)]
        if not groups:
            return f"<{include}> belongs to no group of outside headers in layers.toml"
        if groups[0] != "standard" and groups[0] not in row["outside"]:
            return f"{layer} may not include <{include}> ({groups[0]})"
        return None
    target_layer = table.layer_of(target)
    if target_layer != layer and target_layer not in row["layers"]:
        return f"{layer} may not include \"{include}\" (it may include: {', '.join(row['layers']) or 'nothing'})"
    return None


def check_words(tree, table):
    texts = dict(tree.code)
    for name in tree.files:
        if name.endswith("CMakeLists.txt"):
            texts[name] = re.sub(r"#[^\n]*", "", tree.read(name))
    for name, text in texts.items():
        if name.split("/")[0] not in table.tree["code"]:
            continue
        for rule in table.forbid:
            allowed = any(within(name, place) or pathlib.PurePath(name).name == place for place in rule["only_in"])
            if allowed or (not is_code(name) and not rule.get("cmake")):
                continue
            first_of_line = {line_of(text, m.start()): m[0] for m in reversed(list(re.finditer(rule["pattern"], text)))}
            for line, word in sorted(first_of_line.items()):
                yield f"{name}:{line}: `{word.strip()}`: {rule['why']}"


def check_tree(tree, table):
    for name in tree.files:
        top = name.split("/")[0]
        if not top.startswith(".") and top not in table.tree["top_level"]:
            yield f"{name}: `{top}` is not an entry that the top level may have"
        if top in table.tree["code"] and is_code(name) and table.layer_of(name) is None:
            yield f"{name}: its folder has no row in layers.toml"
        if pathlib.PurePath(name).suffix in COUNTED:
            lines = tree.read(name).count("\n")
            if lines > table.tree["max_lines"]:
                yield f"{name}: {lines} lines, {table.tree['max_lines']} at most"
    page = tree.root / "docs/architecture.md"
    if page.exists():
        text = page.read_text(encoding="utf-8")
        for path in table.layers:
            if path not in ("proto", "services/transport/nccl") and f"`{path}/`" not in text:
                yield f"docs/architecture.md: its table has no row for `{path}/`, layers.toml has"


def check_built(tree, table, compiled):
    """Every source file is compiled, or belongs to another kind of build and is named in its CMakeLists.txt."""
    for name in tree.files:
        path = pathlib.PurePath(name)
        if path.suffix not in {".cc", ".cu"} or name in compiled:
            continue
        elsewhere = any(within(name, place) for place in table.tree["built_elsewhere"])
        build_list = str(path.parent / "CMakeLists.txt")
        words = re.findall(r"\w+", tree.read(build_list)) if elsewhere and build_list in tree.files else []
        if path.stem not in words and path.stem.removesuffix("_fuzz") not in words:
            yield f"{name}: nothing builds it"


def compiled_files(build, root):
    entries = json.loads((build / "compile_commands.json").read_text())
    paths = (pathlib.Path(entry["directory"], entry["file"]).resolve() for entry in entries)
    return {str(path.relative_to(root)) for path in paths if path.is_relative_to(root)}


def violations(root, table, compiled=None):
    tree = Tree(root)
    yield from table.errors()
    yield from check_includes(tree, table)
    yield from check_words(tree, table)
    yield from check_tree(tree, table)
    if compiled is not None:
        yield from check_built(tree, table, compiled)


def main():
    here = pathlib.Path(__file__).resolve().parent
    root = here.parent.parent
    compiled = compiled_files(pathlib.Path(sys.argv[1]).resolve(), root) if len(sys.argv) > 1 else None
    found = list(violations(root, Table(here / "layers.toml"), compiled))
    for line in found:
        print(line)
    print(f"layering: {len(found)} violation{'' if len(found) == 1 else 's'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
