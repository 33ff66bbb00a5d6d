"""Data layer: schema, readers, candidate lists, and the EvidenceWorld generator."""

from .candidates import CandidateDataset, build_candidates, missing_gold, random_sublist, without_evidence
from .evidence_world import EvidenceWorld
from .readers import read_rows, rows_from
from .schema import Candidate, DataError, EvidenceRow

__all__ = [
    "Candidate",
    "CandidateDataset",
    "DataError",
    "EvidenceRow",
    "EvidenceWorld",
    "build_candidates",
    "missing_gold",
    "random_sublist",
    "read_rows",
    "rows_from",
    "without_evidence",
]
