"""What stood behind a score: the ledger of operating evidence and its replay; what permission does to a decision; what
can be read from frozen states, and which power of mass-aware attention to take for it."""

from .amplitude import TraceSite, amplitude_trace
from .by_kind import kind_report
from .decisions import DecisionCase, Decisions, read_decisions
from .deletion_insertion import deletion_insertion_report
from .heatmaps import heatmap_figure, save_heatmaps
from .interventions import answer_report, intervention_report
from .ledger import describe_model, ledger_records
from .ledger_files import LedgerWriter, read_ledger, write_parquet
from .ledger_replay import Difference, Replay, replay
from .ledger_rescore import Rescore, rescore
from .ledger_schema import SCHEMA_VERSION, LedgerRecord
from .marginal_value import MarginalValues, marginal_value_report, marginal_values
from .operator_identities import (
    SameAggregate,
    SignalToNoise,
    gate_gradient,
    mass_jacobian,
    renormalised_jacobian,
    same_aggregate,
    signal_to_noise,
)
from .power_selection import (
    PowerChoice,
    UnitMassAttention,
    leave_one_model_out,
    mass_control,
    power_schedule,
    select_power,
)
from .probes import (
    ProbeReport,
    Recovery,
    context_margin,
    four_conditions,
    probe_recovery,
    recovery_difference,
    score_recovery,
    support_coordinate,
)
from .utilities import UTILITIES

__all__ = [
    "SCHEMA_VERSION",
    "UTILITIES",
    "DecisionCase",
    "Decisions",
    "Difference",
    "LedgerRecord",
    "LedgerWriter",
    "MarginalValues",
    "PowerChoice",
    "ProbeReport",
    "Recovery",
    "Replay",
    "Rescore",
    "SameAggregate",
    "SignalToNoise",
    "TraceSite",
    "UnitMassAttention",
    "amplitude_trace",
    "answer_report",
    "context_margin",
    "deletion_insertion_report",
    "describe_model",
    "four_conditions",
    "gate_gradient",
    "heatmap_figure",
    "intervention_report",
    "kind_report",
    "leave_one_model_out",
    "ledger_records",
    "marginal_value_report",
    "marginal_values",
    "mass_control",
    "mass_jacobian",
    "power_schedule",
    "probe_recovery",
    "read_decisions",
    "read_ledger",
    "recovery_difference",
    "renormalised_jacobian",
    "replay",
    "rescore",
    "same_aggregate",
    "save_heatmaps",
    "score_recovery",
    "select_power",
    "signal_to_noise",
    "support_coordinate",
    "write_parquet",
]
