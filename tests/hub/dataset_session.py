"""What test_dataset_export.py runs in a process of its own, which has a Hub: `python dataset_session.py FOLDER CARD`.

Prints a JSON object: name of a step -> its result, or the words of what it raised.
"""

import json
import sys
from pathlib import Path


def main(folder, card):
    from datasets import load_dataset
    from huggingface_hub import DatasetCard, ModelCard, snapshot_download

    from tests.hub.test_dataset_export import FACTS, splits
    from warrant_hf.data.export import push_dataset, rows_of

    results = {}

    def step(name, function):
        try:
            results[name] = function()
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"

    def read(source):
        loaded = load_dataset(source, token="hf_ann")
        return {split: [row.to_dict() for row in rows_of(rows)] for split, rows in loaded.items()}

    def snapshot():
        return snapshot_download(
            "ann/lists", repo_type="dataset", token="hf_ann", local_dir=f"{folder}/lists", cache_dir=f"{folder}/cache"
        )

    step("push", lambda: push_dataset(splits(), "ann/lists", private=True, token="hf_ann", **FACTS))
    step("push_again", lambda: push_dataset(splits(), "ann/lists", token="hf_ann", **FACTS))
    step("no_right", lambda: push_dataset(splits(), "bob/lists", token="hf_ann", **FACTS))
    step("wrong_token", lambda: push_dataset(splits(), "ann/lists", token="hf_wrong", **FACTS))
    step("snapshot", lambda: read(snapshot()))
    step("by_name", lambda: read("ann/lists"))
    step("dataset_card", lambda: DatasetCard.load(f"{folder}/lists/README.md").validate())
    step("model_card", lambda: ModelCard.load(card).validate())
    return results


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    print(json.dumps(main(*sys.argv[1:])))
