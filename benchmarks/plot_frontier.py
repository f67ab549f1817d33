# SPDX-License-Identifier: BSD-3-Clause
"""Draws frontier_bench.json: fixed policies and the planner's frontier, a panel a model.

usage: plot_frontier.py frontier_bench.json frontier.png
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

MIB = 1024 * 1024


def draw(axes, table):
    rows = table["rows"]
    plain = next(row["fixed"]["seconds"] for row in rows if row["policy"] == "none")

    def points(chosen):
        return zip(*[(row["peak_bytes"] / MIB, row["seconds"] / plain) for row in chosen])

    plans = [row[kind] for row in rows for kind in ("within_peak", "within_time")]
    axes.step([p["peak_bytes"] / MIB for p in table["frontier"]], [p["ratio"] for p in table["frontier"]],
              where="post", color="tab:blue", linewidth=1, label="plans, predicted")
    axes.plot(*points(plans), "o", color="tab:blue", markersize=4, label="plans, measured")
    for name, color, mark in (("every", "tab:orange", "s"), ("one_in", "tab:green", "^"), ("sqrt_n", "tab:red", "D")):
        axes.plot(*points([row["fixed"] for row in rows if row["policy"].startswith(name)]), mark, color=color,
                  markersize=4, label=name)
    peers = [row for row in table.get("pytorch") or [] if row["policy"] != "none"]
    if peers:
        axes.plot([row["peak_bytes"] / MIB for row in peers], [row["ratio"] for row in peers], "x", color="black",
                  markersize=5, label="PyTorch, checkpoint_sequential")
    axes.set_title(f"{table['model']}, {table['layers']} layers")
    axes.set_xlabel("peak of a step, MiB")
    axes.set_ylabel("time of a step, plain = 1")
    axes.set_xlim(left=0)
    # The last plans of a frontier save little more and take much longer.
    measured = [row[kind]["seconds"] / plain for row in rows for kind in ("fixed", "within_peak", "within_time")]
    axes.set_ylim(bottom=0.95, top=1.05 * max(measured))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def main():
    source, picture = sys.argv[1:3]
    with open(source) as file:
        tables = json.load(file)
    figure, grid = plt.subplots(1, len(tables), figsize=(6.5 * len(tables), 4.8), squeeze=False)
    for axes, table in zip(grid.flat, tables):
        draw(axes, table)
    figure.tight_layout()
    figure.savefig(picture, dpi=150)


main()
