"""The selection path of an encoder reader as a graph: windows in, scores and permissions out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..modeling import WarrantEncoderForEvidenceSelection
from ..modeling.marker_readout import MarkerReadout

#: Inputs and outputs of the graph, in order, with the names of their dimensions.
INPUTS = {
    "input_ids": ("batch", "windows", "tokens"),
    "segment_ids": ("batch", "windows", "tokens"),
    "item_candidates": ("batch", "items"),
    "candidate_mask": ("batch", "candidates"),
    "permission_override": ("batch", "candidates"),
}
OUTPUTS = {
    "logits": ("batch", "candidates"),
    "attention": ("batch", "candidates"),
    "permission": ("batch", "candidates"),
    "effective": ("batch", "candidates"),
    "mass": ("batch",),
    "answerability_logits": ("batch",),
}


class SelectionPath(nn.Module):
    """What `forward` of an encoder reader computes in evaluation, without its choices that depend on data.

    All windows are encoded in one batch, in the order in which they come; the model itself sorts them by length and
    reads some at a time. Scores are equal up to rounding.

    Args:
        model ([`WarrantEncoderForEvidenceSelection`]): in float32; it is put into evaluation mode.

    Raises:
        ValueError: a reader, variant or dtype that has no such graph.
    """

    def __init__(self, model):
        super().__init__()
        check_exportable(model)
        self.model = model.eval()
        #: Names of the outputs: the content head of `base` has no path, and so neither attention nor permission.
        self.names = tuple(OUTPUTS) if model.readout.variant.path else ("logits", "answerability_logits")

    def forward(self, input_ids, segment_ids, item_candidates, candidate_mask, permission_override):
        """Scores of padded windows, as `EvidenceProcessor` makes them.

        Args:
            input_ids, segment_ids (`[B, W, N]`, int64), item_candidates (`[B, S]`, int64), candidate_mask (`[B, C]`,
                bool): see `WarrantEncoderForEvidenceSelection.forward`.
            permission_override (`[B, C]`, float32): NaN for the learned permission. Values outside 0 to 1 are not
                refused here.

        Returns:
            A tuple of tensors, named by `names`.
        """
        rows, windows, tokens = input_ids.shape
        segments, readout = segment_ids.flatten(1), self.model.readout
        with _ForGraphs():
            states = self.model._encode_windows(input_ids.flatten(0, 1), segment_ids.flatten(0, 1))
            states = states.view(rows, windows * tokens, -1)
            pooled = readout.pool(states, segments, item_candidates.shape[1])
            gate = readout.permission(pooled, item_candidates, candidate_mask)
            given = permission_override.gather(1, item_candidates.clamp(min=0))
            gate = torch.where(given.isnan() | (item_candidates < 0), gate, given)
            output = readout.score(
                pooled, segments, item_candidates, candidate_mask, gate=gate, permission_override=permission_override
            )
        return tuple(output[name] for name in self.names)


class _ForGraphs(TorchFunctionMode):
    """Operators in terms of others.

    ONNX has no `cummax` and no `chunk` of a size that varies; `one_hot` writes the number of classes, here of
    candidates, into the graph; and `index_add` becomes `ScatterND`, whose threads onnxruntime lets race for the sums.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.one_hot:
            index, count = args
            return (index.unsqueeze(-1) == torch.arange(count, device=index.device)).long()
        if func is torch.Tensor.index_add:
            sums, axis, index, values = args
            return sums.scatter_add(axis, index.view(-1, *[1] * (values.dim() - 1)).expand_as(values), values)
        if func is torch.Tensor.chunk and args[1:] == (2, -1):
            return args[0].unflatten(-1, (2, -1)).unbind(-2)
        if func is torch.Tensor.cummax:
            values, place = args[0], torch.arange(args[0].shape[1], device=args[0].device)
            lowest = torch.iinfo(values.dtype).min
            until = values.unsqueeze(1).masked_fill(place > place.unsqueeze(1), lowest)  # [W, N, N]
            return torch.return_types.cummax(until.max(-1))
        return func(*args, **(kwargs or {}))


def check_exportable(model) -> None:
    """Raises a `ValueError` for a model that `SelectionPath` cannot hold."""
    if not isinstance(model, WarrantEncoderForEvidenceSelection):
        raise ValueError(
            f"model is a {type(model).__name__}; only encoder readers can be exported, because the decoder of the "
            "other readers is a loop over its own output or has windows of its own."
        )
    if isinstance(model.readout, MarkerReadout):
        raise ValueError(
            f"variant is {model.config.variant!r}, whose permission acts on tokens; export a variant with one "
            "permission for each passage, such as 'pair'."
        )
    if model.config.reading == "head":
        raise ValueError(
            "reading is 'head', which the exported graph does not have; export a selector with reading='question'."
        )
    if model.readout.precision is not None:
        raise ValueError(
            f"precision_features is {model.config.precision_features}; the exported graph takes no numbers of a "
            "passage. Export a selector without them."
        )
    if model.dtype != torch.float32:
        raise ValueError(f"model is in {model.dtype}; load it with dtype=torch.float32 to export it.")


__all__ = ["INPUTS", "OUTPUTS", "SelectionPath", "check_exportable"]
