"""cmake/commit.cmake: what was measured with one build is never taken for another's."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "cmake/commit.cmake"


class Commit(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.source = self.folder / "source"
        (self.source / "engine/fit").mkdir(parents=True)
        (self.source / "CMakeLists.txt").write_text("project(x)\n")
        self.code = self.source / "engine/fit/fit.cc"
        self.code.write_text("one\n")

    def name(self):
        out = self.folder / "commit.cc"
        subprocess.run(["cmake", f"-DSOURCE={self.source}", "-DVERSION=1.2.3", f"-DOUT={out}", "-P", SCRIPT], check=True,
                       env={"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(self.folder)})
        return re.search(r'return "(.*)";', out.read_text())[1]

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.source, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True,
                       capture_output=True)

    def test_without_a_clone_the_sources_tell_builds_apart(self):
        one = self.name()
        self.assertRegex(one, r"^1\.2\.3-[0-9a-f]{12}$")
        self.assertEqual(self.name(), one)
        self.code.write_text("two\n")
        self.assertNotEqual(self.name(), one)

    def test_every_state_of_a_changed_tree_has_its_own_name(self):
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "first")
        clean = self.name()
        self.assertRegex(clean, r"^1\.2\.3-[0-9a-f]{12}$")
        names = {clean}
        for text in ("two\n", "three\n"):
            self.code.write_text(text)
            self.assertRegex(self.name(), rf"^{clean}-dirty-[0-9a-f]{{12}}$")
            names.add(self.name())
        (self.source / "engine/fit/more.cc").write_text("not added yet\n")
        names.add(self.name())
        self.assertEqual(len(names), 4)
        self.git("checkout", "--quiet", ".")
        self.assertEqual(self.name(), clean, "a file that git does not know is no part of a commit's build")


if __name__ == "__main__":
    unittest.main()
