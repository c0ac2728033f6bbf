"""Every Prometheus series of the service, all present from the first scrape; only this file knows the client."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKENS = tuple(2.0**power for power in range(6, 17))
TASKS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
REDIS_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STATUSES = ("200", "404", "413", "422", "429", "499", "500", "503", "504")

DeviceMemory = Callable[[], dict[str, int]]


class Metrics:
    """The series, in a registry of their own, so that two services in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.requests = counter(
            "requests", "Answered /rerank requests by HTTP status; 499: the client hung up.", "status"
        )
        for status in STATUSES:
            self.requests.labels(status)
        self.request_seconds = histogram(
            "request_seconds", "Whole /rerank request, from its body to its answer.", SECONDS
        )
        self.tokenize_seconds = histogram("tokenize_seconds", "Per request: turning its texts into token ids.", SECONDS)
        self.queue_seconds = histogram(
            "queue_seconds", "Per request: from the queue until a batch first takes it.", SECONDS
        )
        self.score_seconds = histogram("score_seconds", "Per request: from there until its last score.", SECONDS)
        self.batch_tokens = histogram("batch_tokens", "Rows the model computed in a batch.", TOKENS)
        self.batch_tasks = histogram("batch_tasks", "Requests that shared a batch.", TASKS)
        self.candidates = counter("candidates", "Candidates scored in answered requests.")
        self.tokens = counter("tokens", "Token ids of answered requests: the query once, and every candidate.")
        self.truncated_tokens = counter("truncated_tokens", "Word pieces cut from texts longer than the model takes.")
        self.stages = counter("stages", "Stages run for answered requests.", "stage")
        self.stage_candidates = counter("stage_candidates", "Candidates that a stage scored.", "stage")
        self.stage_seconds = histogram("stage_seconds", "Per stage of a request.", SECONDS, "stage")
        self.degraded = counter("degraded", "Answers of which the budget or the load cut a stage short.")
        self.dropped_tasks = counter("dropped_tasks", "Requests given up before they were scored.", "reason")
        for reason in ("cancelled", "expired"):
            self.dropped_tasks.labels(reason)
        self.failed_batches = counter("failed_batches", "Batches that raised an error and were retried in parts.")
        self.waiting_tokens = gauge("waiting_tokens", "Rows that wait to be scored.")
        self.waiting_tasks = gauge("waiting_tasks", "Requests that wait to be scored, in whole or in part.")
        self.token_cache_lookups = counter(
            "token_cache_lookups", "Texts looked up among recently tokenised ones.", "outcome"
        )
        for outcome in ("hit", "miss"):
            self.token_cache_lookups.labels(outcome)
        self.token_cache_bytes = gauge("token_cache_bytes", "Size of the token ids kept of recent texts.")
        self.connections = gauge("connections", "Open HTTP connections.")
        self.refused_connections = counter(
            "refused_connections", "HTTP connections that were closed for what their client did.", "reason"
        )
        for reason in ("headers", "slow_headers", "slow_body", "unread_answer", "too_many"):
            self.refused_connections.labels(reason)
        self._add_cache()
        self.ready = gauge("ready", "1 when the last self-test passed and requests are taken, else 0.")
        self.build_info = gauge("build_info", "Always 1; what is served.", "version", "model", "device", "dtype")
        ProcessCollector(registry=self.registry, namespace="bandrank")
        self._memory = _MemoryCollector()
        self.registry.register(self._memory)

    def watch_device(self, memory: DeviceMemory) -> None:
        """From now on a scrape asks `memory` for the device's bytes: allocated, its peak, reserved, of which by CUDA
        graphs, total.
        """
        self._memory.device = memory

    def watch_connections(self, count: Callable[[], float]) -> None:
        """From now on a scrape asks this how many connections are open."""
        self.connections.set_function(count)

    def watch_queue(self, waiting_rows: Callable[[], float], waiting_tasks: Callable[[], float]) -> None:
        """From now on a scrape asks these how much is queued."""
        self.waiting_tokens.set_function(waiting_rows)
        self.waiting_tasks.set_function(waiting_tasks)

    def declare_stage(self, name: str) -> None:
        """Puts the series of a stage at 0, before its first request."""
        for metric in (self.stages, self.stage_candidates, self.stage_seconds):
            metric.labels(name)

    def exposition(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self.registry)

    def _add_cache(self) -> None:
        """The series of the cache and of Redis behind it."""
        self.cache_candidates = self._counter(
            "cache_candidates", "Candidates of requests whose representation was cached or not.", "outcome"
        )
        for outcome in ("hit", "miss"):
            self.cache_candidates.labels(outcome)
        self.cache_lookups = self._counter(
            "cache_lookups", "Representations looked up in memory and, where it had none, in Redis.", "tier", "outcome"
        )
        for outcome in ("hit", "miss"):
            self.cache_lookups.labels("memory", outcome)
        for outcome in ("hit", "miss", "corrupt", "unavailable"):
            self.cache_lookups.labels("redis", outcome)
        self.cache_memory_entries = self._gauge("cache_memory_entries", "Representations held in memory.")
        self.cache_memory_bytes = self._gauge("cache_memory_bytes", "Size of the representations held in memory.")
        self.cache_writes = self._counter(
            "cache_writes", "Representations stored in Redis, refused or lost there, or not sent to it.", "outcome"
        )
        for outcome in ("stored", "failed", "dropped"):
            self.cache_writes.labels(outcome)
        self.cache_pending_write_bytes = self._gauge(
            "cache_pending_write_bytes", "Size of what waits to be sent to Redis."
        )
        self.redis_seconds = self._histogram(
            "redis_seconds", "Per call to Redis, however it ended.", REDIS_SECONDS, "operation"
        )
        self.redis_errors = self._counter(
            "redis_errors", "Calls that failed, took too long, or were refused in part.", "operation"
        )
        for operation in ("get", "set", "delete"):
            self.redis_seconds.labels(operation)
            self.redis_errors.labels(operation)
        self.redis_bytes = self._counter(
            "redis_bytes", "Size of values read from Redis and written to it.", "direction"
        )
        for direction in ("read", "written"):
            self.redis_bytes.labels(direction)
        self.redis_breaker_state = self._gauge(
            "redis_breaker_state", "0: Redis is used; 1: it is tried again; 2: it does not answer and is left alone."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"bandrank_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"bandrank_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"bandrank_{name}", text, labels, buckets=buckets, registry=self.registry)


class _MemoryCollector(Collector):
    """Memory, read when scraped."""

    device: DeviceMemory = staticmethod(lambda: {"allocated": 0, "peak": 0, "reserved": 0, "graphs": 0, "total": 0})

    def collect(self) -> Iterator[GaugeMetricFamily]:
        process = GaugeMetricFamily("bandrank_process_memory_bytes", "Resident memory of the process.")
        process.add_metric([], _resident_bytes())
        yield process
        device = GaugeMetricFamily(
            "bandrank_device_memory_bytes", "Memory of the scoring device; 0 on a CPU.", labels=["kind"]
        )
        for kind, size in self.device().items():
            device.add_metric([kind], size)
        yield device


def _resident_bytes() -> float:
    """Resident set size; 0 where /proc is missing."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    return float(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
