"""What other runtimes reach on this CPU with the same model and the same texts, to run beside `plimsoll bench`.

usage: cpu.py MODEL_FOLDER TEXTS [--threads N] [--seconds S] [--json FILE]

MODEL_FOLDER is a Hugging Face folder of a sentence-transformers BERT model; TEXTS has one text a line, the same file
that `plimsoll bench --texts` sends. Each runtime embeds all texts from text to normalized vector, in batches sorted by length
(each one's best of several batch sizes), again and again for S seconds; the best batch size is found first.
Runtimes: sentence-transformers (PyTorch, f32) and onnxruntime (f32, all graph optimizations).
"""
import argparse, json, os, sys, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("texts")
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--json")
args = parser.parse_args()
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[name] = str(args.threads)
os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import onnxruntime
from tokenizers import Tokenizer
from transformers import AutoModel

torch.set_num_threads(args.threads)
LENGTH_MAX = 256
texts = [line.rstrip("\n") for line in open(args.texts, encoding="utf-8") if line.strip()]
tokenizer = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
tokenizer.enable_truncation(LENGTH_MAX)
tokenizer.no_padding()
real_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))


def batches(size):
    """Tokenizes everything and yields padded batches, the longest first."""
    encodings = sorted(tokenizer.encode_batch(texts), key=lambda encoding: -len(encoding.ids))
    for start in range(0, len(encodings), size):
        part = encodings[start : start + size]
        ids = np.zeros((len(part), len(part[0].ids)), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(part):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        yield ids, mask


def pool(hidden, mask):
    weights = mask[..., None].astype(np.float32)
    vectors = (hidden * weights).sum(1) / weights.sum(1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Torch:
    name = "pytorch (transformers, sdpa, f32)"

    def __init__(self):
        self.model = AutoModel.from_pretrained(args.model, attn_implementation="sdpa", dtype=torch.float32).eval()

    def run(self, size):
        with torch.inference_mode():
            for ids, mask in batches(size):
                hidden = self.model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state
                pool(hidden.numpy(), mask)


class Hidden(torch.nn.Module):
    """The model as a function of two tensors, which is all that the export understands."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


class Onnx:
    name = "onnxruntime (f32, all optimizations)"

    def __init__(self):
        model = AutoModel.from_pretrained(args.model, attn_implementation="eager", dtype=torch.float32).eval()
        path = os.path.join(tempfile.mkdtemp(), "model.onnx")
        sample = torch.ones((2, 8), dtype=torch.int64)
        torch.onnx.export(
            Hidden(model), (sample, sample), path, dynamo=False, opset_version=17,
            input_names=["input_ids", "attention_mask"], output_names=["hidden"],
            dynamic_axes={"input_ids": {0: "b", 1: "s"}, "attention_mask": {0: "b", 1: "s"}, "hidden": {0: "b", 1: "s"}},
        )
        optimized = path
        try:  # the transformer fusions (attention, gelu, layer norm) that onnxruntime does only on request
            from onnxruntime.transformers import optimizer
            fused = optimizer.optimize_model(path, model_type="bert", num_heads=model.config.num_attention_heads,
                                             hidden_size=model.config.hidden_size)
            optimized = path + ".fused.onnx"
            fused.save_model_to_file(optimized)
        except Exception as error:
            print("fusions not available:", error, file=sys.stderr)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.session = onnxruntime.InferenceSession(optimized, options, providers=["CPUExecutionProvider"])

    def run(self, size):
        for ids, mask in batches(size):
            (hidden,) = self.session.run(["hidden"], {"input_ids": ids, "attention_mask": mask})
            pool(hidden, mask)


report = {"texts": len(texts), "tokens": real_tokens, "threads": args.threads, "runtimes": {}}
for runtime in (Torch(), Onnx()):
    times = {}
    for size in (8, 16, 32, 64):
        start = time.perf_counter()
        runtime.run(size)
        times[size] = time.perf_counter() - start
    best = min(times, key=times.get)
    rounds, start = 0, time.perf_counter()
    while time.perf_counter() - start < args.seconds or rounds == 0:
        runtime.run(best)
        rounds += 1
    seconds = (time.perf_counter() - start) / rounds
    line = {"batch": best, "texts_per_s": len(texts) / seconds, "tokens_per_s": real_tokens / seconds}
    report["runtimes"][runtime.name] = line
    print(f"{runtime.name:40} batch {best:3}: {line['texts_per_s']:8.1f} texts/s {line['tokens_per_s']:10.0f} tokens/s")
if args.json:
    json.dump(report, open(args.json, "w"), indent=1)
