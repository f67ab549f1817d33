#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the live bytes of a step that `save_ledger` wrote: plot_ledger.py ledger.json picture.png"""

import json
import pathlib
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("plot_ledger.py: this Python has no matplotlib")

MIB = 2.0**20
FIRST_RUN, REPLAY, BACKWARD, LIVE, PEAK = "#4c9f70", "#e08a3c", "#eeeeee", "#1f3a5f", "#b03030"
MOST_NAMES = 16


def lanes(calls):
    """The depth of each call: 0, or one more than the call around it."""
    depths = []
    for call in calls:
        depths.append(0 if call["inside"] < 0 else depths[call["inside"]] + 1)
    return depths


def spans(axes, calls, show_names):
    """Bars below the curve: first runs and replays, nested ones lower."""
    depths = lanes(calls)
    for call, depth in zip(calls, depths):
        bars = [(call["first_run"], FIRST_RUN)]
        bars += [(replay["time"], REPLAY) for replay in call["replays"]]
        for time, colour in bars:
            begin, width = 1000 * time["begin"], 1000 * (time["end"] - time["begin"])
            axes.barh(-depth, width, left=begin, height=0.8, color=colour, edgecolor="white",
                      linewidth=0.5)
            if show_names and depth == 0 and colour == FIRST_RUN:
                axes.text(begin + width / 2, 0, call["region"], ha="center", va="center", fontsize=6,
                          rotation=90)
    axes.set_ylim(-max(depths, default=0) - 0.5, 0.5)
    axes.set_yticks([])
    axes.set_xlabel("milliseconds since the step began")
    axes.spines[["top", "right", "left"]].set_visible(False)


def curve(axes, ledger, peak):
    seconds, live = zip(*ledger["timeline"])
    axes.step([1000 * s for s in seconds], [b / MIB for b in live], where="post", color=LIVE,
              linewidth=1.0)
    for span in ledger["backward_passes"]:
        axes.axvspan(1000 * span["begin"], 1000 * span["end"], color=BACKWARD, zorder=0)
    axes.plot([1000 * peak["seconds"]], [peak["live"] / MIB], "o", color=PEAK, markersize=5)
    axes.set_title(f"Peak {peak['live'] / MIB:.1f} MiB, in {peak['owner']}", fontsize=10)
    axes.set_ylim(bottom=0, top=1.05 * peak["live"] / MIB)
    axes.set_xlim(0, 1000 * ledger["seconds"])
    beyond = "" if ledger["whole"] else ", beyond what lived before"
    axes.set_ylabel(f"live bytes on {ledger['device']}, MiB{beyond}")
    axes.spines[["top", "right"]].set_visible(False)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: plot_ledger.py ledger.json picture.png")
    file = json.loads(pathlib.Path(sys.argv[1]).read_text())
    ledger = file["ledger"]
    if not ledger["timeline"]:
        sys.exit("plot_ledger.py: nobody measured live bytes in this step")
    calls = ledger["calls"]
    show_names = len(calls) <= MOST_NAMES
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(10, 5.4), sharex=True, height_ratios=[5, 1.6 if show_names else 0.8])
    curve(top, ledger, file["peak"])
    spans(bottom, calls, show_names)
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in (FIRST_RUN, REPLAY, BACKWARD)]
    top.legend(handles, ["first run", "replay", "backward pass"], frameon=False, fontsize=8,
               loc="upper left")
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=150)
    print(f"wrote {sys.argv[2]}")


if __name__ == "__main__":
    main()
