"""What a server counts, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_JOBS = (1, 2, 4, 8, 16, 32, 64, 128)


class ServingMetrics:
    """The counters of one server, in a registry of its own."""

    def __init__(self):
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("warrant_hf_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "warrant_hf_request_seconds", "From request to answer.", ["route"], registry=registry, buckets=_SECONDS
        )
        self.candidates = Counter("warrant_hf_candidates", "Candidates read.", registry=registry)
        self.batch_jobs = Histogram(
            "warrant_hf_batch_requests", "Requests read together.", registry=registry, buckets=_JOBS
        )
        self.batch_seconds = Histogram(
            "warrant_hf_batch_seconds", "Time a batch took.", registry=registry, buckets=_SECONDS
        )
        self.waiting = Gauge("warrant_hf_waiting_requests", "Requests that wait for the model.", registry=registry)

    def batch(self, jobs: int, candidates: int, seconds: float) -> None:
        self.batch_jobs.observe(jobs)
        self.candidates.inc(candidates)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class CountingMiddleware:
    """Counts each request by the route it took and the status it got."""

    def __init__(self, app, metrics: ServingMetrics, routes: frozenset[str]):
        self._app, self._metrics, self._routes = app, metrics, routes

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        # A path that nobody serves is anyone's invention; it must not become a time series.
        route = scope["path"] if scope["path"] in self._routes else "other"
        began = time.monotonic()

        async def counted(message):
            if message["type"] == "http.response.start":
                # Before the client can see the answer, so that who has it finds it counted.
                self._metrics.requests.labels(route, str(message["status"])).inc()
                self._metrics.seconds.labels(route).observe(time.monotonic() - began)
            await send(message)

        await self._app(scope, receive, counted)
