"""Draws `evidence_gates.png`: the shipped checkpoint on the built-in question, before and after one gate is closed.

pip install "warrant-hf[offline,experiments]"
python docs/make_picture.py
"""

from pathlib import Path

import matplotlib.pyplot as plt

from warrant_hf import load_default
from warrant_hf.space.examples import COMPARISON

COLOURS = {"attention": "#4c78a8", "permission": "#54a24b", "effective": "#b279a2"}
TITLES = {
    "attention": "attention\nhow strongly it was read",
    "permission": "permission\nhow strongly it may count",
    "effective": "effective mass\nwhat reaches the score",
}


def main():
    question, passages = COMPARISON
    model = load_default()
    open_gates = model.rank(question, passages)
    closed = open_gates["evidence"][0]["index"]
    one_closed = model.rank(question, passages, revoke=[closed])
    order = [item["index"] for item in open_gates["evidence"]][::-1]
    names = [passages[index]["title"] for index in order]
    figure, axes = plt.subplots(
        1, 4, figsize=(11, 3.2), sharey=True, width_ratios=[1, 1, 1, 1.15], layout="constrained"
    )
    by_index = {item["index"]: item for item in open_gates["evidence"]}
    largest = max(item["attention"] for item in by_index.values())
    for axis, measure in zip(axes, COLOURS):
        values = [by_index[index][measure] for index in order]
        axis.barh(names, values, color=COLOURS[measure])
        axis.set_xlim(0, 1 if measure == "permission" else 1.1 * largest)
        axis.set_title(TITLES[measure], fontsize=9)
    after = {item["index"]: item for item in one_closed["evidence"]}
    places = range(len(order))
    axes[3].barh(
        [p + 0.2 for p in places],
        [by_index[i]["probability"] for i in order],
        0.36,
        color="#9d9d9d",
        label="as learned",
    )
    axes[3].barh([p - 0.2 for p in places], [after[i]["probability"] for i in order], 0.36, color="#f58518",
                 label=f"gate of “{passages[closed]['title']}” closed")  # fmt: skip
    axes[3].set_xlim(0, 1)
    axes[3].set_title("support\nprobability", fontsize=9)
    axes[3].legend(fontsize=7, loc="lower right", frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.suptitle(question, fontsize=10, x=0.01, ha="left")
    figure.savefig(Path(__file__).with_name("evidence_gates.png"), dpi=150)


if __name__ == "__main__":
    main()
