"""Reliability as a claim to be tested: a log-precision from evidence of its own, and six tests of it."""

from .contract import check_precision_contract
from .contract_report import ContractReport, ContractTest
from .evidence_readings import READING_EVIDENCE_NAMES, EvidenceReadings
from .information_boundary import LeakError, check_information_boundary
from .losses import PRECISION_LOSSES
from .model import FactorisedModel, PrecisionModel, ReliabilityHead
from .sensor_world import EVIDENCE_NAMES, PrecisionPairs, SensorBatch, SensorWorld
from .training import fit_precision_model
from .witnesses import discount_duplicates, optimal_weights

__all__ = [
    "EVIDENCE_NAMES",
    "PRECISION_LOSSES",
    "READING_EVIDENCE_NAMES",
    "ContractReport",
    "ContractTest",
    "EvidenceReadings",
    "FactorisedModel",
    "LeakError",
    "PrecisionModel",
    "PrecisionPairs",
    "ReliabilityHead",
    "SensorBatch",
    "SensorWorld",
    "check_information_boundary",
    "check_precision_contract",
    "discount_duplicates",
    "fit_precision_model",
    "optimal_weights",
]
