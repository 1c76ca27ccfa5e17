#!/usr/bin/env python3
"""Writes BERT models of the usual sizes with random weights: enough to measure time and memory, with nothing to fetch.

usage: random_bert.py FOLDER NAME=SIZE[:DTYPE] ...
SIZE: base, large, minilm, and of ModernBERT modern-base, modern-large; DTYPE: as in model.toml, default f16

Each FOLDER/NAME gets model.toml, config.json, model.safetensors (f16) and a tokenizer, that of models/tiny-embed: its
vocabulary of 8,192 pieces is a part of the model's 30,522 or 50,368. Weights are normal with deviation 0.02, as BERT
starts out. Needs numpy.
"""
import json
import os
import shutil
import struct
import sys

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
# Width, layers, heads, inner width.
SIZES = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096), "minilm": (384, 6, 12, 1536)}
VOCABULARY, POSITIONS, TYPES = 30522, 512, 2
MODERN_SIZES = {"modern-base": (768, 22, 12, 1152), "modern-large": (1024, 28, 16, 2624)}
MODERN_VOCABULARY, MODERN_POSITIONS = 50368, 8192


def modern_shapes(width, layers, inner):
    """Name and shape of every tensor of a ModernBERT, which has no biases."""
    yield "embeddings.tok_embeddings.weight", (MODERN_VOCABULARY, width)
    yield "embeddings.norm.weight", (width,)
    for layer in range(layers):
        at = f"layers.{layer}."
        if layer > 0:
            yield at + "attn_norm.weight", (width,)
        yield at + "attn.Wqkv.weight", (3 * width, width)
        yield at + "attn.Wo.weight", (width, width)
        yield at + "mlp_norm.weight", (width,)
        yield at + "mlp.Wi.weight", (2 * inner, width)
        yield at + "mlp.Wo.weight", (width, inner)
    yield "final_norm.weight", (width,)


def modern_config(width, layers, heads, inner):
    return {
        "architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
        "hidden_activation": "gelu", "vocab_size": MODERN_VOCABULARY, "max_position_embeddings": MODERN_POSITIONS,
        "norm_eps": 1e-5, "global_attn_every_n_layers": 3, "local_attention": 128, "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    }


def shapes(width, layers, inner):
    """Name and shape of every tensor, in the order of the file."""
    yield "embeddings.word_embeddings.weight", (VOCABULARY, width)
    yield "embeddings.position_embeddings.weight", (POSITIONS, width)
    yield "embeddings.token_type_embeddings.weight", (TYPES, width)
    yield from norm("embeddings.LayerNorm", width)
    for layer in range(layers):
        at = f"encoder.layer.{layer}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from linear(at + "attention." + part, width, width)
        yield from norm(at + "attention.output.LayerNorm", width)
        yield from linear(at + "intermediate.dense", inner, width)
        yield from linear(at + "output.dense", width, inner)
        yield from norm(at + "output.LayerNorm", width)


def linear(name, outputs, inputs):
    return [(name + ".weight", (outputs, inputs)), (name + ".bias", (outputs,))]


def norm(name, width):
    return [(name + ".weight", (width,)), (name + ".bias", (width,))]


def write_weights(path, tensors):
    header, end = {}, 0
    for name, shape in tensors:
        start, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(7)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            if "norm" in name.lower():
                values = numpy.full(shape, 1.0 if name.endswith("weight") else 0.0)
            else:
                values = random.standard_normal(shape, dtype=numpy.float32) * 0.02
            file.write(values.astype(numpy.float16).tobytes())


def write_model(folder, size, dtype):
    modern = size in MODERN_SIZES
    width, layers, heads, inner = (SIZES | MODERN_SIZES)[size]
    os.makedirs(folder, exist_ok=True)
    config = modern_config(width, layers, heads, inner) if modern else {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": inner, "hidden_act": "gelu", "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS, "type_vocab_size": TYPES, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    }
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    shutil.copy(os.path.join(HERE, "..", "models", "tiny-embed", "tokenizer.json"), folder)
    tensors = (modern_shapes if modern else shapes)(width, layers, inner)
    write_weights(os.path.join(folder, "model.safetensors"), list(tensors))
    longest = MODERN_POSITIONS if modern else POSITIONS
    text = f'schema = 1\ntask = "embed"\ndtype = "{dtype}"\nlength_max = {longest}\n\n[source]\npath = "."\n'
    with open(os.path.join(folder, "model.toml"), "w", encoding="utf-8") as file:
        file.write(text)


def main(folder, *models):
    for model in models:
        name, _, kind = model.partition("=")
        size, _, dtype = kind.partition(":")
        if size not in SIZES | MODERN_SIZES:
            sys.exit(f"{model}: the sizes are {', '.join(SIZES | MODERN_SIZES)}")
        write_model(os.path.join(folder, name), size, dtype or "f16")
        print(f"{name}: BERT-{size}, {dtype or 'f16'}")


if len(sys.argv) < 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
