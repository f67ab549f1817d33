# SPDX-License-Identifier: BSD-3-Clause
"""Draws what `refrain-plan frontier --format json` prints, from standard input: plot.py picture.png"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MIB = 1024.0 * 1024.0


def main(picture):
    rows = json.load(sys.stdin)
    peaks = [row["peak"] / MIB for row in rows]
    overheads = [row["overhead"] for row in rows]
    figure, axes = plt.subplots(figsize=(7, 4.2))
    axes.step(peaks, overheads, where="post", color="#1f5fa8")
    axes.plot(peaks, overheads, "o", markersize=3.5, color="#1f5fa8")
    axes.set_xlabel("peak of a step, all that is resident included (MiB)")
    axes.set_ylabel("more time than a plain step (%)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
