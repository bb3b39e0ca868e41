"""`ridgefill eval` as people run it: on the tiny model, with maps that the real `fit` made."""

import json
import os
import subprocess
import unittest

import harness as h

NLL = ["nll", "--documents", 4, "--length", 512, "--tail", 32, "--continuation", 16]
NEEDLE = ["needle", "--tasks", "single,json", "--items", 2, "--length", 2048, "--tail", 256]


def command(*arguments):
    model = [] if arguments[0] == "plot" else ["--model", h.TINY, "--maps", h.tiny_maps(), "--corpus", h.CORPUS, "--threads", 1]
    return list(map(str, [h.BIN / "ridgefill", "eval", *arguments, *model]))


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=h.PATIENCE,
                          env=dict(os.environ, RIDGEFILL_HOME=str(h.SCRATCH / "home")))


def records(text):
    return [json.loads(line) for line in text.splitlines()]


class Eval(unittest.TestCase):

    def done(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, says, *arguments):
        result = run(*arguments)
        self.assertGreater(result.returncode, 0, f"a status, no signal: {result.stderr}")
        self.assertIn(says, result.stderr)

    def out(self, name):
        path = h.SCRATCH / "eval" / name
        path.parent.mkdir(exist_ok=True)
        return path

    def test_loss_comes_for_every_fill_and_window(self):
        result = self.done(*NLL, "--mode", "SPEED,QUALITY", "--selectors", "attention,random", "--share", 0.1)
        cells = {(r["mode"], r["fill"], r["selection"], r["window"]) for r in records(result.stdout)}
        runs = [("SPEED", "ridge", "none"), ("SPEED", "identity", "none"), ("QUALITY", "ridge", "attention"),
                ("QUALITY", "ridge", "random")]
        self.assertEqual(cells, {(*run, window) for run in runs for window in ("tail", "continuation")})
        for record in records(result.stdout):
            self.assertEqual((record["measure"], record["documents"], len(record["values"])), ("nll", 4, 4))
            self.assertLessEqual(record["low"], record["mean"])
            self.assertLessEqual(record["mean"], record["high"])
        for run_name in ("ridge", "identity", "ridge, attention 0.1", "ridge, random 0.1"):
            self.assertRegex(result.stderr, rf"(SPEED|QUALITY) +{run_name} ")

    def test_records_of_every_measure_make_charts(self):
        out, plots = self.out("all.jsonl"), self.out("plots")
        self.done(*NLL, "--out", out)
        self.done(*NEEDLE, "--out", out)
        self.done("splice", "--documents", 2, "--length", 256, "--tail", 32, "--continuation", 16, "--out", out)
        self.assertEqual({r["measure"] for r in records(out.read_text())}, {"nll", "needle", "splice"})
        listed = self.done("plot", out, plots).stdout.split()
        self.assertEqual(sorted(listed), sorted(map(str, plots.iterdir())))
        names = {path.stem for path in plots.iterdir()}
        self.assertLessEqual({"distance-s2-t32-n512", "needle-json-bulk-s2", "splice-tail-s2-t32-n256"}, names)
        for path in plots.iterdir():
            self.assertTrue(path.read_text().endswith("</svg>\n"))

        nothing = self.out("nothing.jsonl")
        nothing.write_text("")
        self.refused("nothing to draw", "plot", nothing, plots)
        broken = records(out.read_text())
        del broken[0]["by_distance"][0]["mean"]
        nothing.write_text(json.dumps(broken[0]) + "\n")
        self.refused("line 1 is no record of a measure: its field by_distance/mean", "plot", nothing, plots)

    def test_an_interrupted_run_goes_on_and_gives_the_same_records(self):
        whole, cut, killed = self.out("whole.jsonl"), self.out("cut.jsonl"), self.out("killed.jsonl")
        partial = lambda path: path.with_name(path.name + ".partial")
        self.done(*NLL, "--out", whole)
        lines = partial(whole).read_bytes().splitlines(keepends=True)
        self.assertEqual(len(lines), 4)
        partial(cut).write_bytes(b"".join(lines[:2]) + lines[2][:100])
        self.assertIn("2 documents and items to run", self.done(*NLL, "--out", cut).stderr)
        self.assertEqual(partial(cut).read_bytes(), partial(whole).read_bytes())
        self.assertEqual(cut.read_bytes(), whole.read_bytes())

        program = subprocess.Popen(command(*NLL, "--out", killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        h.eventually(lambda: program.poll() is not None or partial(killed).exists() and partial(killed).stat().st_size > 0,
                     "a first document")
        program.kill()
        program.wait()
        self.done(*NLL, "--out", killed)
        self.assertEqual(killed.read_bytes(), whole.read_bytes())
        self.assertNotIn("to run", self.done(*NLL, "--out", killed).stderr, "all is there")

    def test_what_makes_no_sense_is_refused_by_name(self):
        self.refused("tail must be in [1, ", *NEEDLE[:-1], 0)
        self.refused("tail must be in [1, ", *NEEDLE[:-1], 2048)
        self.refused("tail (0, at least 2)", "nll", "--documents", 1, "--length", 512, "--tail", 0)
        self.refused("a length of 4096 tokens is above the model's context of 2048", "nll", "--length", 4096)
        self.refused("a length of 4096 tokens is above the model's context of 2048", "needle", "--length", 4096)
        self.refused("--context_tokens", *NLL, "--context_tokens", 512)

    def test_a_file_of_something_else_is_left_as_it_is(self):
        notes = self.out("notes.txt")
        for text in ("my notes", "my notes\n", '{"key": "of mine"}'):
            notes.write_text(text)
            self.refused("line 1 is not a JSON object with a key", *NLL, "--out", notes)
            self.assertEqual(notes.read_text(), text)


if __name__ == "__main__":
    h.main()
