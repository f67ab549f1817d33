# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own checkpointing on the stacks of benchmarks/models.hpp, measured as tradeoff_bench does.

Takes a model's name and a number of steps; prints JSON, a list with a row a policy: peak bytes of a
step and its time (one thread, processor time, medians of interleaved steps). With a third word,
"segments", the policies are checkpoint_sequential's, every number of segments.
"""
import json
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class GptBlock(nn.Module):
    def __init__(self, width=256, heads=8):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, seq, width = x.shape
        parts = self.qkv(x).view(batch, seq, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, seq, width)

    def forward(self, x):
        x = x + self.out(self.attend(self.norm1(x)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class MlpBlock(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class ResBlock(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        inside = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inside)) + x)


class LstmBlock(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.lstm = nn.LSTM(width, width)

    def forward(self, x):
        return self.lstm(x)[0]


MODELS = {
    "gpt": (GptBlock, 24, (4, 256, 256)),
    "mlp": (MlpBlock, 16, (2048, 128)),
    "resnet": (ResBlock, 8, (8, 16, 32, 32)),
    "lstm": (LstmBlock, 6, (64, 16, 128)),
    "small gpt": (lambda: GptBlock(192, 6), 16, (2, 128, 192)),
}


def even(count, parts):
    cuts = [0]
    for i in range(parts):
        cuts.append(cuts[-1] + count // parts + (1 if i < count % parts else 0))
    return list(zip(cuts, cuts[1:]))


def policies(count):
    """Name -> [(begin, end, checkpointed)], the last segment plain as Refrain leaves it."""

    def every(k):
        parts = [(i, min(i + k, count), True) for i in range(0, count, k)]
        return parts[:-1] + [(*parts[-1][:2], False)]

    root = [(a, b, True) for a, b in even(count, round(math.sqrt(count)))]
    return {
        "none": [(0, count, False)],
        "all": every(1),
        "every(1)": every(1),
        "every(2)": every(2),
        "every(4)": every(4),
        "every(8)": every(8),
        "sqrt_n": root[:-1] + [(*root[-1][:2], False)],
        "one_in(2)": [(i, i + 1, i % 2 == 0 and i < count - 1) for i in range(count)],
        "first(4)": [(i, i + 1, i < 4) for i in range(count)],
    }


def run(blocks, cut, x):
    if isinstance(cut, int):
        return checkpoint_sequential(list(blocks), cut, x, use_reentrant=False)
    for begin, end, quiet in cut:
        segment = nn.Sequential(*blocks[begin:end])
        x = checkpoint(segment, x, use_reentrant=False) if quiet else segment(x)
    return x


def step(blocks, cut, x, seed):
    run(blocks, cut, x).backward(seed)


def zero(blocks, x):
    for parameter in blocks.parameters():
        parameter.grad.zero_()
    x.grad = None


def peak_bytes(work):
    """The highest sum of what the CPU allocator gave out and took back, by the profiler's events."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def main():
    torch.set_num_threads(1)
    block, count, shape = MODELS[sys.argv[1]]
    repeats = int(sys.argv[2])
    torch.manual_seed(1)
    blocks = nn.ModuleList(block() for _ in range(count))
    x = torch.randn(shape, requires_grad=True)
    seed = torch.randn(shape)
    for parameter in blocks.parameters():
        parameter.grad = torch.zeros_like(parameter)
    cuts = policies(count)
    if sys.argv[3:] == ["segments"]:
        cuts = {"none": cuts["none"], **{f"checkpoint_sequential({n})": n for n in range(1, count + 1)}}
    times = {name: [] for name in cuts}
    peaks = {}
    for name, cut in cuts.items():
        step(blocks, cut, x, seed)
        zero(blocks, x)
        peaks[name] = peak_bytes(lambda: step(blocks, cut, x, seed))
    for _ in range(repeats):
        for name, cut in cuts.items():
            zero(blocks, x)
            begin = time.process_time()
            step(blocks, cut, x, seed)
            times[name].append(time.process_time() - begin)
    plain = statistics.median(times["none"])
    print(json.dumps([
        {"policy": name, "peak_bytes": peaks[name], "seconds": statistics.median(times[name]),
         "ratio": statistics.median(times[name]) / plain}
        for name in cuts
    ]))


main()
