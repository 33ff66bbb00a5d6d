"""The masses of a learned decision say what the model does under any choice of closed gates."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from warrant_hf.data.schema import validate_row
from warrant_hf.diagnostics.decisions import CLOSINGS, read_decisions

READERS = ["encoder", "fid", "led"]


def forward(model, row, closed=()):
    """The definition: logits, attention, effective and answerability of a forward pass with `permission_override`."""
    batch = model.processor(row.question, [candidate.to_passage() for candidate in row.candidates])
    override = torch.full(batch["candidate_mask"].shape, float("nan"))
    override[0, list(closed)] = 0.0
    with torch.no_grad():
        output = model(**batch, permission_override=override)
    return output


def test_learned_and_closed_are_the_models_own(decided, rows):
    model, decisions = decided
    for row, case, *closed in zip(rows, decisions.learned, *decisions.closed.values(), strict=True):
        assert case.id == row.id and case.labels.tolist() == row.labels
        alone = forward(model, row)
        for name in ("logits", "attention", "permission", "effective"):
            np.testing.assert_allclose(getattr(case, name), getattr(alone, name)[0].numpy(), rtol=1e-4, atol=1e-5)
        for name, after in zip(CLOSINGS, closed, strict=True):
            chosen = np.flatnonzero(CLOSINGS[name](case.labels))
            expected = forward(model, row, chosen)
            np.testing.assert_allclose(after.logits, expected.logits[0].numpy(), rtol=1e-4, atol=1e-4)
            assert (after.effective[chosen] == 0).all()


@pytest.mark.parametrize(
    "name, variant",
    [(name, variant) for name in READERS for variant in ("pair", "open", "shuffled")] + [("encoder", "normalized")],
)
def test_any_closing_follows_from_the_masses(reader, rows, name, variant):
    model, generator = reader(name, variant=variant), np.random.default_rng(0)
    decisions = read_decisions(model, rows)
    for row, case in zip(rows, decisions.learned, strict=True):
        for _ in range(3):
            keep = generator.random(len(row.candidates)) < 0.5
            masses, output = case.with_open(keep), forward(model, row, np.flatnonzero(~keep))
            np.testing.assert_allclose(masses, output.effective[0].numpy(), rtol=1e-3, atol=1e-6)
            np.testing.assert_allclose(case.rule.logits(masses), output.logits[0].numpy(), rtol=1e-3, atol=1e-3)
            answerable = output.answerability_logits[0].item()
            assert case.rule.answerability(masses) == pytest.approx(answerable, rel=1e-3, abs=1e-3)


def test_a_passage_read_in_parts_is_closed_whole(selector):
    model = selector(max_length=48, max_question_tokens=16)
    candidates = [{"text": "x" * 150, "label": 1}, {"text": "short", "label": 0}]
    row = validate_row({"id": "long", "question": "a?", "candidates": candidates}, where="rows")
    decisions = read_decisions(model, [row])
    assert decisions.closed["evidence"][0].effective[0] == 0 and decisions.gap < 1e-4


def test_mode_of_the_model_is_kept(selector, rows):
    model = selector(readout_dropout=0.5).train()
    heard = []
    first = read_decisions(model, rows, batch_size=2, advance=heard.append)
    assert model.training and sum(heard) == len(rows)
    assert first.learned[0].logits == pytest.approx(
        read_decisions(model, rows, batch_size=7).learned[0].logits, abs=1e-4
    )


def test_what_cannot_be_diagnosed_is_said(reader, rows):
    with pytest.raises(ValueError, match="variant is 'base', whose score does not come from the mass"):
        read_decisions(reader("encoder", variant="base"), rows)
    model = reader("encoder")
    with pytest.raises(ValueError, match="rows is empty"):
        read_decisions(model, [])
    unlabelled = validate_row({"id": "u", "question": "a?", "candidates": ["x"]}, where="rows")
    with pytest.raises(ValueError, match="row 'u' has a candidate without label"):
        read_decisions(model, [unlabelled])


def test_scores_that_the_masses_do_not_make_are_refused(selector, rows):
    model = selector()
    handle = model.register_forward_hook(lambda module, inputs, output: replace(output, logits=output.logits + 1))
    with pytest.raises(ValueError, match="with its evidence closed a score is 1 from what the masses say"):
        read_decisions(model, rows)
    handle.remove()
