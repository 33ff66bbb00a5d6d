"""Scores by an exported graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..modeling import EvidenceProcessor
from .selection_path import INPUTS


class OnnxSelector:
    """The graph in a folder that `export_onnx` wrote, with its processor.

    Args:
        folder (`str` or `Path`): the folder.
        file (`str`): of the graph; `"model_int8.onnx"` for the one of `quantize_onnx`.
        threads (`int`): of the processor; 0 leaves the choice to onnxruntime.

    Raises:
        ValueError: the folder has no such graph.
        ModuleNotFoundError: onnxruntime is not installed (extra `export`).
    """

    def __init__(self, folder, file: str = "model.onnx", threads: int = 0):
        import onnxruntime

        path = Path(folder) / file
        if not path.is_file():
            raise ValueError(f"{path} does not exist; write it with: warrant-hf export --out {folder}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.processor = EvidenceProcessor.from_pretrained(folder, trust_remote_code=False)
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [output.name for output in self.session.get_outputs()]

    def __call__(self, questions: list[str], passages: list[list]) -> dict[str, np.ndarray]:
        """`logits`, `attention`, `permission`, `effective` `[B, C]`, `mass`, `answerability_logits` `[B]`.

        A row with fewer than C candidates has the logit -inf for those it lacks. Texts are checked, packed and split
        as by the selector itself.

        Raises:
            ValueError: bad input for [`EvidenceProcessor`].
        """
        return self.run(self.processor(list(questions), list(passages)))

    def run(self, batch, permission_override=None) -> dict[str, np.ndarray]:
        """The same for a batch that `processor` has made.

        Args:
            batch: the tensors of `EvidenceProcessor.__call__`.
            permission_override (`[B, C]` floats, *optional*): 0 closes the gate of a candidate, NaN leaves it.

        Raises:
            ValueError: a permission outside 0 to 1, or of another shape.
        """
        shape = tuple(batch["candidate_mask"].shape)
        override = np.full(shape, np.nan) if permission_override is None else np.asarray(permission_override)
        if override.shape != shape:
            raise ValueError(
                f"permission_override has the shape {override.shape}; give one number for each of {shape}."
            )
        outside = override[(override < 0) | (override > 1)]
        if outside.size:
            raise ValueError(
                f"permission_override has {outside[0]:g}; give 0 to 1, or NaN for the learned permission."
            )
        given = {name: batch[name].numpy() for name in INPUTS if name != "permission_override"}
        values = self.session.run(self.names, given | {"permission_override": override.astype(np.float32)})
        return dict(zip(self.names, values, strict=True))


__all__ = ["OnnxSelector"]
