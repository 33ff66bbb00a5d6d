"""What stood behind a score: the ledger of operating evidence and its replay."""

from .ledger import describe_model, ledger_records
from .ledger_files import LedgerWriter, read_ledger, write_parquet
from .ledger_replay import Difference, Replay, replay
from .ledger_rescore import Rescore, rescore
from .ledger_schema import SCHEMA_VERSION, LedgerRecord

__all__ = [
    "SCHEMA_VERSION",
    "Difference",
    "LedgerRecord",
    "LedgerWriter",
    "Replay",
    "Rescore",
    "describe_model",
    "ledger_records",
    "read_ledger",
    "replay",
    "rescore",
    "write_parquet",
]
