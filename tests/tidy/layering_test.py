"""The layering check catches what it is for: each test plants one violation in a small tree that is clean without it."""

import pathlib
import tempfile
import unittest

import layering

HERE = pathlib.Path(__file__).resolve().parent
CLEAN = {
    "CMakeLists.txt": "",
    ".gitignore": "",
    "engine/base/CMakeLists.txt": "ridgefill_library(SOURCES status.cc DEPS absl::status)",
    "engine/base/status.h": '#include <string>\n#include "absl/status/status.h"\n',
    "engine/base/status.cc": '#include "engine/base/status.h"\n',
    "engine/cache/block_pool.h": '// Not for gRPC, nor getenv.\n#include "engine/base/status.h"\n',
    "engine/model/arch/llama.h": 'const char* kName = "llama";\n',
    "engine/ridge/plan.h": "",
    "engine/sampling/sampler.h": "",
    "kernels/api/backend.h": '#include "engine/base/status.h"\n',
    "services/router/main.cc": '#include <grpcpp/grpcpp.h>\n#include "ridgefill/v1/generation.pb.h"\nauto* home = getenv("HOME");\n',
    "services/router/CMakeLists.txt": "ridgefill_program(NAME ridgefill-router SOURCES main.cc DEPS gRPC::grpc++)",
    "tests/engine/cache/a_test.cc": '#include "engine/cache/block_pool.h"\n#include <grpcpp/grpcpp.h>\n#include <gtest/gtest.h>\n',
}

COMPILED = {name for name in CLEAN if name.endswith(".cc")}


class LayeringTest(unittest.TestCase):
    def violations(self, planted):
        table = layering.Table(HERE / "layers.toml")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in (CLEAN | planted).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return list(layering.violations(root, table, COMPILED))

    def assert_caught(self, planted, *parts):
        found = self.violations(planted)
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])

    def test_clean_tree_passes(self):
        self.assertEqual(self.violations({}), [])

    def test_upward_include(self):
        self.assert_caught({"engine/base/clock.h": '\n#include "engine/cache/block_pool.h"\n'}, "engine/base/clock.h:2",
                           "engine/base may not include")

    def test_sideways_include(self):
        self.assert_caught({"engine/sampling/x.h": '#include "engine/ridge/plan.h"\n'}, "engine/sampling may not include")

    def test_include_relative_to_the_folder(self):
        self.assert_caught({"engine/ridge/CMakeLists.txt": "", "engine/ridge/x.h": '#include "engine/../services/a.h"\n'},
                           "engine/ridge may not include")

    def test_inherited_permission_is_no_permission(self):
        # scheduler may include ridge, and ridge kernels/api; the scheduler stays without a device.
        self.assert_caught({"engine/scheduler/x.h": '#include "kernels/api/backend.h"\n'}, "engine/scheduler may not include")

    def test_cycle_inside_a_folder(self):
        self.assert_caught({"engine/ridge/a.h": '#include "engine/ridge/b.h"\n', "engine/ridge/b.h": '#include "a.h"\n'},
                           "include each other")

    def test_outside_header_of_another_layer(self):
        self.assert_caught({"engine/cache/x.h": "#include <hwy/highway.h>\n"}, "engine/cache may not include <hwy/highway.h>")

    def test_cuda_header_outside_its_backend(self):
        self.assert_caught({"services/transport/local.h": "#include <cuda_runtime.h>\n"}, "(cuda)")
        self.assertEqual(self.violations({"services/transport/nccl.h": "#include <cuda_runtime.h>\n#include <nccl.h>\n"}), [])
        self.assertEqual(self.violations({"kernels/cuda/gemm.cuh": "#include <cublasLt.h>\n"}), [])

    def test_unknown_outside_header(self):
        self.assert_caught({"engine/cache/x.h": "#include <boost/any.hpp>\n"}, "no group of outside headers")

    def test_unknown_folder(self):
        self.assert_caught({"engine/helpers/x.h": ""}, "has no row")

    def test_grpc_below_services(self):
        self.assert_caught({"engine/cache/x.h": 'auto* name = "grpc";\n'}, "gRPC and protobuf end at services/")
        self.assert_caught({"engine/cache/CMakeLists.txt": "ridgefill_library(DEPS gRPC::grpc++)"}, "gRPC and protobuf")

    def test_architecture_name_outside_arch(self):
        self.assert_caught({"engine/runtime/x.h": '\nbool IsLlama();\n'}, "engine/runtime/x.h:2", "engine/model/arch/")

    def test_getenv_outside_main(self):
        self.assert_caught({"engine/cache/x.h": 'auto* x = std::getenv("X");\n'}, "main.cc alone")

    def test_std_string_view(self):
        self.assert_caught({"engine/cache/x.h": "void F(std::string_view text);\n"}, "absl::string_view")

    def test_conditional_compilation(self):
        self.assert_caught({"engine/cache/x.h": "#  ifdef __linux__\n"}, "conditional compilation")
        self.assertEqual(self.violations({"kernels/cpu/x.h": "#ifdef __AVX2__\n#include <immintrin.h>\n"}), [])

    def test_comment_hides_and_string_does_not(self):
        self.assertEqual(self.violations({"engine/cache/x.h": '/* getenv */ const char* a = "//"; // llama 1\'000 getenv\n'}), [])
        self.assert_caught({"engine/cache/x.h": 'const char* a = "// llama";\n'}, "engine/model/arch/")

    def test_file_that_nothing_builds(self):
        self.assert_caught({"tests/engine/cache/b_test.cc": ""}, "tests/engine/cache/b_test.cc", "nothing builds it")
        self.assert_caught({"tests/fuzz/CMakeLists.txt": "add_fuzzer(json)", "tests/fuzz/gguf_fuzz.cc": ""}, "gguf_fuzz.cc")
        self.assertEqual(
            self.violations({"tests/fuzz/CMakeLists.txt": "add_fuzzer(gguf)", "tests/fuzz/gguf_fuzz.cc": ""}), [])

    def test_top_level_entry(self):
        self.assert_caught({"scripts/x.txt": ""}, "`scripts`")

    def test_long_file(self):
        self.assert_caught({"engine/cache/x.h": "\n" * 801}, "801 lines")

    def test_row_that_the_page_lacks(self):
        found = self.violations({"docs/architecture.md": "| `engine/base/` |"})
        self.assertIn("its table has no row for `kernels/api/`", "\n".join(found))
        self.assertNotIn("`engine/base/`", "\n".join(found))

    def test_table_with_a_circle(self):
        table = layering.Table(HERE / "layers.toml")
        table.layers["engine/base"]["layers"].append("engine/cache")
        self.assertIn("rows in a circle", "\n".join(table.errors()))


if __name__ == "__main__":
    unittest.main()
