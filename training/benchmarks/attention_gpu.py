"""The benchmark of attention.py on a GPU, in a few minutes: one command, one CSV, one line where there is no GPU.

python training/benchmarks/attention_gpu.py [--out training/benchmarks/results/attention_gpu.csv]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "attention_gpu.csv"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("No GPU here: nothing was measured. The same operator on a CPU: attention.py run --out FILE.")
        return
    import attention

    # The kernels first, because attention.py leaves a wrong one out and goes on.
    for dtype in ("fp32", "bf16"):
        case = {**attention.HEADLINE, "dtype": dtype}
        error = attention.error_against_reference("ours, triton", attention.ours("triton"), case, "cuda")
        print(f"triton, {dtype}: relative error {error:.1e}")
    attention.main(["run", "--device", "cuda", "--out", given.out])


if __name__ == "__main__":
    main()
