#!/usr/bin/env python3
"""Writes the seeds of the format fuzzers into tests/fuzz/corpus: small files, valid and nearly valid.

Needs nothing but Python; the valid seeds of the reference writers are the files that make_vectors.py made.
"""

import json
import pathlib
import shutil
import struct

HERE = pathlib.Path(__file__).parent
CORPUS = HERE.parent.parent / "fuzz" / "corpus"
BLOCK_BYTES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 14: (256, 210), 24: (1, 1), 30: (1, 2)}


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(values=(), tensors=(), alignment=32, version=3):
    """values: (key, type, payload); tensors: (name, dims, ggml type)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    for key, kind, payload in values:
        head += string(key) + struct.pack("<I", kind) + payload
    data = b""
    for name, dims, kind in tensors:
        data += bytes(-len(data) % alignment)
        head += string(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        head += struct.pack("<IQ", kind, len(data))
        count = 1
        for d in dims:
            count *= d
        elements, size = BLOCK_BYTES.get(kind, (1, 4))
        data += bytes(range(256)) * 4 if count // elements * size > 1024 else bytes(count // elements * size)
    return head + bytes(-len(head) % alignment) + data


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def gguf_seeds():
    u32, array = 4, 9
    one = struct.pack("<I", 1)
    write("gguf_fuzz", "empty", gguf())
    write("gguf_fuzz", "scalars", gguf([(f"k{t}", t, bytes(n)) for t, n in enumerate([1, 1, 2, 2, 4, 4, 4, 1])]))
    write("gguf_fuzz", "wide_scalars", gguf([(f"k{t}", t, bytes(7) + b"\x80") for t in (10, 11, 12)]))
    write("gguf_fuzz", "strings", gguf([("s", 8, string("text")), ("a", array, struct.pack("<IQ", 8, 2) + string("") + string("x"))]))
    write("gguf_fuzz", "arrays", gguf([(f"k{t}", array, struct.pack("<IQ", t, 2) + bytes(16)) for t in (10, 11, 12)]))
    write("gguf_fuzz", "nested_array", gguf([("a", array, struct.pack("<IQ", 9, 1) + bytes(16))]))
    write("gguf_fuzz", "huge_array", gguf([("a", array, struct.pack("<IQ", 4, 1 << 62))]))
    write("gguf_fuzz", "alignment_8", gguf([("general.alignment", u32, struct.pack("<I", 8))], [("a", [1], 0), ("b", [3], 0)], 8))
    write("gguf_fuzz", "alignment_0", gguf([("general.alignment", u32, bytes(4))]))
    write("gguf_fuzz", "plain_tensors", gguf([], [("a", [2, 3], 0), ("b", [4], 1), ("c", [1, 2, 3, 4], 30), ("d", [5], 24)]))
    write("gguf_fuzz", "quantized_tensors", gguf([], [("a", [32], 2), ("b", [32, 2], 3), ("c", [64], 8), ("d", [256], 12), ("e", [256], 14)]))
    write("gguf_fuzz", "wrapping_dims", gguf([], [("a", [1 << 32, 1 << 32], 99)]))
    write("gguf_fuzz", "duplicate_key", gguf([("a", u32, one), ("a", u32, one)]))
    write("gguf_fuzz", "big_endian", gguf(version=3 << 24))
    shutil.copyfile(HERE / "tiny.gguf", CORPUS / "gguf_fuzz" / "reference")


def safetensors_seeds():
    def file(header, data):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    target = "safetensors_fuzz"
    write(target, "empty", file({}, b""))
    write(target, "metadata", file({"__metadata__": {"format": "pt"}}, b""))
    write(target, "two", file({"a": entry("F32", [1, 2], 0, 8), "b": entry("BF16", [2], 8, 12)}, bytes(12)))
    write(target, "scalar", file({"a": entry("F64", [], 0, 8)}, bytes(8)))
    write(target, "zero_size", file({"a": entry("F16", [0, 3], 0, 0), "b": entry("I8", [3], 0, 3)}, bytes(3)))
    write(target, "overlap", file({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)))
    write(target, "hole", file({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 3, 5)}, bytes(5)))
    write(target, "wrap", file({"a": entry("F32", [1 << 32, 1 << 32], 0, 0)}, b""))
    write(target, "padded", file(b'{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}   ', bytes(8)))
    write(target, "long_header", struct.pack("<Q", 1 << 40) + b"{}")
    shutil.copyfile(HERE / "tiny.safetensors", CORPUS / target / "reference")


def json_seeds():
    seeds = {
        "object": b'{"a": {"b": [1, -2, 3.5e10]}, "c": null, "d": [true, false]}',
        "escapes": b'"\\u00e9\\ud83d\\ude00\\n\\"\\\\/"',
        "utf8": '["é", "日本", "👩‍💻"]'.encode(),
        "numbers": b"[0, -0, 1e5, 1E-5, 18446744073709551615, 18446744073709551616, -9223372036854775808]",
        "duplicate": b'{"a": 1, "a": 2}',
        "deep": b"[" * 70,
        "config": b'{"model_type": "llama", "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "eos_token_id": [1, 2]}',
        "index": b'{"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}',
        "bad_utf8": b'["\xff\xfe"]',
        "bom": b"\xef\xbb\xbf[]",
    }
    for name, data in seeds.items():
        write("json_fuzz", name, data)


if __name__ == "__main__":
    gguf_seeds()
    safetensors_seeds()
    json_seeds()
