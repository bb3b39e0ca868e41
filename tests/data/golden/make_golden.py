#!/usr/bin/env python3
"""Makes every file of this folder: tiny seeded checkpoints and the figures that tests/golden holds the engine to.

    python make_golden.py tiny                      # a minute
    python make_golden.py smollm2 --model FILE.gguf # SmolLM2-135M-Instruct Q4_1, about a quarter of an hour on two cores

Needs torch, transformers, tokenizers, gguf, numpy and safetensors; the versions used are written into each file's
metadata. All figures come from transformers in fp32: eager attention for the tiny checkpoints, SDPA for SmolLM2.
"""

import argparse
import importlib.metadata
import json
import pathlib
import warnings

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file as save_torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

warnings.filterwarnings("ignore", message=".*past_key_values.*")
HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parent / "corpus"
FORCED = 64
VERSIONS = {p: importlib.metadata.version(p) for p in ("torch", "transformers", "gguf")}


# --- figures -----------------------------------------------------------------------------------------------------------


def run(model, ids, cache):
    """Logits f32 [len(ids), vocab] of one more chunk."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0].float()


def last_logits(model, ids, cache, chunk=512):
    """Logits of the last of `ids` only, in chunks, so that no [tokens, vocab] is ever held."""
    for begin in range(0, len(ids), chunk):
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids[begin : begin + chunk]]), past_key_values=cache, use_cache=True,
                        logits_to_keep=1)
    return out.logits[0].float()


def greedy(model, prompt):
    """(tokens [FORCED], logits of the rows that chose them [FORCED, vocab])."""
    cache = transformers.DynamicCache(config=model.config)
    row = last_logits(model, prompt, cache)
    tokens, rows = [], []
    for _ in range(FORCED):
        rows.append(row[-1])
        tokens.append(int(row[-1].argmax()))
        row = run(model, tokens[-1:], cache)
    return tokens, torch.stack(rows)


def forced_figures(tokens, rows):
    top = torch.topk(rows, 2, dim=-1).values
    return {
        "forced": np.array(tokens, dtype=np.int32),
        "margin": (top[:, 0] - top[:, 1]).numpy(),
        "rms": rows.pow(2).mean(-1).sqrt().numpy(),
    }


# --- tiny checkpoints --------------------------------------------------------------------------------------------------

SMALL = dict(vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, rms_norm_eps=1e-5,
             bos_token_id=0, eos_token_id=2, pad_token_id=2)
PLAIN = {k: v for k, v in SMALL.items() if k != "head_dim"} | dict(hidden_size=64, intermediate_size=96)


def rope(theta, **scaling):
    return dict(rope_parameters=dict(rope_theta=theta, **(scaling or dict(rope_type="default"))))


TINY = {
    "llama": ("llama", PLAIN | rope(10000.0) | dict(tie_word_embeddings=True)),
    "llama-untied": ("llama", SMALL | rope(500000.0) | dict(num_key_value_heads=4, tie_word_embeddings=False)),
    "llama-llama3": ("llama", SMALL | rope(10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                           high_freq_factor=4.0, original_max_position_embeddings=128)
                     | dict(tie_word_embeddings=True)),
    "llama-linear": ("llama", SMALL | rope(10000.0, rope_type="linear", factor=4.0) | dict(tie_word_embeddings=True)),
    "qwen2": ("qwen2", SMALL | rope(1000000.0) | dict(rms_norm_eps=1e-6, tie_word_embeddings=True)),
    "qwen2-untied": ("qwen2", PLAIN | rope(10000.0) | dict(rms_norm_eps=1e-6, tie_word_embeddings=False)),
}

PRE_TOKENIZER = {  # GGUF name and how tokenizer.json says it
    "llama": ("smollm", lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                          pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "qwen2": ("qwen2", lambda: pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                                   r"|\s*[\r\n]+|\s+(?!\S)|\s+"), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
}
CHAT_TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
                 "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
                 "{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_tokenizer(arch):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = PRE_TOKENIZER[arch][1]()
    tokenizer.decoder = decoders.ByteLevel()
    text = (CORPUS / "calibration" / "prose" / "news-from-nowhere.txt").read_text()[:50000]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    assert tokenizer.get_vocab_size() == 320
    return tokenizer


def gguf_type(name):
    """A mixture that meets every kind of tensor in more than one encoding."""
    if name.endswith(("norm.weight", "bias")):
        return gguf.GGMLQuantizationType.F32
    if "layers." not in name:
        return gguf.GGMLQuantizationType.F16
    layer = int(name.split(".")[2])
    return [gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0,
            gguf.GGMLQuantizationType.BF16][(layer + len(name)) % 4]


def tiny_weights(model, seed):
    """Random weights, large enough that attention and position matter, already on the grid of gguf_type(). The branches'
    outputs are scaled down with depth, as GPT-2 starts, so that rounding is not amplified more than in a trained model."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, p in model.state_dict().items():
        shape = tuple(p.shape)
        if name == "model.norm.weight":  # of both signs, or a tied head would repeat its input
            w = rng.standard_normal(shape)
        elif name.endswith("norm.weight"):
            w = 1 + 0.2 * rng.standard_normal(shape)
        elif name.endswith("bias"):
            w = 0.3 * rng.standard_normal(shape)
        elif "embed" in name:
            w = 0.4 * rng.standard_normal(shape)
        else:
            gain = 1.3 if "q_proj" in name or "k_proj" in name else 0.5 if "o_proj" in name or "down_proj" in name else 1.0
            w = rng.standard_normal(shape) * shape[1] ** -0.5 * gain
        kind = gguf_type(name)
        w = gguf.quants.dequantize(gguf.quants.quantize(w.astype(np.float32), kind), kind).reshape(shape)
        state[name] = torch.from_numpy(np.ascontiguousarray(w, dtype=np.float32))
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return state


def old_rope(config):
    """rope_theta and rope_scaling, as transformers wrote them before version 5 and most checkpoints have them."""
    p = config.pop("rope_parameters")
    config["rope_theta"] = p.pop("rope_theta")
    if p["rope_type"] != "default":
        config["rope_scaling"] = {"type": p.pop("rope_type")} | p


def decided_weights(model, prompt):
    """Of the seeds 0, 1, ... the first whose greedy tokens fp32 decides by more than
    2 * 2^-8 sqrt(layers), well over what f32 activations may miss by (tests/golden/figures.h), and that does not just repeat itself: random weights are full of near ties, trained ones are not."""
    bound = 2 * 2**-8 * model.config.num_hidden_layers**0.5
    for seed in range(1000):
        state = tiny_weights(model, seed)
        tokens, rows = greedy(model, prompt)
        f = forced_figures(tokens, rows)
        if (f["margin"] > bound * f["rms"]).all() and len(set(tokens)) >= 8:
            print("seed", seed)
            return state, tokens, rows
    raise RuntimeError("no seed will do")


def write_hf(folder, model, state, tokenizer, sharded):
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config = {k: v for k, v in config.items() if v is not None and not k.startswith("_") and k != "transformers_version"}
    if folder.name not in ("llama-llama3", "qwen2"):
        old_rope(config)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        dict(bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2], chat_template=CHAT_TEMPLATE,
             add_bos_token=False, tokenizer_class="PreTrainedTokenizerFast"), indent=1) + "\n")
    dtype = {gguf.GGMLQuantizationType.F16: torch.float16, gguf.GGMLQuantizationType.BF16: torch.bfloat16}
    stored = {n: w.to(dtype.get(gguf_type(n), torch.float32)) for n, w in state.items()
              if not (n == "lm_head.weight" and model.config.tie_word_embeddings)}
    for n, w in stored.items():
        assert torch.equal(w.float(), state[n]), n
    if not sharded:
        save_torch(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, files = sorted(stored), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    where = {n: files[i % 2] for i, n in enumerate(names)}
    for f in files:
        save_torch({n: stored[n] for n in names if where[n] == f}, folder / f, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=1) + "\n")


def permute(w, heads):
    """Rows as llama.cpp's converter stores Q and K of `llama`: interleaved RoPE pairs."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def write_gguf(path, model, state, tokenizer, arch):
    c = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(c.vocab_size)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_rope_dimension_count(head_dim)
    if head_dim != c.hidden_size // c.num_attention_heads:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    rp = c.rope_parameters
    w.add_rope_freq_base(rp["rope_theta"])
    if rp["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rp["factor"])
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda x: x[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(PRE_TOKENIZER[arch][0])
    w.add_token_list([t for t, _ in vocab])
    w.add_token_types([gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t, _ in vocab])
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in merges])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)
    for name, t in state.items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        a, kind = t.numpy(), gguf_type(name)
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            a = permute(a, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads)
        w.add_tensor(gguf_name(name), gguf.quants.quantize(np.ascontiguousarray(a), kind), raw_dtype=kind)
    if rp["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(rp, head_dim), raw_dtype=gguf.GGMLQuantizationType.F32)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama3_divisors(rp, head_dim):
    """As llama.cpp's converter writes rope_freqs.weight."""
    out = []
    low, high = (rp["original_max_position_embeddings"] / rp[f"{k}_freq_factor"] for k in ("low", "high"))
    for f in 1.0 / rp["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim):
        wave = 2 * np.pi / f
        smooth = (rp["original_max_position_embeddings"] / wave - rp["low_freq_factor"]) / (
            rp["high_freq_factor"] - rp["low_freq_factor"])
        out.append(1.0 if wave < high else rp["factor"] if wave > low else 1 / ((1 - smooth) / rp["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def make_tiny():
    text = (CORPUS / "heldout" / "katrine.txt").read_text()
    for i, (name, (arch, config)) in enumerate(TINY.items()):
        cls = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
               "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM)}[arch]
        model = cls[1]._from_config(cls[0](**config), attn_implementation="eager", dtype=torch.float32).eval()
        tokenizer = tiny_tokenizer(arch)
        prompt = tokenizer.encode(text[5000 + 1000 * i : 6000 + 1000 * i]).ids[:200]
        state, tokens, rows = decided_weights(model, prompt)
        write_hf(HERE / "tiny" / name, model, state, tokenizer, sharded=name == "llama-untied")
        write_gguf(HERE / "tiny" / f"{name}.gguf", model, state, tokenizer, arch)

        ids = prompt + tokens[:-1]
        positions = [0, 1, 17, 63, 64, 65, 128, 150, 199, 230, len(ids) - 1]
        full = run(model, ids, transformers.DynamicCache(config=model.config))
        out = forced_figures(tokens, rows) | {
            "prompt": np.array(prompt, dtype=np.int32),
            "positions": np.array(positions, dtype=np.int32),
            "logits": full[positions].numpy(),
        }
        save_numpy(out, HERE / f"{name}.safetensors", metadata=VERSIONS)
        print(name, "logits rms", float(full.pow(2).mean().sqrt()), "distinct greedy", len(set(tokens)))


# --- SmolLM2 -----------------------------------------------------------------------------------------------------------

LENGTHS = [100, 127, 128, 129, 192, 256, 300, 384, 500, 512, 640, 800, 1000, 1200, 1500, 1800, 2048, 2600, 3200, 4000]
COLUMNS = 256  # of the vocabulary, evenly spaced
FIGURE_ROWS = [0, 1, 31, 63]  # of the forced rows
SHORT = 48  # rows of the reference backend's own check
SHORT_COLUMNS = 1024


def load_smollm2(path):
    """The dequantised weights of the GGUF in transformers' own module, checked against transformers' own GGUF reader."""
    reader = gguf.GGUFReader(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa").eval()
    by_gguf = {gguf_name(n): n for n in model.state_dict() if n != "lm_head.weight"}
    state, c = model.state_dict(), model.config
    for t in reader.tensors:
        name = by_gguf.pop(t.name)
        w = gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(d) for d in reversed(t.shape)])
        heads = c.num_attention_heads if "q_proj" in name else c.num_key_value_heads if "k_proj" in name else 0
        if heads:  # undo permute()
            w = w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
        assert np.array_equal(state[name].numpy(), w), name
    assert not by_gguf, by_gguf
    return model


def smollm2_prompts(path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    files = sorted((CORPUS / "heldout").glob("*.txt")) + sorted((CORPUS / "calibration").glob("*.txt"))
    for i, n in enumerate(LENGTHS):
        text = files[i % len(files)].read_text()
        ids = tokenizer.encode(text[20000 + 5000 * i :][: 8 * n + 2000], add_special_tokens=False)
        if i % 2:  # half of them as a chat
            head = tokenizer.encode("<|im_start|>user\n", add_special_tokens=False)
            ask = tokenizer.encode("\n\nWhat is this text about?<|im_end|>\n<|im_start|>assistant\n",
                                   add_special_tokens=False)
            ids = head + ids[: n - len(head) - len(ask)] + ask
        yield ids[:n]


def make_smollm2(path):
    model = load_smollm2(path)
    vocab = model.config.vocab_size
    columns = (np.arange(COLUMNS) * (vocab // COLUMNS)).astype(np.int32)
    out = {"columns": columns}
    for i, prompt in enumerate(smollm2_prompts(path)):
        assert len(prompt) == LENGTHS[i]
        tokens, rows = greedy(model, prompt)
        figures = forced_figures(tokens, rows) | {"prompt": np.array(prompt, dtype=np.int32)}
        figures["logits"] = rows[FIGURE_ROWS][:, columns].numpy()
        for key, value in figures.items():
            out[f"{i:02}.{key}"] = value.astype(np.uint16) if key in ("prompt", "forced") else value
        print(i, len(prompt), "rms", figures["rms"].mean(), "min margin", figures["margin"].min(), flush=True)
    out["figure_rows"] = np.array(FIGURE_ROWS, dtype=np.int32)
    short = list(out["00.prompt"][:SHORT])
    logits = run(model, [int(t) for t in short], transformers.DynamicCache(config=model.config))[[1, 15, SHORT - 1]]
    short_columns = np.arange(SHORT_COLUMNS) * (vocab // SHORT_COLUMNS)
    out["short.positions"] = np.array([1, 15, SHORT - 1], dtype=np.int32)
    out["short.columns"] = short_columns.astype(np.int32)
    out["short.logits"] = logits[:, short_columns].numpy()
    save_numpy(out, HERE / "smollm2.safetensors", metadata=VERSIONS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tiny", "smollm2"])
    parser.add_argument("--model", type=pathlib.Path, help="smollm2-135m-instruct.gguf")
    args = parser.parse_args()
    if args.what == "tiny":
        make_tiny()
    else:
        make_smollm2(args.model)


if __name__ == "__main__":
    main()
