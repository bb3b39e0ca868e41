#!/usr/bin/env python3
"""Writes the reference data of tests/engine/formats: vectors.json, tiny.gguf and tiny.safetensors.

Needs the PyPI packages gguf 0.19, numpy and safetensors 0.8. vectors.json holds, for each ggml type, raw blocks (hex) and what
gguf.quants.dequantize makes of them (hex of little-endian float32). The two small files hold the same blocks and a value
of every metadata type, written by the formats' own libraries.
"""

import json
import pathlib

import gguf
import numpy as np
import safetensors

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"]
# Where a block keeps its half-precision scales, as byte offsets.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
# Both zeros, subnormals, one, the ends of the range, and ordinary scales of weights.
HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x1234, 0x9876, 0x2A5B, 0xA1C3]
FOLDER = pathlib.Path(__file__).parent


def blocks_of(name, rng):
    """Raw bytes of a tensor [2, columns]: random codes under chosen scales."""
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if name == "F32":
        return rng.standard_normal((2, 32)).astype(np.float32).view(np.uint8)
    if elements == 1:  # every class of bit pattern but NaN, whose payload is nobody's promise
        bits = rng.integers(0, 1 << 16, (2, 96), dtype=np.uint16)
        bits[0, : len(HALVES)] = HALVES
        mask, inf = (0x7FFF, 0x7C00) if name == "F16" else (0x7FFF, 0x7F80)
        return np.where((bits & mask) > inf, bits & 0x83FF, bits).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (len(HALVES), size), dtype=np.uint8)
    for i, offset in enumerate(SCALES[name]):
        halves = np.roll(np.array(HALVES, np.uint16), i * 5)
        blocks[:, offset : offset + 2] = halves.reshape(-1, 1).view(np.uint8)
    return blocks.reshape(2, -1)


def main():
    rng = np.random.default_rng(20240607)
    raw = {name: blocks_of(name, rng) for name in TYPES}
    values = {}
    for name, data in raw.items():
        kind = gguf.GGMLQuantizationType[name]
        values[name] = gguf.quants.dequantize(data, kind).astype("<f4").reshape(2, -1)

    vectors = {
        name: {"shape": list(values[name].shape), "bytes": raw[name].tobytes().hex(), "values": values[name].tobytes().hex()}
        for name in TYPES
    }
    (FOLDER / "vectors.json").write_text(json.dumps(vectors, indent=1) + "\n")

    writer = gguf.GGUFWriter(FOLDER / "tiny.gguf", "test")
    writer.add_uint8("scalar.u8", 200)
    writer.add_int8("scalar.i8", -100)
    writer.add_uint16("scalar.u16", 60000)
    writer.add_int16("scalar.i16", -30000)
    writer.add_uint32("scalar.u32", 4000000000)
    writer.add_int32("scalar.i32", -2000000000)
    writer.add_uint64("scalar.u64", 1 << 63)
    writer.add_int64("scalar.i64", -(1 << 63))
    writer.add_float32("scalar.f32", 0.5)
    writer.add_float64("scalar.f64", 0.1)
    writer.add_bool("scalar.bool", True)
    writer.add_string("scalar.string", "Grüße")
    writer.add_array("array.string", ["", "a", "Ġthe"])
    writer.add_array("array.i32", [1, -2, 3])
    writer.add_array("array.f32", [0.5, -1.5])
    for name, data in raw.items():
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(f"weight.{name.lower()}", data if name != "F32" else data.view(np.float32), raw_dtype=kind)
    writer.add_tensor("three.dims", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    arrays = {
        "weight.f32": ("float32", [2, 32], raw["F32"]),
        "weight.f16": ("float16", [2, 96], raw["F16"]),
        "weight.bf16": ("bfloat16", [2, 96], raw["BF16"]),
        "sums.f64": ("float64", [3], np.array([0.1, -2.0, 1e300])),
        "codes.i8": ("int8", [5], np.array([-128, -1, 0, 1, 127], np.int8)),
        "scalar": ("int64", [], np.array(7, np.int64)),
        "empty": ("float32", [0, 4], np.zeros((0, 4), np.float32)),
    }
    specs = {
        name: safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=data.ctypes.data, data_len=data.nbytes)
        for name, (dtype, shape, data) in arrays.items()
    }
    (FOLDER / "tiny.safetensors").write_bytes(safetensors.serialize(specs, {"format": "pt", "note": "Grüße"}))


if __name__ == "__main__":
    main()
