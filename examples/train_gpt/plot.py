#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws memory_time.png and live_bytes.png beside the train_gpt.json it is given."""

import json
import pathlib
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("plot.py: this Python has no matplotlib")

MIB = 2.0**20
PLAIN = "#444444"
REST = "#d9d9d9"


def colours(rows):
    cycle = plt.get_cmap("tab10")
    return [PLAIN] + [cycle(i % 10) for i in range(len(rows) - 1)]


def setting(run):
    return (
        f"GPT, {run['layers']} layers of width {run['width']}, "
        f"{run['batch']}×{run['seq']} tokens, {run['device']}"
    )


def memory_and_time(run, path):
    """The table as a picture: bars for the peak and for the step time of each policy."""
    rows = run["policies"]
    names = [row["policy"] for row in rows]
    figure, (memory, time) = plt.subplots(1, 2, figsize=(10, 0.55 * len(rows) + 1.6), sharey=True)

    peaks = [row["peak_bytes"] / MIB for row in rows]
    rest = [row["rest_bytes"] / MIB for row in rows]
    bars = memory.barh(names, peaks, color=colours(rows))
    memory.barh(names, rest, color=REST)
    shares = [f"{p:.0f} MiB, {row['share_of_plain']:.0%}" for p, row in zip(peaks, rows)]
    memory.bar_label(bars, shares, padding=4)
    memory.set_xlim(0, 1.35 * max(peaks))
    memory.set_xlabel("peak memory of a step, MiB (grey: weights, optimizer)")

    ratios = [row["time_of_plain"] for row in rows]
    bars = time.barh(names, ratios, color=colours(rows))
    time.bar_label(bars, [f"{ratio:.2f}×" for ratio in ratios], padding=4)
    time.axvline(1, color=PLAIN, linewidth=0.8, linestyle=":")
    time.set_xlim(0, 1.2 * max(ratios))
    time.set_xlabel("time of a step, relative to none")

    memory.invert_yaxis()
    for axes in (memory, time):
        axes.spines[["top", "right"]].set_visible(False)
    equal = all(row["gradients_bit_equal"] for row in rows)
    verdict = "every gradient equal bit for bit" if equal else "GRADIENTS DIFFER"
    figure.suptitle(f"{setting(run)}: {verdict}", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def live_bytes(run, path):
    """What lives over one training step, a curve for each policy."""
    rows = run["policies"]
    figure, axes = plt.subplots(figsize=(10, 5))
    for row, colour in zip(rows, colours(rows)):
        seconds, live = zip(*row["live_bytes"])
        axes.step(
            [1000 * s for s in seconds],
            [b / MIB for b in live],
            where="post",
            color=colour,
            linewidth=1.1,
            label=row["policy"],
        )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("milliseconds since the step began")
    axes.set_ylabel("live tensor bytes, MiB")
    axes.set_title(f"Live bytes over one step: {setting(run)}", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="policy", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: plot.py train_gpt.json")
    source = pathlib.Path(sys.argv[1])
    run = json.loads(source.read_text())
    pictures = [source.with_name("memory_time.png")]
    memory_and_time(run, pictures[0])
    if all(row["live_bytes"] for row in run["policies"]):
        pictures.append(source.with_name("live_bytes.png"))
        live_bytes(run, pictures[-1])
    for picture in pictures:
        print(f"wrote {picture}")


if __name__ == "__main__":
    main()
