"""The contract of the readout: where scores come from, and what lists, labels and overrides do to them."""

import math

import pytest
import torch

from warrant_hf import EvidenceReadout, WarrantEncoderConfig

WIDTH = 24
#: Items 0 ... 4 of candidates 0, 1, 1, 2, 3 (candidate 1 is split in two), five tokens each behind a question of four.
ITEMS = torch.tensor([[0, 1, 1, 2, 3]])
SEGMENTS = torch.cat([torch.zeros(4), torch.arange(1, 6).repeat_interleave(5), torch.full((3,), -1)]).long()[None]
MASK = torch.ones(1, 4, dtype=torch.bool)
LABELS = torch.tensor([[1, 0, 1, 0]])
NAN = float("nan")


def readout(variant="pair", **config):
    settings = {"readout_size": 16, "readout_heads": 2, "gate_size": 8, "readout_dropout": 0.0} | config
    torch.manual_seed(0)
    made = EvidenceReadout(WarrantEncoderConfig(variant=variant, **settings), WIDTH)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return made.eval()


@pytest.fixture
def states():
    return torch.randn(1, SEGMENTS.shape[1], WIDTH, generator=torch.Generator().manual_seed(1))


def call(made, states, mask=MASK, **options):
    return made(states, SEGMENTS, ITEMS, mask, **options)


@pytest.mark.parametrize("variant", ["open", "pair"])
def test_the_score_comes_through_the_mass(states, variant):
    made = readout(variant)
    output = call(made, states)
    torch.testing.assert_close(output.attention.sum(-1), torch.ones(1))
    torch.testing.assert_close(output.effective, output.attention * output.permission)
    torch.testing.assert_close(output.mass, output.effective.sum(-1))
    torch.testing.assert_close(output.logits, made.beta * (4 * output.effective).log() + made.bias)
    if variant == "open":
        torch.testing.assert_close(output.permission, torch.ones(1, 4))
    else:
        assert ((output.permission > made.gate.leak) & (output.permission < 1)).all()


def test_base_has_no_mass(states):
    output = call(readout("base"), states)
    assert output.attention is output.permission is output.effective is output.mass is output.item_attention is None
    assert torch.isfinite(output.logits).all() and output.answerability_logits.shape == (1,)


def test_tokens_sum_to_their_candidate(states):
    made = readout()
    output = call(made, states)
    owner = torch.where(SEGMENTS > 0, ITEMS[0][(SEGMENTS - 1).clamp(min=0)], -1)
    for candidate in range(4):
        tokens = output.item_attention[owner == candidate]
        assert tokens.sum().item() == pytest.approx(output.attention[0, candidate].item(), abs=1e-6)
    assert (output.item_attention[owner < 0] == 0).all()
    assert call(made.train(), states).item_attention is None


@pytest.mark.parametrize("variant", ["base", "open", "pair"])
def test_missing_candidates_have_no_part(states, variant):
    made = readout(variant)
    mask = torch.tensor([[True, False, True, True]])
    other = states.clone()
    other[:, 9:19] = 1e3  # the tokens of candidate 1
    one, two = call(made, states, mask), call(made, other, mask)
    assert one.logits[0, 1] == float("-inf")
    torch.testing.assert_close(one.logits, two.logits, atol=0, rtol=0)
    if one.mass is not None:
        assert one.attention[0, 1] == 0 and one.mass == two.mass


@pytest.mark.parametrize("variant", ["base", "open", "pair"])
@pytest.mark.parametrize("loss", ["bce", "listwise"])
def test_a_list_is_scored_as_if_it_were_the_whole(states, variant, loss):
    made = readout(variant, evidence_loss=loss)
    lists = torch.tensor([[[1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 0, 0]]]).bool()
    each = [call(made, states, mask, labels=LABELS).loss for mask in lists.unbind(1)]
    for number, expected in enumerate(each):
        alone = call(made, states, labels=LABELS, candidate_lists=lists[:, number : number + 1]).loss
        torch.testing.assert_close(alone, expected, atol=1e-6, rtol=1e-5)
    full = call(made, states, labels=LABELS, candidate_lists=lists)
    torch.testing.assert_close(full.logits, call(made, states).logits)  # what is returned is the whole list
    if loss == "bce":  # a list without gold has no listwise loss
        torch.testing.assert_close(full.loss, torch.stack(each).mean(), atol=1e-6, rtol=1e-5)
    padded = torch.cat([lists, torch.zeros(1, 2, 4, dtype=torch.bool)], 1)
    torch.testing.assert_close(call(made, states, labels=LABELS, candidate_lists=padded).loss, full.loss)


@pytest.mark.parametrize("loss", ["bce", "listwise"])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [1, 1, 1, 1], [-100, -100, -100, -100], [1, -100, 0, -100]])
def test_loss_is_finite_whatever_the_labels(states, loss, labels):
    made = readout(evidence_loss=loss, permission_supervision=1.0)
    value = call(made, states, labels=torch.tensor([labels])).loss
    value.backward()
    assert torch.isfinite(value)
    assert all(torch.isfinite(p.grad).all() for p in made.parameters() if p.grad is not None)


def test_unlabelled_candidates_stay_in_the_denominator_and_out_of_the_loss(states):
    made = readout(answerability_weight=0.0)
    found = call(made, states, labels=torch.tensor([[1, -100, 0, -100]]))
    logits = found.logits[0, [0, 2]]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found.loss, expected)


def test_overrides(states):
    made = readout()
    before = call(made, states)
    kept = call(made, states, permission_override=torch.full((1, 4), NAN))
    for name in ("logits", "attention", "permission", "effective", "mass"):
        torch.testing.assert_close(kept[name], before[name], atol=0, rtol=0)
    closed = call(made, states, permission_override=torch.tensor([[NAN, 0.0, NAN, 0.25]]))
    torch.testing.assert_close(closed.attention, before.attention, atol=0, rtol=0)
    assert closed.effective[0, 1] == 0 and closed.permission[0, 1] == 0
    torch.testing.assert_close(closed.permission[0, 3], torch.tensor(0.25))
    torch.testing.assert_close(closed.logits[0, [0, 2]], before.logits[0, [0, 2]], atol=0, rtol=0)
    with torch.no_grad():
        assert closed.logits[0, 1].item() == pytest.approx(made.lowest_logit())
    halved = call(made, states, permission_override=before.permission / 2)
    torch.testing.assert_close(halved.logits, before.logits + made.beta * math.log(0.5), atol=1e-5, rtol=0)
    call(made, states, labels=LABELS, permission_override=torch.zeros(1, 4)).loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in made.parameters() if p.grad is not None)


def test_an_even_list_scores_the_same_at_any_length():
    made = readout("open")
    for size in (1, 2, 8, 41, 100):
        segments = torch.cat([torch.zeros(3), torch.arange(1, size + 1).repeat_interleave(2)]).long()[None]
        states = torch.ones(1, segments.shape[1], WIDTH)
        output = made(states, segments, torch.arange(size)[None], torch.ones(1, size, dtype=torch.bool))
        torch.testing.assert_close(output.logits, made.bias.detach().expand(1, size), atol=1e-5, rtol=0)


def test_the_item_that_a_question_cannot_see_gets_no_gradient(states):
    made = readout()
    states.requires_grad_(True)
    call(made, states, torch.tensor([[True, False, True, True]]), labels=torch.tensor([[1, 0, 0, 0]])).loss.backward()
    assert (states.grad[:, 9:19] == 0).all() and (states.grad[:, -3:] == 0).all() and states.grad.abs().sum() > 0
