"""A page on which two JSON lists are measured."""

import json
from pathlib import Path

import evaluate
import gradio as gr

metric = evaluate.load(str(Path(__file__).with_name("evidence_abstention.py")))


def measure(predictions, references):
    try:
        return metric.compute(predictions=json.loads(predictions), references=json.loads(references), bootstrap=200)
    except (TypeError, ValueError) as error:
        raise gr.Error(f"These lists cannot be measured: {error}") from None


page = gr.Interface(
    measure,
    [
        gr.Code("[0.9, 0.7, 0.2, 0.8]", label="Predictions", language="json"),
        gr.Code("[1, 1, 0, 0]", label="References", language="json"),
    ],
    gr.JSON(label="Metrics, with 95 % intervals"),
    title="Evidence abstention",
    description=metric.description,
    article=metric.inputs_description,
    flagging_mode="never",
)

if __name__ == "__main__":
    page.launch()
