# SPDX-License-Identifier: BSD-3-Clause
"""The fixed cost of torch.utils.checkpoint, measured as overhead_bench measures Refrain's.

Takes chain lengths, prints JSON: microseconds of a forward, of a plain and of a checkpointed step.
"""
import gc
import json
import statistics
import sys
import time

import torch
from torch.utils.checkpoint import checkpoint

REPEATS = 15
SECONDS = 0.02


def chain(length):
    def body(x):
        for _ in range(length):
            x = x.sin()
        return x

    return body


def microseconds(work):
    work()
    begin = time.thread_time()
    count = 0
    while time.thread_time() - begin < SECONDS:
        for _ in range(10):
            work()
        count += 10
    return 1e6 * (time.thread_time() - begin) / count


def measure(length):
    body = chain(length)
    x = torch.randn(4, 4, requires_grad=True)
    seed = torch.ones(4, 4)

    def quiet(x):
        return checkpoint(body, x, use_reentrant=False)

    work = {
        "forward": lambda: body(x),
        "plain": lambda: body(x).backward(seed),
        "checkpointed": lambda: quiet(x).backward(seed),
    }
    times = {name: [] for name in work}
    for _ in range(REPEATS):
        for name, run in work.items():
            times[name].append(microseconds(run))
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    torch.set_num_threads(1)
    gc.disable()
    lengths = [int(word) for word in sys.argv[1:]]
    print(json.dumps({str(length): measure(length) for length in lengths}))


main()
