"""What the Warrant paper (arXiv 2606.30139) says about permission on HotpotQA, and what this grid finds.

The third column is what the per-seed files of the paper's public reference hold; it is not always what the paper says.
A claim about a difference is reproduced if the interval over seeds and questions lies on the claimed side of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

REPRODUCED, NOT, OPPOSITE = "reproduced", "not reproduced", "the opposite holds"
SMALLEST_GAP = 0.05  # of permission, gold above hard distractors, in every seed


@dataclass(frozen=True)
class Claim:
    """`ours` takes the report's data of one data set and gives (text, verdict); a KeyError means that runs lack."""

    claim: str
    paper: str
    seeds: str
    ours: Callable[[dict], tuple[str, str]]


def claim_rows(data: dict) -> list[dict]:
    """One dict per claim: `claim`, `paper`, `its own seeds`, `ours`, `verdict`."""
    rows = []
    for claim in CLAIMS:
        try:
            ours, verdict = claim.ours(data)
        except KeyError:
            ours, verdict = "–", "not run"
        rows.append(
            {
                "claim": claim.claim,
                "paper": claim.paper,
                "its own seeds": claim.seeds,
                "ours": ours,
                "verdict": verdict,
            }
        )
    return rows


def _above(name, reference):
    """`name` has the higher MRR than `reference`."""

    def ours(data):
        both = data["comparisons"][reference][name]["support_mrr"]["both"]
        verdict = REPRODUCED if both["low"] > 0 else OPPOSITE if both["high"] < 0 else NOT
        return f"{name} − {reference}: {both['value']:+.4f} [{both['low']:+.4f}, {both['high']:+.4f}]", verdict

    return ours


def _below(name, reference):
    def ours(data):
        text, verdict = _above(name, reference)(data)
        return text, {REPRODUCED: OPPOSITE, OPPOSITE: REPRODUCED}.get(verdict, NOT)

    return ours


def _kinds(data, name):
    seeds = data["contestants"][name]["seeds"].values()
    means = [np.mean([seed[f"permission_{kind}"] for seed in seeds]) for kind in ("gold", "hard", "random")]
    return " / ".join(f"{mean:.3f}" for mean in means)


def _separates(name):
    """The gates of gold stand above those of hard distractors in every seed."""

    def ours(data):
        gaps = data["contestants"][name]["gate_gap"]
        text = f"{name}: {_kinds(data, name)}; gap {min(gaps):+.3f} to {max(gaps):+.3f} over {len(gaps)} seeds"
        return text, REPRODUCED if min(gaps) > SMALLEST_GAP else NOT

    return ours


def _separates_without_acting(data):
    text, verdict = _separates("attention_readout")(data)
    both = data["comparisons"]["pair"]["attention_readout"]["support_mrr"]["both"]
    return f"{text}; MRR − pair {both['value']:+.4f} [{both['low']:+.4f}, {both['high']:+.4f}]", verdict


def _f1(data):
    entry = data["comparisons"]["open"]["pair"]["evidence_f1"]["questions"]
    verdict = REPRODUCED if entry["low"] > 0 else OPPOSITE if entry["high"] < 0 else NOT
    return f"F1 {entry['value']:+.4f} [{entry['low']:+.4f}, {entry['high']:+.4f}] over questions", verdict


def _elsewhere(data):
    return "–", "not testable here"


CLAIMS = (
    Claim(
        "Gates suppress distractors without labels on them (the paper's path)",
        ".888 / .505 / .467 gold / hard / random (Table 5)",
        "with labels on the gates: .81/.18/.11 in 3 seeds, 1/1/1 in 2; without: .994 to 1.000 for all kinds",
        _separates("marker_path"),
    ),
    Claim("The same in our path, where the score is the mass", "–", "–", _separates("pair")),
    Claim(
        "Labels on the gates separate them (the paper's path; not in its text)",
        "–",
        "3 of 5 seeds",
        _separates("marker_label_supervised"),
    ),
    Claim("The same in our path", "–", "–", _separates("label_supervised")),
    Claim(
        "Gates that cannot act on the score look the same, with the same MRR",
        "–",
        ".865 / .233 / .165; MRR .9142 against .9141",
        _separates_without_acting,
    ),
    Claim(
        "Permission raises MRR over the open path",
        "+.0030 (Table 5), +.0012 (Table 8)",
        "t = .75 and .47; 4 of 5 and 3 of 5 seeds",
        _above("pair", "open"),
    ),
    Claim("The same in the paper's path", "as above", "as above", _above("marker_path", "marker_open")),
    Claim("Permission raises MRR over a content head", "+.0058", "3 of 5 seeds", _above("pair", "base")),
    Claim("Fewer unsupported sentences than the open path", ".2271 → .2215", "4 of 5 seeds", _f1),
    Claim("Gates of the wrong pair hurt", "−.0088 (Table 6)", "1 of 3 seeds is above", _below("shuffled", "pair")),
    Claim("A gate per question is worse", "−.0056", "3 of 3 seeds below", _below("query", "pair")),
    Claim("A gate per item is worse", "(other domains)", "–", _below("item", "pair")),
    Claim("More parameters do not explain it: MLP", "−.0098", "3 of 3 below", _below("param_mlp", "pair")),
    Claim("… GLU", "−.0083", "3 of 3 below", _below("post_attention_glu", "pair")),
    Claim("Better than Qiu's G1", ".9122 against .9090", "G1 at the same rate diverges once", _below("g1", "pair")),
    Claim("Better than Qiu's G2", ".9122 against .9094", "at the same rate G2 has .9143", _below("g2", "pair")),
    Claim("Renormalised gates are worse", "(other domains)", "no: better on LastFM", _below("normalized", "pair")),
    Claim("A bias in the logits is worse", "(other domains)", "as above", _below("attention_adapter", "pair")),
    Claim(
        "On a frozen open model, training the gate helps",
        "FiD: .6565 → .6570 (Table 9)",
        "–",
        _above("role_pair", "open"),
    ),
    Claim("… training an adapter instead helps more", ".6575", "–", _above("role_adapter", "role_pair")),
    Claim(
        "Gains in event, temporal-graph and spatial models (Tables 1 to 4)", "see there", "protocols mixed", _elsewhere
    ),
)
