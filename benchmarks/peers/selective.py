# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's selective checkpointing on the blocks of selective_bench.

Takes the number of steps, prints JSON rows: bytes that a forward keeps, time against a plain step.
"""
import functools
import gc
import json
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

TOKENS, WIDTH, HEADS = 1024, 768, 24
aten = torch.ops.aten
MATMULS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
ATTENTION = {aten._scaled_dot_product_flash_attention_for_cpu.default}


class Core(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))

    def forward(self, q, k, v):
        scores = torch.matmul(q * (1 / math.sqrt(q.size(-1))), k.transpose(-2, -1))
        scores = scores.masked_fill(self.mask, -1e9)
        return torch.matmul(torch.softmax(scores, -1), v)


class Block(nn.Module):
    def __init__(self, fused, quiet_core=False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.core, self.fused, self.quiet_core = Core(), fused, quiet_core

    def attend(self, x):
        q, k, v = (
            self.qkv(x)
            .view(1, TOKENS, 3, HEADS, WIDTH // HEADS)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.quiet_core:
            mixed = checkpoint(self.core, q, k, v, use_reentrant=False)
        else:
            mixed = self.core(q, k, v)
        return mixed.transpose(1, 2).reshape(x.shape)

    def forward(self, x):
        h = x + self.out(self.attend(self.norm1(x)))
        return h + self.down(nn.functional.gelu(self.up(self.norm2(h))))


def keeping(block, ops):
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in ops else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return lambda x: checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def kept_bytes(way, x):
    """Allocated less freed during a forward: what the profiler's memory records say."""
    gc.collect()
    with torch.profiler.profile(profile_memory=True) as profiler:
        y = way(x)
        size = y.untyped_storage().nbytes()
    total = sum(
        event.self_cpu_memory_usage if hasattr(event, "self_cpu_memory_usage") else 0
        for event in profiler.events()
    )
    return total - size


def measure(title, ways, repeats):
    x = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    seed = torch.randn(1, TOKENS, WIDTH)

    def step(way):
        way(x).backward(seed)

    kept = {}
    for name, way in ways.items():
        step(way)
        kept[name] = kept_bytes(way, x)
    times = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            begin = time.process_time()
            step(way)
            times[name].append(time.process_time() - begin)
    plain = next(iter(ways))
    return [
        {
            "what": f"{title}: {name}",
            "kept_bytes": kept[name],
            "saved": 1 - kept[name] / kept[plain],
            "step": statistics.median(times[name]) / statistics.median(times[plain]),
        }
        for name in ways
    ]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    eager, core, fused = Block(False), Block(False, quiet_core=True), Block(True)
    whole = lambda block: lambda x: checkpoint(block, x, use_reentrant=False)
    rows = measure(
        "written out",
        {
            "plain": eager,
            "replay all": whole(eager),
            "replay the attention core": core,
            "matmuls kept": keeping(eager, MATMULS),
        },
        repeats,
    )
    rows += measure(
        "fused",
        {
            "plain": fused,
            "replay all": whole(fused),
            "attention kept": keeping(fused, ATTENTION),
            "matmuls kept": keeping(fused, MATMULS),
            "matmuls and attention kept": keeping(fused, MATMULS | ATTENTION),
        },
        repeats,
    )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
