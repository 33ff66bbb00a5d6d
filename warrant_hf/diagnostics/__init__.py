"""What stood behind a score: the ledger of operating evidence and its replay; what can be read from frozen states, and
which power of mass-aware attention to take for it."""

from .amplitude import TraceSite, amplitude_trace
from .ledger import describe_model, ledger_records
from .ledger_files import LedgerWriter, read_ledger, write_parquet
from .ledger_replay import Difference, Replay, replay
from .ledger_rescore import Rescore, rescore
from .ledger_schema import SCHEMA_VERSION, LedgerRecord
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

__all__ = [
    "SCHEMA_VERSION",
    "Difference",
    "LedgerRecord",
    "LedgerWriter",
    "PowerChoice",
    "ProbeReport",
    "Recovery",
    "Replay",
    "Rescore",
    "TraceSite",
    "UnitMassAttention",
    "amplitude_trace",
    "context_margin",
    "describe_model",
    "four_conditions",
    "leave_one_model_out",
    "ledger_records",
    "mass_control",
    "power_schedule",
    "probe_recovery",
    "read_ledger",
    "recovery_difference",
    "replay",
    "rescore",
    "score_recovery",
    "select_power",
    "support_coordinate",
    "write_parquet",
]
