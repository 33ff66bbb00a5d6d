"""A reranking server: `warrant-hf serve`, or `create_app(model)` for a server of your own.

It needs fastapi, uvicorn and prometheus_client, which the extra `serve` brings.
"""

from .app import create_app
from .batching import Batcher, Job
from .limits import ServingLimits

__all__ = ["Batcher", "Job", "ServingLimits", "create_app"]
