# SPDX-License-Identifier: BSD-3-Clause
"""Draws tradeoff_bench.json: peak memory against time of a step, a panel a model.

usage: plot_tradeoff.py tradeoff_bench.json tradeoff.png
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

MIB = 1024 * 1024


def draw(axes, table):
    rows = table["rows"]
    axes.plot([row["peak_bytes"] / MIB for row in rows], [row["ratio"] for row in rows], "o", label="Refrain")
    for row in rows:
        place = (row["peak_bytes"] / MIB, row["ratio"])
        axes.annotate(row["policy"], place, xytext=(4, 4), textcoords="offset points", fontsize=7)
    peers = table.get("pytorch") or []
    if peers:
        axes.plot([row["peak_bytes"] / MIB for row in peers], [row["ratio"] for row in peers], "x", label="PyTorch")
    axes.set_title(f"{table['model']}, {table['blocks']} blocks")
    axes.set_xlabel("peak of a step, MiB")
    axes.set_ylabel("time of a step, plain = 1")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)


def main():
    source, picture = sys.argv[1:3]
    with open(source) as file:
        tables = json.load(file)
    columns = min(2, len(tables))
    lines = (len(tables) + columns - 1) // columns
    figure, grid = plt.subplots(lines, columns, figsize=(6 * columns, 4 * lines), squeeze=False)
    for axes, table in zip(grid.flat, tables):
        draw(axes, table)
    for axes in grid.flat[len(tables):]:
        axes.axis("off")
    figure.tight_layout()
    figure.savefig(picture, dpi=150)


main()
