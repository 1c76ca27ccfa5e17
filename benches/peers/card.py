"""What PyTorch reaches on this GPU with encoders of the usual sizes and random weights, to run beside `plimsoll bench`.

usage: card.py [base] [large] [--batches 64,128,256,512] [--texts 4096] [--seconds S] [--dense]

Mixed lengths as `--lengths encode` has them (log-normal, mean 101 tokens, 4 to 512), sorted by length and padded batch by
batch, mean pooling over the real positions; the model alone: token ids are made on the GPU. f16, scaled-dot-product
attention of PyTorch's choice. One line for each size: the best of the batch sizes, in thousands of real tokens a second.
With --dense, instead, 128 rows of 128 tokens and 32 of 512, and what a large product and a large copy reach.
Needs torch and transformers.
"""
import argparse
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import BertConfig, BertModel

parser = argparse.ArgumentParser()
parser.add_argument("sizes", nargs="*", default=["base", "large"])
parser.add_argument("--batches", default="64,128,256,512")
parser.add_argument("--texts", type=int, default=4096)
parser.add_argument("--seconds", type=float, default=2.0, help="how long each batch size is timed at least")
parser.add_argument("--dense", action="store_true")
args = parser.parse_args()
# Width, layers, heads, inner width: those of random_bert.py.
SIZES = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096), "minilm": (384, 6, 12, 1536)}
SIGMA, MEAN, LONGEST = 0.8, 101, 512

torch.set_grad_enabled(False)
random = torch.Generator().manual_seed(1)
median = MEAN / torch.tensor(SIGMA**2 / 2).exp().item()
lengths = median * (SIGMA * torch.randn(args.texts, generator=random)).exp()
lengths = lengths.round().clamp(4, LONGEST).long().sort(descending=True).values


def encode(model, batch):
    for part in lengths.split(batch):
        longest = int(part[0])
        ids = torch.randint(0, 30_000, (len(part), longest), device="cuda")
        real = (torch.arange(longest) < part[:, None]).cuda()
        hidden = model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def median_time(run):
    """The median of as many runs as the time allows."""
    run()
    torch.cuda.synchronize()
    times, until = [], time.perf_counter() + args.seconds
    while len(times) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def dense(model, rows, length):
    """Tokens a second."""
    ids = torch.randint(0, 30_000, (rows, length), device="cuda")
    mask = torch.ones_like(ids)
    return rows * length / median_time(lambda: model(input_ids=ids, attention_mask=mask).last_hidden_state.mean(1))


def ceilings():
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    time = median_time(lambda: left @ right)
    source = torch.randn(1 << 29, device="cuda", dtype=torch.float16)
    target = torch.empty_like(source)
    copied = 4 * source.numel() / median_time(lambda: target.copy_(source))
    print(f"ceilings: f16 product of 8192 cubed {2 * 8192**3 / time / 1e12:.0f} TFLOP/s, copy {copied / 1e12:.2f} TB/s")


if args.dense:
    ceilings()
for size in args.sizes:
    width, layers, heads, inner = SIZES[size]
    config = BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner,
                        attn_implementation="sdpa")
    model = BertModel(config, add_pooling_layer=False).half().cuda().eval()
    if args.dense:
        for rows, length in ((128, 128), (32, 512)):
            print(f"{size} {rows} x {length}: {dense(model, rows, length) / 1e3:.0f} ktok/s", flush=True)
        continue
    rates = {batch: int(lengths.sum()) / median_time(lambda: encode(model, batch))
             for batch in map(int, args.batches.split(","))}
    best = max(rates, key=rates.get)
    print(f"{size} {rates[best] / 1e3:.0f} ktok/s in batches of {best}", flush=True)
    del model
