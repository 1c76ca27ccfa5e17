#!/usr/bin/env python3
"""Writes base/, a sound model of a few kilobytes, and the inputs in corpus/ that fuzzing starts from.

usage: fuzz/make_seeds.py

They are made from the models and checkpoints of this repository, cut down to what fuzzing can change fast. Inputs that
fuzzing found have names of their own (`found-...`) and are left alone. Needs nothing but Python.
"""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
REFERENCE = ROOT / "tests" / "reference" / "data"
VARIANTS = ["distilbert", "modernbert", "roberta", "xlm-roberta"]


def keep(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# The model: a BERT with one layer. Its sizes are small and differ where they may.

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b", "##c", "we", "##b,", "of", "it", "."]
POSITIONS, TYPES = 8, 2


def config(width):
    return {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(WORDS), "hidden_size": width,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": width, "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS, "type_vocab_size": TYPES, "layer_norm_eps": 1e-12,
    }


def modern():
    """Its feed-forward blocks are gated: files hold two matrices as one, and two biases."""
    return {
        "model_type": "modernbert", "architectures": ["ModernBertModel"], "vocab_size": len(WORDS), "hidden_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "hidden_activation": "gelu",
        "max_position_embeddings": POSITIONS, "norm_eps": 1e-5, "mlp_bias": True,
    }


def tokenizer():
    special = [
        {"id": WORDS.index(word), "content": word, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for word in ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ]
    piece = lambda name, kind: {"SpecialToken": {"id": name, "type_id": kind}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    single = [piece("[CLS]", 0), text("A", 0), piece("[SEP]", 0)]
    named = {name: {"id": name, "ids": [WORDS.index(name)], "tokens": [name]} for name in ["[CLS]", "[SEP]"]}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single,
                           "pair": single + [text("B", 1), piece("[SEP]", 1)], "special_tokens": named},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: index for index, word in enumerate(WORDS)}},
    }


def shapes(width, names):
    """Every tensor of the model in one of the two ways to name them."""
    found = {names["words"]: [len(WORDS), width], names["positions"]: [POSITIONS, width], names["types"]: [TYPES, width]}
    for norm in names["norms"]:
        found |= {f"{norm}.weight": [width], f"{norm}.bias": [width]}
    for linear in names["linears"]:
        found |= {f"{linear}.weight": [width, width], f"{linear}.bias": [width]}
    return found


LAYER = "encoder.layer.0."
HUGGING_FACE = {
    "words": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "types": "embeddings.token_type_embeddings.weight",
    "norms": ["embeddings.LayerNorm", LAYER + "attention.output.LayerNorm", LAYER + "output.LayerNorm"],
    "linears": [LAYER + part for part in [
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "intermediate.dense", "output.dense"]],
}
GGUF = {
    "words": "token_embd.weight",
    "positions": "position_embd.weight",
    "types": "token_types.weight",
    "norms": ["token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"],
    "linears": ["blk.0." + part for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"]],
}

MODERN_GGUF = {
    "token_embd.weight": [len(WORDS), 32], "token_embd_norm.weight": [32], "blk.0.attn_qkv.weight": [96, 32],
    "blk.0.attn_output.weight": [32, 32], "blk.0.ffn_norm.weight": [32],
    "blk.0.ffn_up.weight": [32, 32], "blk.0.ffn_up.bias": [32], "blk.0.ffn_down.weight": [32, 16],
    "blk.0.ffn_down.bias": [32], "output_norm.weight": [32],
}


def count(shape):
    elements = 1
    for size in shape:
        elements *= size
    return elements


def values(kind, shape):
    numbers = [((index * 37) % 101 - 50) / 64 for index in range(count(shape))]
    match kind:
        case "F32":
            return struct.pack(f"<{len(numbers)}f", *numbers)
        case "F16":
            return struct.pack(f"<{len(numbers)}e", *numbers)
        case "BF16":
            return b"".join(struct.pack("<f", number)[2:] for number in numbers)
        case "Q8_0":
            blocks = [numbers[at:at + 32] for at in range(0, len(numbers), 32)]
            return b"".join(struct.pack("<e32b", 1 / 64, *[int(64 * number) for number in block]) for block in blocks)
        case _:
            return bytes(count(shape) * {"I64": 8, "U8": 1}[kind])


def safetensors(tensors, metadata=None):
    """`tensors`: name, kind and shape of each."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, kind, shape in tensors:
        part = values(kind, shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = compact(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


KINDS = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(tensors, version=3, alignment=32):
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("bert"),
        text("general.alignment") + struct.pack("<II", 4, alignment),
        text("bert.block_count") + struct.pack("<II", 4, 1),
        text("bert.attention.causal") + struct.pack("<IB", 7, 0),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ2f", 9, 6, 2, 0.5, 1.5),
    ]
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(pairs)) + b"".join(pairs)
    infos, data = b"", b""
    for name, kind, shape in tensors:
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), KINDS[kind], len(data))
        data += values(kind, shape)
        data += bytes(-len(data) % alignment)
    head += infos
    return head + bytes(-len(head) % alignment) + data


def seed_weights():
    named = shapes(8, HUGGING_FACE)
    for kind in ["F32", "F16", "BF16"]:
        keep("safetensors", f"bert-{kind.lower()}", safetensors([(n, kind, s) for n, s in named.items()]))
    prefixed = [("bert." + name, "F16" if len(shape) == 2 else "F32", shape) for name, shape in named.items()]
    keep("safetensors", "prefixed", safetensors(prefixed, {"format": "pt"}))
    few = [("a", "F32", [3]), ("b", "F16", [2, 32]), ("c", "I64", [1, 2]), ("d", "U8", []), ("e", "BF16", [0, 5])]
    keep("safetensors", "few", safetensors(few))
    keep("safetensors", "none", safetensors([]))
    keep("safetensors", "early-end", safetensors(few)[:-1])
    keep("safetensors", "long-header", struct.pack("<Q", 1 << 40) + b"{}")

    named = shapes(32, GGUF)
    quantized = [(name, "Q8_0" if len(shape) == 2 else "F32", shape) for name, shape in named.items()]
    keep("gguf", "bert-q8_0", gguf(quantized))
    modern = [(name, "Q8_0" if shape == [96, 32] else "F16", shape) for name, shape in MODERN_GGUF.items()]
    keep("gguf", "modern", gguf(modern))
    # Half of the bias is half a block.
    halves = [(name, "Q8_0" if "ffn_up" in name else kind, shape) for name, kind, shape in modern]
    keep("gguf", "modern-halves", gguf(halves))
    few = [("a", "F32", [3]), ("b", "Q8_0", [2, 32]), ("c", "BF16", [4, 1]), ("d", "F16", [])]
    keep("gguf", "few", gguf(few))
    keep("gguf", "version-2", gguf(few, version=2, alignment=8))
    keep("gguf", "none", gguf([]))
    keep("gguf", "early-end", gguf(few)[:-1])


def seed_configurations():
    one = config(8)
    classes = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "yes", "1": "no"}}
    keep("model_config", "bert", compact(one))
    keep("model_config", "classifier", compact(one | classes))
    keep("model_config", "counted", compact(one | {"architectures": ["BertForSequenceClassification"], "num_labels": 3}))
    for name in ["tiny-embed", "tiny-section"]:
        keep("model_config", name, compact(json.loads((ROOT / "models" / name / "config.json").read_text())))
    for name in VARIANTS + ["modernbert-rerank"]:
        keep("model_config", name, compact(json.loads((REFERENCE / name / "config.json").read_text())))
    sentence = {
        "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True, "max_seq_length": 6,
        "model_max_length": 1e30, "prompts": {"query": "a "}, "default_prompt_name": "query",
    }
    keep("model_config", "sentence", compact(sentence))
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for index, (kind, path) in enumerate(modules)]
    keep("model_config", "modules", compact(modules))

    for name in ["tiny-embed", "tiny-rerank", "tiny-section", "all-MiniLM-L6-v2"]:
        lines = (ROOT / "models" / name / "model.toml").read_text().splitlines()
        lines = [line.removeprefix("# ") if "=" in line.split("#")[0] or line.startswith("# ") else line for line in lines]
        said = [line for line in lines if "=" in line or line.startswith("[")]
        keep("model_toml", name, "\n".join(said) + "\n")
    keep("model_toml", "every-key", """schema = 1
task = "embed"
dtype = "int8"
length_max = 0x100
pooling = "cls"
normalize = false
default_prompt = "query"
share = 2.5
target_latency = "50ms"
max_linger = "1.5ms"
step_tokens_max = 8_192
load = "on_demand"
required = false
pinned = true
budget = { guaranteed = "100MiB", limit = "40%" }
prompts = { query = "query: ", "a \\u00e9" = '''
lines''' }
[source]
hub = "org/name"
revision = "v1"
[sha256]
"model.safetensors" = "abababababababababababababababababababababababababababababababab"
""")
    for name, source in {
        "path": 'path = "weights/of it"', "embedded": 'embedded = "tiny-embed"',
        "wheel": f'wheel = "a-package==1.0"\nsha256 = "{"ab" * 32}"\nfolder = "a/b"',
    }.items():
        keep("model_toml", name, f"schema = 1\n[source]\n{source}\n")
    keep("model_toml", "server", """address = "::1"
grpc_port = 0
drain_timeout = "90s"
token_file = "tokens"
admin_address = "127.0.0.1:8003"
tls_cert = "c.pem"
tls_key = "k.pem"
models = "repo"
cache_dir = "~/.cache/x"
memory_budget = "60%"
memory_safety = "auto"
batching = "fixed:8"
survey_share = 1e-2
queue_bytes_max = "1.5GiB"
device = "cuda:1"
fail_allocations = "random:0.5:7"
threads = 2
log_level = "info,plimsoll=debug"
model = ["a/b:f16", "small=tiny-embed:int8", "./x"]
""")
    keep("model_toml", "mistakes", 'a = 1979-05-27T07:32:00Z\nb = [1, {c = inf}]\n[x.y]\n"\\t" = ""\na.b = 1\n')


def seed_tokenizers():
    keep("tokenizer", "word-pieces", compact(tokenizer()))
    for name in VARIANTS:
        read = json.loads((REFERENCE / name / "tokenizer.json").read_text())
        model, most = read["model"], 48
        special = {token["content"] for token in read["added_tokens"]}
        if isinstance(model["vocab"], list):
            model["vocab"] = model["vocab"][:most]
        else:
            kept = sorted(model["vocab"], key=lambda word: (word not in special, len(word) > 1, model["vocab"][word]))
            letters, longer = [w for w in kept if len(w) == 1 and w.isascii()], [w for w in kept if len(w) > 1]
            kept = set([w for w in kept if w in special] + letters[:60] + longer[:most])
            model["vocab"] = {word: id for word, id in model["vocab"].items() if word in kept}
            model["merges"] = [m for m in model.get("merges", []) if {m[0], m[1], m[0] + m[1]} <= kept]
            if not model["merges"]:
                del model["merges"]
        keep("tokenizer", name, compact(read))
    # Every kind of part at least once, around the smallest model of each kind.
    models = {
        "words": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
        "bytes": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<0x00>": 3}, "merges": [["a", "b"]],
                  "dropout": None, "unk_token": "a", "fuse_unk": True, "byte_fallback": True, "ignore_merges": True,
                  "continuing_subword_prefix": "", "end_of_word_suffix": ""},
        "unigrams": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a", -1.5], ["ab", -2]],
                     "byte_fallback": False},
    }
    normalizers = [
        {"type": "NFD"}, {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "Nmt"},
        {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Replace", "pattern": {"String": "b"}, "content": "ab"}, {"type": "ByteLevel"},
    ]
    splits = [
        {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Isolated"}, {"type": "UnicodeScripts"},
        {"type": "CharDelimiterSplit", "delimiter": ","},
        {"type": "Split", "pattern": {"Regex": "(?i:'s)|\\p{L}+"}, "behavior": "MergedWithPrevious", "invert": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
    ]
    ends = {"words": {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]},
            "bytes": {"type": "RobertaProcessing", "sep": ["b", 1], "cls": ["a", 0], "trim_offsets": True,
                      "add_prefix_space": True},
            "unigrams": {"type": "Sequence", "processors": [
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}]}}
    for at, (name, model) in enumerate(models.items()):
        part = lambda parts: [parts[index] for index in range(len(parts)) if index % 3 == at]
        keep("tokenizer", name, compact({
            "version": "1.0", "truncation": {"max_length": 9, "strategy": "LongestFirst", "stride": 1, "direction": "Left"},
            "padding": {"strategy": {"Fixed": 7}, "direction": "Right", "pad_to_multiple_of": 8, "pad_id": 0,
                        "pad_type_id": 0, "pad_token": "a"},
            "added_tokens": [{"id": 5, "content": "<mask>", "single_word": True, "lstrip": True, "rstrip": True,
                              "normalized": True, "special": False}],
            "normalizer": {"type": "Sequence", "normalizers": part(normalizers)},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": part(splits)},
            "post_processor": ends[name],
            "decoder": {"type": "Sequence", "decoders": part(decoders)},
            "model": model,
        }))


def varint(value):
    value &= (1 << 64) - 1
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def field(number, value):
    """A field of a message: bytes and texts with their length, numbers as they are."""
    if isinstance(value, (str, bytes)):
        value = value.encode() if isinstance(value, str) else value
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3) + varint(value)


def parameters(number, **given):
    kinds = {bool: 1, int: 2, str: 3, float: 4}
    return b"".join(field(number, field(1, name) + field(2, field(kinds[type(value)], value)))
                    for name, value in given.items())


def tensor(name, kind, shape, contents=b"", **given):
    data = field(1, name) + field(2, kind) + field(3, b"".join(varint(size) for size in shape))
    return field(5, data + parameters(4, **given) + (field(5, contents) if contents else b""))


def raw(*texts):
    return field(7, b"".join(struct.pack("<I", len(text)) + text for text in texts))


def seed_messages():
    to = lambda model: field(1, model)
    texts = field(8, "web server") + field(8, "mail")
    keep("oip_tensors", "texts", to("tiny-embed") + tensor("TEXT", "BYTES", [2, 1], texts))
    keep("oip_tensors", "raw-texts", to("tiny-embed") + field(2, "1") + field(3, "id") + tensor("TEXT", "BYTES", [2])
         + field(6, field(1, "embedding") + parameters(2, binary_data=True)) + raw(b"web server", "é".encode()))
    keep("oip_tensors", "pair", to("tiny-rerank") + tensor("TEXT", "BYTES", [1], field(8, "a"))
         + tensor("TEXT_PAIR", "BYTES", [1], field(8, "b")) + parameters(4, truncate="end", priority=1, timeout=1000000))
    keep("oip_tensors", "raw-ids", to("tiny-section") + tensor("input_ids", "INT64", [1, 3])
         + tensor("attention_mask", "INT32", [1, 3]) + tensor("token_type_ids", "INT64", [1, 3])
         + field(7, struct.pack("<3q", 2, 77, 3)) + field(7, struct.pack("<3i", 1, 1, 0))
         + field(7, struct.pack("<3q", 0, 0, 1)))
    numbers = b"".join(varint(number) for number in [2, 77, 3])
    keep("oip_tensors", "ids", to("tiny-embed") + tensor("input_ids", "INT64", [1, 3], field(3, numbers))
         + tensor("attention_mask", "INT32", [1, 3], field(2, bytes([1, 1, 1])))
         + parameters(4, normalize=False, dimensions=5, prompt_name="query"))
    every = {1: bytes([1]), 2: bytes([1]), 3: bytes([1]), 4: bytes([1]), 5: bytes([1]), 6: bytes(4), 7: bytes(8), 8: b"a"}
    kinds = ["BOOL", "INT8", "INT64", "UINT16", "UINT64", "FP32", "FP64", "BYTES"]
    keep("oip_tensors", "kinds", to("tiny-embed")
         + b"".join(tensor("TEXT", kind, [1], field(number, every[number])) for kind, number in zip(kinds, every)))
    keep("oip_tensors", "huge-shape", to("tiny-embed") + tensor("input_ids", "FP16", [1 << 62, 1 << 62, -1]))
    keep("oip_tensors", "huge-length", to("tiny-embed") + tensor("TEXT", "BYTES", [1]) + field(7, b"\xff\xff\xff\x7fa"))

    def rest(name, model, message, data=b"", length=None):
        body = compact(message).encode()
        length = length or (str(len(body)) if data else "")
        keep("rest_infer", name, f"{model[0]}{length}\n".encode() + body + data)

    text = {"name": "TEXT", "datatype": "BYTES", "shape": [2, 1], "data": [["web"], ["é\n"]]}
    binary = lambda name, kind, shape, size: {
        "name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}}
    rest("texts", "embed", {"id": "7", "inputs": [text]})
    rest("pair", "rerank", {"inputs": [text, text | {"name": "TEXT_PAIR"}], "parameters": {"truncate": "start"}})
    rest("raw-texts", "section", {"inputs": [binary("TEXT", "BYTES", [1], 7)]}, b"\3\0\0\0web")
    rest("raw-ids", "embed", {
        "model_name": "tiny-embed", "model_version": "1", "parameters": {"binary_data_output": True, "timeout": 1000000},
        "inputs": [binary("input_ids", "INT64", [1, 2], 16), binary("attention_mask", "INT32", [1, 2], 8)],
        "outputs": [{"name": "embedding", "parameters": {"binary_data": True}}],
    }, struct.pack("<2q2i", 2, 3, 1, 1))
    rest("ids", "embed", {"inputs": [{"name": "input_ids", "datatype": "INT32", "shape": [1, 3], "data": [[2], [7, 3]]}]})
    rest("numbers", "embed", {"inputs": [text | {"datatype": "FP32", "data": [1, 2.5e3, -0.0]}, {
        "name": "x", "datatype": "BOOL", "shape": [], "data": [True]}], "parameters": {"a": -1, "b": 1.5, "c": "d"}})
    rest("late-length", "embed", {"inputs": [text]}, length="18446744073709551615")

    for at, (name, message) in enumerate([
        ("embed", {"inputs": ["web", "é"], "truncate": True, "truncation_direction": "Left", "normalize": False,
                   "prompt_name": "query", "dimensions": 3}),
        ("predict", {"inputs": [["a"], ["b", "c"]], "raw_scores": True, "parameters": {}}),
        ("rerank", {"query": "a", "texts": ["b", "🦀"], "return_text": True, "truncate": False}),
        ("tokenize", {"inputs": "web server", "add_special_tokens": False}),
        ("decode", {"ids": [[2, 77], [3]], "skip_special_tokens": False}),
        ("root", {"query": "a", "texts": ["b"]}),
        ("openai", {"model": "tiny-embed", "input": [[2, 77, 3], []], "encoding_format": "base64", "user": "u"}),
        ("index", {"ready": True}),
        ("load", {"parameters": {}}),
        ("unload", {"parameters": {"unload_dependents": True}}),
        ("trace", {"trace_level": None}),
        ("log", {}),
        ("similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "🦀"]}, "parameters": {"truncate": True}}),
        ("embedders-root", {"options": {"a": [1]}, "inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ]):
        keep("http_json", name, chr(ord("a") + at) + compact(message))
    keep("http_json", "one-text", 'a{"inputs":"\\ud83e\\udd80 \\u0000"}')
    keep("http_json", "ids", 'a{"inputs":[[2,77,3],[4294967295]]}')
    keep("http_json", "a-pair", 'b{"inputs":["a","b"]}')
    keep("http_json", "one-row", 'e{"ids":[2,77,3]}')
    keep("http_json", "floats", 'g{"model":"tiny-embed","input":"a","encoding_format":"float","dimensions":0}')


def main():
    base = HERE / "base"
    base.mkdir(exist_ok=True)
    (base / "config.json").write_text(compact(config(8)))
    (base / "config-32.json").write_text(compact(config(32)))
    (base / "config-modern.json").write_text(compact(modern()))
    (base / "tokenizer.json").write_text(compact(tokenizer()))
    tensors = [(name, "F32", shape) for name, shape in shapes(8, HUGGING_FACE).items()]
    (base / "model.safetensors").write_bytes(safetensors(tensors))
    seed_weights()
    seed_configurations()
    seed_tokenizers()
    seed_messages()


if __name__ == "__main__":
    main()
