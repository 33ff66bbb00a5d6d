"""What test_round_trip.py runs in processes of their own, which have a Hub: `python hub_session.py STEPS ARGUMENTS`.

Prints a JSON object: name of a step -> its result, or the type and the words of what it raised.
"""

import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path

QUESTION, PASSAGES = "who wrote emma?", ["austen did.", {"title": "emma", "text": "a novel"}, "no"]
ANN = {"token": "hf_ann"}


def ask(path, content=None):
    """A request to the server's own routes: a mark in its log, or faults."""
    data = None if content is None else json.dumps(content).encode()
    urllib.request.urlopen(os.environ["HF_ENDPOINT"] + path, data).close()


class Results(dict):
    def step(self, name, function, **faults):
        """Runs it after a mark in the server's log, with these faults."""
        ask(f"/mark/{name}")
        if faults:
            ask("/faults", faults)
        try:
            self[name] = {"value": function()}
        except Exception as error:
            self[name] = {"type": type(error).__name__, "error": str(error)}


def online(folder, source):
    """Pushes the selector in the folder `source`, and loads it by name."""
    import torch
    from transformers import AutoModel, AutoProcessor, pipeline

    from tests.test_trainer import ROWS
    from warrant_hf import AutoModelForEvidenceSelection, EvidenceTrainer, EvidenceTrainingArguments

    load, results = AutoModelForEvidenceSelection.from_pretrained, Results()
    model = load(source)

    def rank(name, where=None, **settings):
        where = {} if where is None else {"cache_dir": f"{folder}/{where}"}
        return load(name, **{**ANN, **where, **settings}).rank(QUESTION, PASSAGES)

    def push(name, **settings):
        return str(model.push_to_hub(name, **{**ANN, "private": True, **settings}))

    results.step("push", lambda: push("ann/first"))
    commit = results["push"]["value"].rpartition("/")[2]
    results.step("first", lambda: model.rank(QUESTION, PASSAGES))
    results.step("push_no_token", lambda: push("ann/other", token=False))
    results.step("push_wrong_token", lambda: push("ann/other", token="hf_wrong"))
    results.step("push_no_right", lambda: push("bob/first"))
    with torch.no_grad():
        model.readout.bias += 0.5
    results.step("second", lambda: model.rank(QUESTION, PASSAGES))
    results.step("push_refused", lambda: push("ann/first"), upload=1, commit=1)
    results.step("push_again", lambda: push("ann/first", commit_message="Once more"))
    results.step("push_without_code", lambda: push("ann/plain", with_code=False))
    pipe = pipeline("evidence-selection", model=model)
    results.step("push_pipeline", lambda: str(pipe.push_to_hub("ann/pipeline", private=True, **ANN)))
    saving = {"push_to_hub": True, "repo_id": "ann/saved", "private": True}
    results.step("push_saved", lambda: model.save_pretrained(f"{folder}/saved", **saving, **ANN))

    def push_by_command():
        from typer.testing import CliRunner

        from warrant_hf_cli import app

        os.environ["HF_TOKEN"] = "hf_ann"
        (Path(folder) / "saved" / "reliability.png").write_bytes(b"\x89PNG")
        (Path(folder) / "saved" / "notes.txt").write_text("ours")
        (Path(folder) / "saved" / "README.md").write_text("---\nlicense: apache-2.0\n---\n\nOur card.\n")
        done = CliRunner().invoke(app, ["push", f"{folder}/saved", "ann/command", "--private"])
        wrong = CliRunner().invoke(app, ["push", f"{folder}/saved", "bob/command"])
        del os.environ["HF_TOKEN"]
        return [done.exit_code, done.output, wrong.exit_code, wrong.output]

    results.step("push_command", push_by_command)

    def command(*arguments):
        from typer.testing import CliRunner

        from warrant_hf_cli import app

        os.environ["HF_TOKEN"] = "hf_ann"
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        del os.environ["HF_TOKEN"]
        return [done.exit_code, " ".join(done.output.split())]

    def push_without_card(kind):
        """A folder that has no README.md, or one that cannot be read."""
        place = Path(folder) / f"no-card-{kind}"
        shutil.copytree(source, place)
        (place / "reliability.png").write_bytes(b"\x89PNG")
        if kind == "link":
            (place / "README.md").symlink_to(place / "gone")
        elif kind == "folder":
            (place / "README.md").mkdir()
        return command("push", place, f"ann/no-card-{kind}")

    for kind in ("none", "link", "folder"):
        results.step(f"push_no_card_{kind}", lambda kind=kind: push_without_card(kind))

    def calibrate(name, where):
        told = command("calibrate", "--model", name, "--data", "world:40:1", "--size", 4, "--output", where)
        card = Path(where) / "README.md"
        return [
            *told,
            card.read_text() if card.is_file() else None,
            sorted(path.name for path in Path(where).iterdir()),
        ]

    results.step("calibrate_command", lambda: calibrate("ann/command", f"{folder}/calibrated"))
    results.step("calibrate_no_card", lambda: calibrate("bob/ready", f"{folder}/calibrated-ready"))

    results.step("load_commit", lambda: rank("ann/first", revision=commit))
    results.step("load_main", lambda: rank("ann/first"))
    results.step("load_cached", lambda: rank("ann/first"))
    results.step("load_cached_commit", lambda: rank("ann/first", revision=commit))
    for_name = {"model": "ann/first", "revision": commit, **ANN}
    results.step("pipeline", lambda: pipeline("evidence-selection", **for_name)(question=QUESTION, passages=PASSAGES))
    results.step("auto_model", lambda: AutoModel.from_pretrained("ann/first", **ANN).rank(QUESTION, PASSAGES))
    results.step("auto_processor", lambda: type(AutoProcessor.from_pretrained("ann/first", **ANN)).__name__)
    for name in ("plain", "pipeline", "saved", "command"):
        results.step(f"load_{name}", lambda name=name: rank(f"ann/{name}"))
    results.step("push_no_card_again", lambda: command("push", f"{folder}/no-card-none", "ann/command"))

    def train(token="hf_ann"):
        arguments = EvidenceTrainingArguments(
            f"{folder}/run",
            push_to_hub=True,
            hub_model_id="ann/trained",
            hub_token=token,
            hub_private_repo=True,
            hub_strategy="every_save",
            hub_always_push=True,
            save_strategy="steps",
            save_steps=1,
            max_steps=2,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        model = load(source)
        trainer = EvidenceTrainer(model, arguments, train_dataset=ROWS, processing_class=model.processor)
        trainer.train()
        trainer.push_to_hub()
        return trainer.model.rank(QUESTION, PASSAGES)

    results.step("train", train)
    results.step("load_trained", lambda: rank("ann/trained"))
    results.step("train_wrong_token", lambda: train("hf_wrong"))

    results.step("wrong_token", lambda: rank("ann/first", "a", token="hf_wrong"))
    results.step("no_token", lambda: rank("ann/first", "b", token=False))
    results.step("missing", lambda: rank("ann/nothing", "c"))
    results.step("missing_revision", lambda: rank("ann/first", "d", revision="v9"))
    results.step("gated", lambda: rank("bob/gated", "e"))
    results.step("gated_for_a_reader", lambda: rank("bob/gated", "f", token="hf_eve"))
    results.step("other_model", lambda: rank("bob/other", "g"))
    results.step("no_weights", lambda: rank("bob/empty", "h"))
    results.step("corrupt", lambda: rank("ann/first", "i"), corrupt=1)
    results.step("corrupt_again", lambda: rank("ann/first", "i"))
    results.step("corrupt_mended", lambda: rank("ann/first", "i", force_download=True))
    results.step("short", lambda: rank("ann/first", "j"), short=1)
    results.step("short_mended", lambda: rank("ann/first", "j"))
    results.step("cut", lambda: rank("ann/first", "k"), cut=1)
    results.step("killed", lambda: rank("bob/ready", "killed"))
    results.step("end", lambda: commit)
    return results


def offline(commit):
    """Loads from the cache that `online` has filled."""
    from transformers import pipeline

    from warrant_hf import AutoModelForEvidenceSelection

    load, results = AutoModelForEvidenceSelection.from_pretrained, {}
    results["main"] = load("ann/first").rank(QUESTION, PASSAGES)
    results["commit"] = load("ann/first", revision=commit).rank(QUESTION, PASSAGES)
    results["pipeline"] = pipeline("evidence-selection", model="ann/first")(question=QUESTION, passages=PASSAGES)
    try:
        load("ann/never-loaded")
    except OSError as error:
        results["error"] = str(error)
    return results


def without_package(commit):
    """Loads with the code of the repository."""
    sys.modules["warrant_hf"] = None  # neither found nor imported
    from transformers import AutoModel, pipeline

    where = {"revision": commit, "trust_remote_code": True}
    model = AutoModel.from_pretrained("ann/first", **where)
    pipe = pipeline("evidence-selection", model="ann/first", **where)
    return {
        "module": type(model).__module__,
        "model": model.rank(QUESTION, PASSAGES),
        "pipeline": pipe(question=QUESTION, passages=PASSAGES),
    }


def download(cache):
    from huggingface_hub import hf_hub_download

    return hf_hub_download("bob/ready", "model.safetensors", cache_dir=cache)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from huggingface_hub import constants

    # The client writes what it gets in parts of this size, of 10 MB: too large for files as small as ours to be cut.
    constants.DOWNLOAD_CHUNK_SIZE = 500
    steps = {"online": online, "offline": offline, "without_package": without_package, "download": download}
    print(json.dumps(steps[sys.argv[1]](*sys.argv[2:])))
