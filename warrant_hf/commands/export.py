"""`warrant-hf export`: a selector as an ONNX file."""

from __future__ import annotations

from pathlib import Path

from .loading import load_model


def run(*, out: Path, model: str | None, int8: bool) -> None:
    from ..export import export_onnx

    difference = export_onnx(load_model(model), out, int8=int8)
    for path in sorted(out.glob("*.onnx")):
        print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    print(f"The scores of model.onnx differ from those of the selector by {difference:.1e} at most.")
