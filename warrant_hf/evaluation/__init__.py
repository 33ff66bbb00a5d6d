"""Evaluation: metrics with intervals over questions, calibration, and reports."""

from .bootstrap import bootstrap_interval, paired_difference
from .calibration import expected_calibration_error, reliability_bins
from .metrics import (
    Replicates,
    abstention_auroc,
    compare_replicates,
    compare_runs,
    evidence_metrics,
    replicate_runs,
    supporting_fact_scores,
)
from .predictions import Prediction, count_predictions
from .report import metrics_table_markdown, write_json, write_text

__all__ = [
    "Prediction",
    "Replicates",
    "abstention_auroc",
    "bootstrap_interval",
    "compare_replicates",
    "compare_runs",
    "count_predictions",
    "evidence_metrics",
    "expected_calibration_error",
    "metrics_table_markdown",
    "paired_difference",
    "reliability_bins",
    "replicate_runs",
    "supporting_fact_scores",
    "write_json",
    "write_text",
]
