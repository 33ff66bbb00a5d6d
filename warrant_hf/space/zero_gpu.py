"""ZeroGPU of Hugging Face Spaces: there is a GPU only while a function that `spaces.GPU` decorates runs."""

from __future__ import annotations

from collections.abc import Callable

try:  # Only such hardware has this package. It must come before CUDA starts, and so while modules are imported.
    from spaces import GPU
except ImportError:
    GPU = None


def on_gpu(work: Callable) -> Callable:
    """`work` with a GPU for as long as it runs, on ZeroGPU hardware; elsewhere `work` itself.

    There it runs in another process, the only one that has the weights: what it takes and gives is pickled.
    """
    if GPU is None:
        return work

    @GPU
    def complaining(*values):
        # Of an exception nothing but the name of its class would come back.
        try:
            return work(*values), None
        except ValueError as error:
            return None, str(error)

    def run(*values):
        result, complaint = complaining(*values)
        if complaint is not None:
            raise ValueError(complaint)
        return result

    return run
