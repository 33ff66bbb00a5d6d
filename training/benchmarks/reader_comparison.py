"""Passage-level table: the three readers and a pairwise cross-encoder, all on the same encoder weights, one budget.

    cd training/benchmarks
    python reader_comparison.py bases --models MODELS
    python reader_comparison.py tune --train TRAIN --eval DEV --models MODELS --out runs/readers
    python reader_comparison.py run --train TRAIN --eval DEV --models MODELS --out runs/readers
    python reader_comparison.py report --out runs/readers

HotpotQA with all ten passages of a question. `bases` takes encoder and readout out of the shipped selector (MiniLM-L6,
trained on sentences of the same training questions, so that a small budget goes a long way) and re-expresses them for
each reader; decoder and global attention start as copies of its layers. The cross-encoder gets the encoder and a fresh
head. `tune` chooses each reader's learning rate on rows of DEV that the table does not use (those of TRAIN
are known to the base), with one grid and one rule for all; `run` trains readers x seeds, two single-threaded processes
side by side, skips what is finished, and scores MiniLM as it was published by cosine; `report` writes the table, with
paired bootstrap intervals over questions. Abstention is measured on lists of eight, in which other passages of the
question stand in for the evidence: a shorter list would be told apart by its length.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import comparison_runs as runs

RECIPE = Path(__file__).parents[1] / "recipes" / "hotpotqa_fid.yaml"
CONVERTER = Path(__file__).parents[1] / "convert_bert.py"
# Reader -> what differs from the recipe, which is that of FiD.
READERS = {
    "encoder": {},
    "fid": {},
    # Full lists and parts of them in turn: about as many tokens as one full list each.
    "led": {"data.draws": 2, "data.separate_lists": True},
    "cross_encoder": {},
}
FROZEN_LAYERS = 3
#: Reader -> how the encoder is converted, the settings of its backbone, and its frozen layers.
BASES = {
    "encoder": (None, {}, FROZEN_LAYERS),
    "fid": ("encoder-decoder", {"attention_probs_dropout_prob": 0.0}, FROZEN_LAYERS),
    # Candidates see each other in LED. A token that sees no further than about its own passage is nearest to what the
    # encoder was trained as, and the global attention of every layer, which starts as a copy, has to be learned.
    "led": ("led", {"attention_dropout": 0.0, "attention_window": [64] * 6}, 0),
}
COSINE_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
GRID = (2e-5, 5e-5, 2e-4)
BEYOND = {2e-5: 1e-5, 2e-4: 5e-4}  # tried where the best rate of the grid lies at its edge
TUNING_ROWS, TUNING_DEV_ROWS = 300, 100
TRAINING_ROWS, DEV_ROWS, ABSTENTION_ROWS = 1000, 200, 100
# One pass over lists of five passages, with three of six encoder layers frozen but in LED: tuning and twelve runs fit
# into about two hours of two cores. Scored are all ten.
BUDGET = {
    "data.size": 5,
    "data.hard": 2,
    "data.draws": 1,
    "training.save_strategy": "no",
    "training.disable_tqdm": True,
}
SHORT = 8
EVAL_SEED = "eval"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("bases", "tune", "run", "report", "one"))
    parser.add_argument("--train", type=Path)
    parser.add_argument("--eval", type=Path)
    parser.add_argument("--models", type=Path, help="folder of the base models")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--variants", nargs="+", choices=READERS, default=tuple(READERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--tuning", action="store_true", help="train without the held-out rows and score those")
    arguments = parser.parse_args()
    {"bases": bases, "tune": tune, "run": run, "report": report, "one": one}[arguments.step](arguments)


def bases(arguments):
    """Encoder and readout of the shipped selector, as a selector of each reader."""
    from transformers import AutoTokenizer

    from warrant_hf import AutoModelForEvidenceSelection, EvidenceProcessor, load_default
    from warrant_hf.modeling.base_weights import find_backbone

    shipped, encoder = load_default(), arguments.models / "pretrained"
    shipped.backbone.save_pretrained(encoder)
    tokenizer = AutoTokenizer.from_pretrained(find_backbone(COSINE_MODEL))
    tokenizer.save_pretrained(encoder)
    for reader, (kind, changes, frozen) in BASES.items():
        source = encoder
        if kind is not None:
            source = arguments.models / f"{reader}-pretrained"
            subprocess.run([sys.executable, str(CONVERTER), str(encoder), str(source), "--to", kind], check=True)
        model = AutoModelForEvidenceSelection.from_backbone(source, encoder=changes, frozen_layers=frozen)
        model.readout.load_state_dict(shipped.readout.state_dict())
        model.processor = EvidenceProcessor(tokenizer, **{"max_length": 512} | model.processor_settings())
        model.save_pretrained(arguments.models / reader)


def tune(arguments):
    files = {name: getattr(arguments, name) for name in ("train", "eval", "models")}
    runs.tune(__file__, arguments, arguments.variants, GRID, files)
    rates = runs.read_rates(arguments.out)
    for edge, beyond in BEYOND.items():
        at_edge = [reader for reader in arguments.variants if rates[reader] == edge]
        if at_edge:
            runs.tune(__file__, arguments, at_edge, (*GRID, beyond), files)


def run(arguments):
    files = {name: getattr(arguments, name) for name in ("train", "eval", "models")}
    runs.run(__file__, arguments, arguments.variants, files)
    cosine(arguments)


def one(arguments):
    """One training run and its predictions."""
    import torch

    from warrant_hf.data.readers import read_rows
    from warrant_hf.recipes import Recipe

    torch.set_num_threads(1)
    (reader,), (seed,) = arguments.variants, arguments.seeds
    folder = runs.folder_of(arguments.out, reader, seed, arguments.rate)
    changes = BUDGET | READERS[reader] | {"seed": seed, "training.learning_rate": arguments.rate}
    if reader == "cross_encoder":
        changes |= {"base_model": str(arguments.models / "pretrained"), "model": {"frozen_layers": FROZEN_LAYERS}}
    else:
        changes |= {"base_model": None, "start_from": str(arguments.models / reader), "model": {}, "encoder": {}}
    recipe = Recipe.from_yaml(RECIPE, changes)
    rows, dev = (read_rows(path, level="passage") for path in (arguments.train, arguments.eval))
    if arguments.tuning:
        rows, dev, abstention = rows[:TUNING_ROWS], dev[DEV_ROWS:][:TUNING_DEV_ROWS], []
    else:
        rows, dev = rows[:TRAINING_ROWS], dev[:DEV_ROWS]
        abstention = dev[:ABSTENTION_ROWS]
    started = time.perf_counter()
    predict, parameters = _train(reader, recipe, rows, folder)
    result = {"variant": reader, "seed": seed, "rate": arguments.rate, "parameters": parameters}
    result |= {"train_seconds": time.perf_counter() - started, "recipe": recipe.model_dump()}
    result |= {"machine": runs.machine(), "rows": {"train": len(rows), "dev": len(dev), "abstention": len(abstention)}}
    started = time.perf_counter()
    runs.write_predictions(folder / "eval.jsonl.gz", predict(dev))
    result["eval_seconds"] = time.perf_counter() - started
    if abstention:
        runs.write_predictions(folder / "abstention.jsonl.gz", predict(_with_and_without(abstention)))
    (folder / "run.json").write_text(json.dumps(result, indent=2) + "\n")


def _with_and_without(rows):
    from warrant_hf.data.candidates import build_candidates, without_evidence

    full = [build_candidates(row, size=SHORT, seed=EVAL_SEED) for row in rows]
    emptied = [without_evidence(row, listed, seed=EVAL_SEED) for row, listed in zip(rows, full)]
    return full + [row for row in emptied if row is not None]


def _train(reader, recipe, rows, folder):
    if reader == "cross_encoder":
        from cross_encoder_peer import predict_peer, train_peer

        model = train_peer(recipe, rows, folder)
        return (lambda listed: predict_peer(model, listed, batch_size=16)), _trainable(model)
    from warrant_hf.evaluation.predict import predict
    from warrant_hf.recipes import train_rows

    model = train_rows(recipe, rows, output_dir=folder).model
    return (lambda listed: predict(model, listed, 4)), _trainable(model)


def _trainable(model):
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def cosine(arguments):
    """The untrained encoder: cosine of mean-pooled states of question and passage."""
    from sentence_transformers import SentenceTransformer

    from warrant_hf.data.readers import read_rows
    from warrant_hf.evaluation.predictions import Prediction
    from warrant_hf.modeling.base_weights import find_backbone
    from warrant_hf.modeling.processing_evidence import full_text

    rows = read_rows(arguments.eval, level="passage")[:DEV_ROWS]
    encoder = SentenceTransformer(find_backbone(COSINE_MODEL), device="cpu")
    texts = [[row.question, *(full_text(candidate.to_dict()) for candidate in row.candidates)] for row in rows]
    vectors = encoder.encode([text for listed in texts for text in listed], normalize_embeddings=True)
    predictions, start = [], 0
    for row, listed in zip(rows, texts):
        question, passages = vectors[start], vectors[start + 1 : start + len(listed)]
        start += len(listed)
        scores = (passages @ question).astype(float).tolist()
        predictions.append(Prediction(id=row.id, scores=scores, labels=row.labels, kinds=row.kinds))
    folder = arguments.out / "cosine"
    folder.mkdir(parents=True, exist_ok=True)
    runs.write_predictions(folder / "eval.jsonl.gz", predictions)


def report(arguments):
    from reader_report import write_report

    write_report(
        runs.finished_runs(arguments.out, arguments.variants, arguments.seeds), arguments.out / "cosine", arguments.out
    )


if __name__ == "__main__":
    main()
