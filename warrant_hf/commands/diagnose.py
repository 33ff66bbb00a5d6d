"""`warrant-hf diagnose`: what the permission of a selector does to its decisions on labelled rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..data.candidates import build_candidates
from ..data.readers import read_rows
from ..data.schema import DataError
from ..diagnostics.by_kind import kind_report
from ..diagnostics.decisions import read_decisions, require_permission
from ..diagnostics.deletion_insertion import deletion_insertion_report
from ..diagnostics.heatmaps import save_heatmaps
from ..diagnostics.interventions import answer_report, intervention_report, reads_answers
from ..diagnostics.marginal_value import MOST_ITEMS, marginal_value_report
from ..diagnostics.operator_identities import same_aggregate
from ..diagnostics.utilities import find_utility
from ..evaluation.report import metrics_table_markdown, write_json, write_text
from ..whole_file import check_target
from .loading import load_model
from .terminal import printable, progress

# What the terminal shows; the files hold everything.
_SHOWN = {
    "marginal value": ("spearman_attention", "spearman_permission", "harmful_top_share", "oracle_subset_gain"),
    "evidence closed, drop": ("support_mrr", "evidence_f1", "mass"),
    "everything else closed, drop": ("support_mrr", "evidence_f1", "mass"),
    "area against random": ("attention: deletion", "permission: deletion", "effective: deletion"),
    "mean by kind": ("permission of gold", "permission of hard", "permission of random"),
}
# Item gates of the check of the operator, which no model takes part in.
_GATES = (0.9, 0.3)


def run(
    *,
    data: Path,
    out: Path,
    model: str | None,
    utility: str,
    top_k: int,
    level: str,
    size: str,
    limit: int | None,
    cases: int,
    seed: int,
    batch_size: int,
) -> None:
    import scipy.stats  # noqa: F401 (absent: known before the work, not after)

    if size != "all" and not (size.isdecimal() and int(size) > 0):
        raise ValueError(f"--size is {size!r}; give a number of candidates from 1 up, or all.")
    if not 1 <= top_k <= MOST_ITEMS:
        raise ValueError(f"--top-k is {top_k}; give a number from 1 to {MOST_ITEMS}.")
    summary = find_utility(utility).summary
    names = ("diagnosis.json", "diagnosis.md", "heatmap.png")
    for name in names:
        check_target(out / name, create_folder=True)  # known before the scoring, not after
    rows = read_rows(data, level=level, limit=limit)
    rows = [build_candidates(row, size=None if size == "all" else int(size), seed=seed) for row in rows]
    times = Counter(row.id for row in rows)
    repeated = [name for name, count in times.items() if count > 1]
    if repeated:
        raise DataError(f"{data}: the id {repeated[0]!r} occurs {times[repeated[0]]} times; make the ids unique.")

    selector = load_model(model)
    require_permission(selector)
    says = (
        [row for row in rows if isinstance(row.answer, str) and row.answer.strip()] if reads_answers(selector) else []
    )
    with progress() as bar:
        advance = partial(bar.advance, bar.add_task("questions", total=len(rows)))
        decisions = read_decisions(selector, rows, batch_size=batch_size, advance=advance)
        answers = None
        if says:
            advance = partial(bar.advance, bar.add_task("answers", total=len(says)))
            answers = answer_report(selector, rows, seed=seed, advance=advance)
    found = {
        "marginal_value": marginal_value_report(decisions.learned, utility, top_k=top_k, seed=seed),
        "interventions": intervention_report(decisions, seed=seed),
        "deletion_insertion": deletion_insertion_report(decisions.learned, utility, seed=seed),
        "by_kind": kind_report(decisions.learned, seed=seed),
        "same_aggregate": asdict(same_aggregate(torch.ones(4), _GATES)) | {"gates": list(_GATES)},
        "rule_gap": decisions.gap,
    }
    if answers is not None:
        found["answers"] = answers
    note = None
    try:
        drawn = save_heatmaps(out / names[2], decisions.learned, count=cases, seed=seed)
        found["heatmap"] = {"file": names[2], "seed": seed, "drawn": drawn}
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        note = "matplotlib is not installed, so there is no heatmap; run: pip install 'warrant-hf[experiments]'"
    config = {
        "model": model or "default checkpoint",
        "variant": selector.config.variant,
        "permission_supervision": selector.config.permission_supervision,
        "data": data.name,
        "level": level,
        "size": size,
        "limit": limit,
        "seed": seed,
        "questions": len(rows),
        "utility": f"{utility}, {summary}",
        "top_k": top_k,
        "warrant_hf": __version__,
    }
    sections = _sections(found)
    write_json(out / names[0], {**found, "config": config})
    write_text(out / names[1], _markdown(sections, found, config, note))
    _print(sections, config)
    for sentence in filter(None, (_drawn(found), note)):
        print(sentence)


def _sections(found: dict) -> dict[str, dict]:
    """Title of a table -> its rows, `{metric: {"value", "low", "high", "p"?}}`."""
    worth = found["marginal_value"]
    rows = {}
    for name, entry in worth["metrics"].items():
        rows[name] = entry
        rows |= {f"{name}, chance by {null}": level for null, level in worth["chance"].get(name, {}).items()}
    sections = {"marginal value": rows}
    titles = {"evidence": "evidence closed, drop", "other": "everything else closed, drop"}
    sections |= {title: found["interventions"][name] for name, title in titles.items()}
    if "drop" in found.get("answers", {}):
        sections["log-likelihood of the answer, drop"] = found["answers"]["drop"]
    orders = found["deletion_insertion"]["orders"]
    for field, title in (("area", "area"), ("against_random", "area against random")):
        sections[title] = {
            f"{order}: {kind}": entry[field]
            for order, kinds in orders.items()
            for kind, entry in kinds.items()
            if field in entry
        }
    kinds = found["by_kind"]
    quantities = ("permission", "attention", "effective")
    sections["mean by kind"] = {
        f"{name} of {kind}": kinds["means"][kind][name] for name in quantities for kind in kinds["means"]
    }
    sections["pairs within a question, AUC"] = {
        f"{name}: {pair}": entry[name] for name in quantities for pair, entry in kinds["auc"].items()
    }
    return sections


def _markdown(sections: dict, found: dict, config: dict, note: str | None) -> str:
    worth, check = found["marginal_value"], found["same_aggregate"]
    remarks = [
        "A drop is the metric as learned minus the metric after; intervals are over questions.",
        f"Shapley values sum to the difference they share out within {worth['efficiency_gap']:.1e}. Scores under "
        f"closed gates follow from the masses within {found['rule_gap']:.1e} of the model's own forward pass.",
        "Areas: an order that puts first what counts has a small area of deletion (below random is good) and a large "
        "one of insertion (above random is good).",
        "The oracle subset is chosen by the labels; no selector can have its gain.",
    ]
    if config["variant"] != "normalized" and worth["utility"] in ("gold_log_probability", "negative_loss"):
        remarks.append(
            f"`{worth['utility']}` is a sum over candidates, and a gate changes the logit of its own candidate alone: "
            "there are no interactions, leave-one-out is the Shapley value, and the labels decide what is harmful."
        )
    if worth["utility"] in ("negative_loss", "listwise"):
        remarks.append(
            "Of two distractors the one with more mass harms more, and most candidates are distractors: a rank "
            "correlation below 0 can go with a good order. Read harmful_top_share against its chance beside it."
        )
    if worth["utility"] == "answerability":
        remarks.append(
            "Answerability is a function of the total mass alone: where there is evidence, a passage is worth the "
            "more the larger its effective mass, so that rank correlations are high whatever the gates have learned."
        )
    if worth["skipped"]:
        remarks.append(f"{len(worth['skipped'])} questions without evidence have no value under this utility.")
    for name in ("attention", "permission"):
        if f"spearman_{name}" not in worth["metrics"]:
            remarks.append(f"spearman_{name} is undefined: the {name}, or the value, is constant in every question.")
    remarks.append(
        f"Two lists with the same softmax aggregate, item gates {check['gates'][0]} and {check['gates'][1]}: their "
        f"outputs differ by {check['post_attention']:.3g} under a controller of the aggregate, "
        f"{check['renormalised']:.3g} under gates in the attention logits, {check['warrant']:.3g} under gates on the "
        "value terms."
    )
    remarks += filter(None, (_drawn(found), note))
    settings = [f"- {name}: {printable(str(value))}" for name, value in config.items()]
    lines = [f"# Permission on {printable(config['data'])}", "", *settings, "", *(f"* {each}" for each in remarks), ""]
    parts = ["\n".join(lines)]
    parts += [metrics_table_markdown(rows, title[0].upper() + title[1:]) for title, rows in sections.items() if rows]
    return "\n".join(parts)


def _drawn(found: dict) -> str | None:
    if "heatmap" not in found:
        return None
    drawn = found["heatmap"]
    ids = printable(", ".join(drawn["drawn"]))
    return f"{drawn['file']}: {len(drawn['drawn'])} questions drawn at random with seed {drawn['seed']}: {ids}."


def _print(sections: dict, config: dict) -> None:
    console = Console()
    title = f"{printable(config['data'])}, {config['questions']} questions, {config['utility']}"
    console.print(title, style="bold", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("metric", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    for section, names in _SHOWN.items():
        for name, entry in sections[section].items():
            if name.partition(", chance")[0] in names:
                span = f"{entry['low']:.3f} to {entry['high']:.3f}"
                table.add_row(section, name, f"{entry['value']:.3f}", span)
                section = ""
    console.print(table)


__all__ = ["run"]
