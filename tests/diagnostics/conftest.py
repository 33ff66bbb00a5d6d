"""Decisions of tiny random selectors, and made-up ones in which labels know nothing."""

import numpy as np
import pytest

from tests.modeling.conftest import fid_selector, long_selector, reader, selector, tokenizers  # noqa: F401 (fixtures)

READERS = ["encoder", "fid", "led"]
TEXTS = ["jane austen wrote emma.", "emma stone is an actress", "a passage about nothing", "d", "york is a city"]


@pytest.fixture(scope="session")
def rows():
    """Seven labelled questions on two to five candidates; the last has no evidence."""
    from warrant_hf.data.schema import validate_row

    made = []
    for number in range(7):
        count = 2 + number % 4
        labels = [int(at == number % count or at == 3) for at in range(count)] if number < 6 else [0] * count
        kinds = ["gold" if label else ("hard", "random")[at % 2] for at, label in enumerate(labels)]
        candidates = [{"text": f"{TEXTS[at]} {number}", "label": labels[at], "kind": kinds[at]} for at in range(count)]
        record = {"id": f"r{number}", "question": f"who wrote emma {number}?", "candidates": candidates}
        made.append(validate_row(record | {"answer": "jane" if number % 2 else None}, where="rows"))
    return made


@pytest.fixture(scope="session", params=READERS)
def decided(request, reader, rows):  # noqa: F811
    """A model of each reader, and its decisions on the rows."""
    from warrant_hf.diagnostics import read_decisions

    model = reader(request.param)
    return model, read_decisions(model, rows, batch_size=3)


@pytest.fixture(scope="session")
def random_cases():
    """`random_cases(count, seed, trusted=0)`: masses drawn at random, two golds of six drawn at random too.

    With `trusted`, attention and permission of golds are raised by that much before they are normalised.
    """
    from warrant_hf.diagnostics.decisions import DecisionCase, ScoreRule

    def make(count=300, seed=0, trusted=0.0):
        rng, rule, cases = np.random.default_rng(seed), ScoreRule(1.1, 0.3, 0.9, -0.2), []
        for number in range(count):
            labels = rng.permutation([1, 1, 0, 0, 0, 0])
            attention = rng.dirichlet(np.full(6, 2.0)) + trusted * labels
            attention /= attention.sum()
            permission = np.clip(rng.uniform(0.05, 1, 6) + trusted * labels, 0, 1)
            effective = attention * permission
            kinds = ["gold" if label else "hard" for label in labels]
            masses = {"attention": attention, "permission": permission, "effective": effective}
            scores = {"logits": rule.logits(effective), "answerability_logit": float(rule.answerability(effective))}
            cases.append(DecisionCase(id=str(number), labels=labels, kinds=kinds, rule=rule, **masses, **scores))
        return cases

    return make
