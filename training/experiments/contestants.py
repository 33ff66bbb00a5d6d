"""Who is compared: the permission, its controls, and what each changes. One table, one budget."""

from __future__ import annotations

from dataclasses import dataclass

from warrant_hf.modeling import PERMISSION_VARIANTS

#: Weight of the ranking loss on the gates in the reference's HotpotQA experiments, which its paper does not mention.
REFERENCE_SUPERVISION = 0.02


@dataclass(frozen=True)
class Contestant:
    """Fields of the selector's config that it changes, and how it is trained.

    Args:
        config: of `WarrantConfig`; everything else is the grid's.
        summary: one line for the report.
        starts_from: another contestant, whose finished run of the same seed it goes on from;
        trains: then only parameters whose name begins so move.
    """

    config: dict
    summary: str
    starts_from: str | None = None
    trains: str = ""


def _variant(name):
    return Contestant({"variant": name}, PERMISSION_VARIANTS[name].summary)


def _supervised(name, summary):
    return Contestant({"variant": name, "permission_supervision": REFERENCE_SUPERVISION}, summary)


def _role(name, of_what):
    return Contestant(
        {"variant": name}, f"a finished `open`, frozen; only {of_what} trained on", starts_from="open", trains="gate."
    )


CONTESTANTS = {name: _variant(name) for name in PERMISSION_VARIANTS if name != "attention_readout"} | {
    "attention_readout": _supervised("attention_readout", "gates from labels only, which cannot act on the score"),
    "label_supervised": _supervised("pair", "pair, with the reference's ranking loss of labels on the gates"),
    "marker_label_supervised": _supervised("marker_path", "the paper's path with the reference's loss on the gates"),
    "role_pair": _role("pair", "the gate is"),
    "role_query": _role("query", "a gate per question is"),
    "role_normalized": _role("normalized", "a renormalised gate is"),
    "role_adapter": _role("attention_adapter", "psi in the logits is"),
    "role_mlp": _role("param_mlp", "an MLP on the items is"),
}

__all__ = ["CONTESTANTS", "REFERENCE_SUPERVISION", "Contestant"]
