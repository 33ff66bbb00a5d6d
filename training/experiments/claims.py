"""What the Warrant paper (arXiv 2606.30139) says about permission on HotpotQA, and what this grid finds.

The third column is what the per-seed files of the paper's public reference hold; it is not always what the paper says.
A claim about a difference is reproduced if the interval over seeds and questions lies on the claimed side of zero, and
undecided if it holds both zero and a difference of the claimed size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

REPRODUCED, NOT, OPPOSITE = "reproduced", "not reproduced", "the opposite holds"
UNDECIDED, NO_DIFFERENCE = "undecided: too small to tell", "no difference found"
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


def _verdict(entry, claimed):
    """Of a difference with its interval; `claimed` is the paper's, or its sign times infinity without a number."""
    low, high = sorted((np.sign(claimed) * entry["low"], np.sign(claimed) * entry["high"]))
    if low > 0 or high < 0:
        return REPRODUCED if low > 0 else OPPOSITE
    if np.isinf(claimed):
        return NO_DIFFERENCE
    return UNDECIDED if high >= abs(claimed) else NOT


def _differs(name, reference, claimed):
    """The MRR of `name` minus that of `reference`."""

    def ours(data):
        both = data["comparisons"][reference][name]["support_mrr"]["both"]
        text = f"{name} − {reference}: {both['value']:+.4f} [{both['low']:+.4f}, {both['high']:+.4f}]"
        return text, _verdict(both, claimed)

    return ours


def _kinds(data, name):
    seeds = data["contestants"][name]["seeds"].values()
    means = [np.mean([seed[f"permission_{kind}"] for seed in seeds]) for kind in ("gold", "hard", "random")]
    return " / ".join(f"{mean:.3f}" for mean in means)


def _separates(name):
    """The gates of gold stand above those of hard distractors in every seed."""

    def ours(data):
        gaps = data["contestants"][name]["gate_gap"]
        golds = ", ".join(f"{seed['permission_gold']:.2f}" for seed in data["contestants"][name]["seeds"].values())
        text = f"{name}: {_kinds(data, name)}; gap {min(gaps):+.3f} to {max(gaps):+.3f}; of golds by seed: {golds}"
        return text, REPRODUCED if min(gaps) > SMALLEST_GAP else NOT

    return ours


def _separates_without_acting(data):
    text, verdict = _separates("attention_readout")(data)
    both = data["comparisons"]["pair"]["attention_readout"]["support_mrr"]["both"]
    return f"{text}; MRR − pair {both['value']:+.4f} [{both['low']:+.4f}, {both['high']:+.4f}]", verdict


def _f1(data):
    entry = data["comparisons"]["open"]["pair"]["evidence_f1"]["questions"]
    text = f"F1 {entry['value']:+.4f} [{entry['low']:+.4f}, {entry['high']:+.4f}] over questions"
    return text, _verdict(entry, 0.0056)


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
        _differs("pair", "open", 0.0012),
    ),
    Claim("The same in the paper's path", "as above", "as above", _differs("marker_path", "marker_open", 0.0012)),
    Claim("Permission raises MRR over a content head", "+.0058", "3 of 5 seeds", _differs("pair", "base", 0.0058)),
    Claim("Fewer unsupported sentences than the open path", ".2271 → .2215", "4 of 5 seeds", _f1),
    Claim(
        "Gates of the wrong pair hurt",
        "−.0088 (Table 6)",
        "1 of 3 seeds is above",
        _differs("shuffled", "pair", -0.0088),
    ),
    Claim("A gate per question is worse", "−.0056", "3 of 3 seeds below", _differs("query", "pair", -0.0056)),
    Claim("A gate per item is worse", "(other domains)", "–", _differs("item", "pair", -np.inf)),
    Claim("More parameters do not explain it: MLP", "−.0098", "3 of 3 below", _differs("param_mlp", "pair", -0.0098)),
    Claim("… GLU", "−.0083", "3 of 3 below", _differs("post_attention_glu", "pair", -0.0083)),
    Claim(
        "Better than Qiu's G1",
        ".9122 against .9090",
        "G1 at the same rate diverges once",
        _differs("g1", "pair", -0.0032),
    ),
    Claim(
        "Better than Qiu's G2", ".9122 against .9094", "at the same rate G2 has .9143", _differs("g2", "pair", -0.0028)
    ),
    Claim(
        "Renormalised gates are worse",
        "(other domains)",
        "no: better on LastFM",
        _differs("normalized", "pair", -np.inf),
    ),
    Claim(
        "A bias in the logits is worse", "(other domains)", "as above", _differs("attention_adapter", "pair", -np.inf)
    ),
    Claim(
        "On a frozen open model, training the gate helps",
        "FiD: .6565 → .6570 (Table 9)",
        "–",
        _differs("role_pair", "open", 0.0005),
    ),
    Claim("… training an adapter instead helps more", ".6575", "–", _differs("role_adapter", "role_pair", 0.0005)),
    Claim(
        "Gains in event, temporal-graph and spatial models (Tables 1 to 4)", "see there", "protocols mixed", _elsewhere
    ),
)
