"""An encoder reader as `torch.export` program and as ONNX file, with what it needs to read text."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

from ..evaluation.report import write_text
from ..whole_file import check_target
from .onnx_selector import OnnxSelector
from .selection_path import INPUTS, SelectionPath, check_exportable

#: Largest difference between the scores of model and graph that an export may have.
TOLERANCE = 1e-4
GRAPH, INT8_GRAPH = "model.onnx", "model_int8.onnx"
# ScatterElements with a reduction, which pools tokens, is as old as this.
_OPSET = 18
# Two rows of unequal length with several windows, items of one candidate, and words enough that no size is 1.
_QUESTIONS = ["Who wrote Emma?", "When was the bridge over the river opened to traffic, and by whom?"]
_PASSAGES = [
    ["Emma is a novel by Jane Austen.", "Emma Stone is an actress. " * 60],
    ["The bridge was opened in 1931."] * 5,
]
_README = """# {name}, exported

`{graph}` holds the selection path of an evidence selector (variant `{variant}`): windows of tokens in; {outputs} out.
Batch, windows, tokens (up to {longest}), items and candidates may have any size. Its scores differ from those of the
selector by {difference:.1e} at most on the texts that were tried when it was written.{int8}

```python
from warrant_hf.export import OnnxSelector

selector = OnnxSelector("{folder}")
scores = selector(["Who wrote Emma?"], [["Emma is a novel by Jane Austen.", "Emma Stone is an actress."]])
print(scores["logits"])
```

In another language, run the tokenizer (`tokenizer.json`) and pack windows as the docstring of `EvidenceProcessor`
says. The inputs are {inputs}. `permission_override` is NaN where the learned permission holds, and 0 where a gate is
closed.

A permission is part of a score, not an access control: a passage whose gate is closed is still read.
"""
_INT8 = """

`{graph}` is the same with weights of 8 bits (dynamic quantisation): smaller and faster, and not equal; measure it on
your data before you use it."""


def export_program(model) -> torch.export.ExportedProgram:
    """`SelectionPath` of an encoder reader as a program of `torch.export`, with sizes that may vary.

    Run it as `.module(check_guards=False)`: tracing leaves a guard that there be several windows, which the program
    does not need.

    Raises:
        ValueError: see `SelectionPath`.
    """
    # DYNAMIC and not a `Dim` with a name: the solver behind names cannot tell that (3 C - 1) // C is 2 for every C.
    shapes = tuple(dict.fromkeys(range(len(names)), torch.export.Dim.DYNAMIC) for names in INPUTS.values())
    with torch.no_grad():
        return torch.export.export(SelectionPath(model), example_inputs(model), dynamic_shapes=shapes, strict=False)


def example_inputs(model) -> tuple[torch.Tensor, ...]:
    """Inputs of `SelectionPath` with no size of 1, in the order of `INPUTS`."""
    batch = model.processor(_QUESTIONS, _PASSAGES)
    batch["permission_override"] = torch.full(batch["candidate_mask"].shape, float("nan"))
    batch["permission_override"][0, 0] = 0.0
    return tuple(batch[name] for name in INPUTS)


def export_onnx(model, folder, *, int8: bool = False) -> float:
    """Writes `model.onnx`, processor, config and `README.md`, and returns the largest difference of its scores.

    Args:
        model ([`WarrantEncoderForEvidenceSelection`]): in float32.
        folder (`str` or `Path`): where to; it is made if there is none.
        int8: also write `model_int8.onnx`, with weights of 8 bits.

    Raises:
        ValueError: a model that has no such graph, a folder that cannot be written to, or a graph whose scores are not
            those of the model.
        ModuleNotFoundError: onnx, onnxscript or onnxruntime is not installed (extra `export`).
    """
    import onnxruntime  # noqa: F401 (absent: known before the work, not after)
    import onnxscript  # noqa: F401

    folder = Path(folder)
    check_exportable(model)  # before there is a folder
    check_target(folder / GRAPH, create_folder=True)
    program = export_program(model)
    names = SelectionPath(model).names
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as partial:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter about its own parts
            made = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                opset_version=_OPSET,
                input_names=list(INPUTS),
                output_names=list(names),
                dynamic_shapes=tuple(dict(enumerate(axes)) for axes in INPUTS.values()),
            )
        made.save(Path(partial) / GRAPH)
        _save_reading(model, partial)
        difference = largest_difference(model, partial)
        if not difference <= TOLERANCE:
            raise ValueError(
                f"The exported graph differs from the model by {difference:.1e}, more than {TOLERANCE:g}; it was not "
                "kept. Use the model itself, and report this."
            )
        if int8:
            quantize_onnx(partial)
        for path in sorted(Path(partial).iterdir()):
            os.replace(path, folder / path.name)
    write_text(folder / "README.md", _readme(model, folder, names, difference, int8))
    return difference


def quantize_onnx(folder) -> None:
    """Writes `model_int8.onnx` beside `model.onnx`: embeddings and matrices of the encoder in 8 bits.

    Activations are quantised as they come (dynamically), so no data are needed. The readout keeps its float32: masses
    span decades.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source = Path(folder) / GRAPH
    graph = onnx.load(source, load_external_data=False).graph
    kept = [
        node.name for node in graph.node if not any("model.backbone" in prop.value for prop in node.metadata_props)
    ]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as partial:
        target = Path(partial) / INT8_GRAPH
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul", "Gather"],
            nodes_to_exclude=[*kept, *(f"{name}_MatMul" for name in kept)],  # what a Gemm is called once it is split
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        os.replace(target, Path(folder) / INT8_GRAPH)


def largest_difference(model, folder, file: str = GRAPH, questions=_QUESTIONS, passages=_PASSAGES) -> float:
    """Largest absolute difference of any output between model and graph, over candidates that exist."""
    selector, largest = OnnxSelector(folder, file), 0.0
    with torch.no_grad():
        for question, listed in [*zip(questions, passages), (None, None)]:
            asked = (questions, passages) if question is None else ([question], [listed])
            batch = model.processor(*asked)
            expected, found = model(**batch), selector.run(batch)
            for name, values in found.items():
                ours = expected[name].numpy()
                exists = np.isfinite(ours)
                if not np.array_equal(exists, np.isfinite(values)):
                    return float("inf")
                largest = max(largest, float(np.abs(ours[exists] - values[exists]).max(initial=0.0)))
    return largest


def _save_reading(model, folder):
    config = copy.deepcopy(model.config)
    config.base_model = config.base_sha256 = None  # an adapter's encoder; the graph holds all weights
    config.save_pretrained(folder)
    model.processor.save_pretrained(folder)


def _readme(model, folder, names, difference, int8):
    inputs = "; ".join(f"`{name}` [{', '.join(sizes)}]" for name, sizes in INPUTS.items())
    return _README.format(
        name=folder.absolute().name,
        folder=folder,
        graph=GRAPH,
        variant=model.config.variant,
        outputs=", ".join(f"`{name}`" for name in names),
        longest=model.longest_input(),
        difference=difference,
        inputs=inputs,
        int8=_INT8.format(graph=INT8_GRAPH) if int8 else "",
    )


__all__ = ["TOLERANCE", "example_inputs", "export_onnx", "export_program", "largest_difference", "quantize_onnx"]
