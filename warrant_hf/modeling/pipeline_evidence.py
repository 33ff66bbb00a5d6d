"""`pipeline("evidence-selection")`."""

from __future__ import annotations

from transformers import Pipeline


class EvidenceSelectionPipeline(Pipeline):
    """Ranks passages by how much they support an answer to a question.

        >>> pipe = pipeline("evidence-selection")
        >>> pipe(question="Who wrote Emma?", passages=["Emma is a novel by Jane Austen.", "Emma Stone is an actress."])

    Returns the dict of `rank` of the model, or a list of them when `question` is a list and `passages` a list of
    lists. A dict `{"question", "passages"}`, or a list of them, will do too. `revoke`, `revoke_by`, `top_k`,
    `return_tokens` and `batch_size` are those of `rank_batch`.
    """

    # The model finds its own processor; the loader of transformers would also take that of another kind of checkpoint.
    _load_processor = False
    _load_tokenizer = False
    _load_image_processor = False
    _load_feature_extractor = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # By the method and not the class: a model that was loaded by its checkpoint's code has classes of its own. And
        # transformers falls back to the class that a checkpoint names, whatever it is.
        if not hasattr(self.model, "rank_batch"):
            raise ValueError(
                f"{self.model.name_or_path} is a {self.model.config.model_type!r} checkpoint, not an evidence "
                "selector; give the pipeline a selector, or none for the default."
            )
        if self.processor is not None:
            self.model.processor = self.processor
        self.processor = self.model.processor

    def save_pretrained(self, save_directory, **kwargs):
        """Saves model and processor; `pipeline("evidence-selection", model=save_directory)` loads them again.

        The arguments are those of `save_pretrained` of the model.
        """
        self.model.save_pretrained(save_directory, **kwargs)

    def push_to_hub(self, repo_id, **kwargs):
        """`push_to_hub` of the model."""
        return self.model.push_to_hub(repo_id, **kwargs)

    def _sanitize_parameters(self, **kwargs):
        allowed = ("revoke", "revoke_by", "top_k", "return_tokens", "batch_size")
        unknown = sorted(set(kwargs) - set(allowed))
        if unknown:
            raise ValueError(f"Unknown argument {unknown[0]!r}; the pipeline takes {', '.join(allowed)}.")
        return {}, kwargs, {}

    def __call__(self, question=None, passages=None, **kwargs):
        if isinstance(question, dict) and passages is None:
            question, passages = question.get("question"), question.get("passages")
        elif isinstance(question, (list, tuple)) and passages is None and all(isinstance(q, dict) for q in question):
            question, passages = ([asked.get(name) for asked in question] for name in ("question", "passages"))
        if question is None or passages is None:
            raise ValueError("Give both: pipe(question=..., passages=[...]).")
        if not isinstance(question, (str, list, tuple)):
            raise ValueError(f"question is {question!r}; give a text, or a list of texts with a list of lists.")
        _, forward, _ = self._sanitize_parameters(**{**self._forward_params, **kwargs})
        if self._batch_size is not None:  # Pipeline takes it out of the settings it was made with
            forward.setdefault("batch_size", self._batch_size)
        single = isinstance(question, str)
        if single:
            question, passages = [question], [passages]
            if "revoke" in forward:
                forward["revoke"] = [forward["revoke"]]
        with self.device_placement():
            results = self._forward({"questions": question, "passages": passages}, **forward)
        return results[0] if single else results

    def preprocess(self, inputs):
        return inputs

    def _forward(self, inputs, **kwargs):
        return self.model.rank_batch(inputs["questions"], inputs["passages"], **kwargs)

    def postprocess(self, outputs):
        return outputs


__all__ = ["EvidenceSelectionPipeline"]
