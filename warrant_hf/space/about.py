"""What the page says about itself: the operator in one picture, what a permission is not, and measured results."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import yaml

OPERATOR = """
<div class="eg-picture" tabindex="0" role="region" aria-label="The operator in one picture">
<svg viewBox="0 0 780 270" role="img" aria-labelledby="eg-op">
<title id="eg-op">Each passage is read with an attention. Its gate, the permission, lets a part of that through: the
effective mass. The score is made of the effective mass and of nothing else.</title>
<g font-size="14" fill="currentColor"><text x="10" y="24" font-weight="600">passage</text>
<text x="150" y="24" font-weight="600">attention</text><text x="335" y="24" font-weight="600">permission</text>
<text x="480" y="24" font-weight="600">effective</text><text x="655" y="24" font-weight="600">score</text>
<text x="10" y="71">1: says it</text><text x="10" y="131">2: same words</text><text x="10" y="191">3: neither</text>
<text x="150" y="95" font-size="12">0.50</text><text x="150" y="155" font-size="12">0.40</text>
<text x="150" y="215" font-size="12">0.10</text><text x="365" y="95" font-size="12">× 1.0</text>
<text x="365" y="155" font-size="12">× 0.1</text><text x="365" y="215" font-size="12">× 0.1</text>
<text x="480" y="95" font-size="12">0.50</text><text x="480" y="155" font-size="12">0.04</text>
<text x="480" y="215" font-size="12">0.01</text>
<text x="10" y="243" font-size="12">The attention sums to one, whatever the list holds. The effective mass does not: it
is 0.55 here.</text>
<text x="10" y="263" font-size="12">A score has it times the size of the list, here 3; β and b are learned.</text>
</g>
<g fill="var(--eg-attention)"><rect x="150" y="58" width="125" height="18" rx="3"/>
<rect x="150" y="118" width="100" height="18" rx="3"/><rect x="150" y="178" width="25" height="18" rx="3"/></g>
<g stroke="currentColor" stroke-width="1.5" fill="none"><path d="M285 67H345M260 127H345M185 187H345M410 67H470M410
127H470M410 187H470"/></g>
<g fill="var(--eg-track)"><rect x="350" y="116" width="52" height="22" rx="3"/>
<rect x="350" y="176" width="52" height="22" rx="3"/></g>
<g fill="var(--eg-permission)"><rect x="350" y="56" width="52" height="22" rx="3"/>
<rect x="350" y="116" width="5" height="22" rx="1"/><rect x="350" y="176" width="5" height="22" rx="1"/></g>
<g fill="var(--eg-effective)"><rect x="480" y="58" width="125" height="18" rx="3"/>
<rect x="480" y="118" width="10" height="18" rx="3"/><rect x="480" y="178" width="3" height="18" rx="1"/></g>
<g font-size="13" fill="currentColor"><text x="640" y="71">β log(3 × 0.50) + b</text>
<text x="640" y="131">β log(3 × 0.04) + b</text><text x="640" y="191">β log(3 × 0.01) + b</text></g></svg></div>
"""

MEANING = """
## What a permission is not

* **Not access control.** A passage with a closed gate was still read, and still stands in the denominator of the
  attention. What a model must not see, it must not be given: that is what *mask* does.
* **Not truth.** It says that a passage may count as support for this question, as a model learned it. The passage
  may be wrong, and so may the permission.
* **Not confidence.** A permission of 0.9 does not say that nine such passages in ten are evidence.

## What the parts of the page compute

* `effective = attention × permission`, summed over the parts of a passage; `logit = β log(C × effective) + b`.
* A slider sets `permission_override` of the model's forward pass. A slider that has not been moved keeps the learned
  permission, with all its digits.
* *Mask* leaves a passage out of the input, bit for bit as if it had never been found.
* What you write stays in the memory of this server for a while, and files stay for up to two hours.
"""


#: What the metrics of a card say; `evaluation/metrics.py` defines them.
_SAYS = {
    "support_mrr": "1 / rank of the first evidence",
    "hit_at_1": "how often evidence comes first",
    "recall_at_5": "share of the evidence among the first five",
    "evidence_f1": "share of evidence among the first, as many as there is evidence",
    "auprc": "average precision over all candidates",
    "permission_auc": "how often evidence has a higher permission than another candidate",
    "abstention_auroc": "how often a list with evidence has more effective mass than one without",
    "abstention_auroc_answerability": "how often a list with evidence is more “answerable” than one without",
    "ece": "how far the probabilities are from what is found; less is better",
}


def card(model) -> str | None:
    """The text of a model's card, without its front matter, if the model lies in a folder that has one."""
    file = Path(str(model.name_or_path)) / "README.md"
    if not file.is_file():
        return None
    return file.read_text("utf-8").split("---\n", 2)[-1].strip()


def results(model) -> str:
    """The measured results that a model's card states in its front matter, as a table."""
    file = Path(str(model.name_or_path)) / "README.md"
    if not file.is_file():
        return "<p>This model has no card on this machine, and so no measured results.</p>"
    found = re.match(r"---\n(.*?)\n---\n", file.read_text("utf-8"), re.DOTALL)
    index = (yaml.safe_load(found[1]) or {}).get("model-index") if found else None
    if not index:
        return "<p>The card of this model states no measured results.</p>"
    measured = {
        result["dataset"]["name"]: {metric["type"]: metric["value"] for metric in result["metrics"]}
        for result in index[0]["results"]
    }
    names = list(dict.fromkeys(name for metrics in measured.values() for name in metrics))
    head = "".join(f'<th scope="col">{escape(dataset)}</th>' for dataset in measured)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}<div class="eg-note">{_SAYS.get(name, "")}</div></th>'
        + "".join(f"<td>{escape(str(metrics.get(name, '–')))}</td>" for metrics in measured.values())
        + "</tr>"
        for name in names
    )
    return (
        '<div class="eg-scroll" tabindex="0" role="region" aria-label="Measured results"><table class="eg-table">'
        f'<thead><tr><th scope="col">metric</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        '<p class="eg-note">Read from the card of the model, which has the intervals and the numbers of questions.</p>'
    )


def link(model) -> str | None:
    """Where the card of a model from the Hub is."""
    name = str(model.name_or_path)
    return (
        None if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or Path(name).exists() else f"https://huggingface.co/{name}"
    )
