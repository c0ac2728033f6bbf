"""Every Prometheus series of the service; the only file that imports the client."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PROXY_SECONDS = (*SECONDS, 300.0)  # a search engine may take its time
TOKENS = tuple(2.0**power for power in range(6, 17))
TASKS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
REDIS_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STATUSES = ("200", "401", "403", "404", "413", "415", "422", "429", "499", "500", "503", "504")
LOOKUP = ("hit", "miss")
STEPS = {  # of answering a request
    "tokenize": "Per request: turning its texts into token ids.",
    "cache": "Per request: looking up representations, in Redis too.",
    "encode": "Per request: encoding the candidates that were not cached, from the queue on.",
    "queue": "Per request: waiting in the queue until a batch first takes it.",
    "score": "Per request: from the first batch that takes it until its last score.",
}
OPERATIONS = ("get", "set", "delete")
TAU = (-0.5, 0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)
TENTHS = tuple(tenth / 10 for tenth in range(11))
DRIFT = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SHIFT = (*(-bound for bound in DRIFT[:0:-1]), *DRIFT)
SHADOW_DROPS = ("full", "memory", "too_large", "late", "stopping")
SHADOW_CUTOFFS = (1, 5, 10)
DEVICE_MEMORY = ("allocated", "peak", "reserved", "graphs", "total")
OUTCOMES = ("passed", "reranked", "skipped", "failed", "unanswered")  # of a request to the search proxy

Kind = TypeVar("Kind", bound=MetricWrapperBase)


class Metrics:
    """The series, in a registry of their own, so that two services in one process do not mix.

    Label values that are known in advance start at 0, except the paths of `http_request_seconds`, which would have a
    thousand series; others appear when first used.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(self._add, Counter), partial(self._add, Gauge)
        seconds, tokens, tasks = map(self._histogram, (SECONDS, TOKENS, TASKS))

        self.requests = counter(
            "requests", "Answered requests to rank by HTTP status; 499: the client hung up.", status=STATUSES
        )
        self.request_seconds = seconds(
            "request_seconds", "Whole request to rank, from its body to its answer; refused ones (4xx, 503) left out."
        )
        self.http_requests = counter("http_requests", "Answered requests by path and HTTP status.", path=(), status=())
        self.http_request_seconds = seconds(
            "http_request_seconds", "Whole request, by path; refused ones (4xx, 503) left out.", path=()
        )
        self.step_seconds = {step: seconds(f"{step}_seconds", text) for step, text in STEPS.items()}
        self.batch_tokens = tokens("batch_tokens", "Rows the model computed in a batch.")
        self.batch_tasks = tasks("batch_tasks", "Tasks that shared a batch: what stages of requests score or encode.")
        self.candidates = counter("candidates", "Candidates scored in answered requests.")
        self.tokens = counter("tokens", "Token ids of answered requests: the query once, and every candidate.")
        self.truncated_tokens = counter("truncated_tokens", "Word pieces cut from texts longer than the model takes.")
        self.stages = counter("stages", "Stages run for answered requests.", stage=())
        self.stage_candidates = counter("stage_candidates", "Candidates that a stage scored.", stage=())
        self.stage_seconds = seconds("stage_seconds", "Whole stage of a request.", stage=())
        self.degraded = counter("degraded", "Answers in which the budget or the load cut a stage short.")
        self.occluded_texts = counter("occluded_texts", "Texts without some of their words, scored to explain others.")
        self.embedded_texts = counter("embedded_texts", "Texts whose embeddings were answered.")
        self.dropped_tasks = counter(
            "dropped_tasks",
            "Tasks given up before they were scored; cut: of a stage whose request was answered by another.",
            reason=("cancelled", "expired", "cut"),
        )
        self.failed_batches = counter("failed_batches", "Batches that raised an error and were retried in parts.")
        self.waiting_tokens = gauge("waiting_tokens", "Rows that wait to be scored.")
        self.waiting_tasks = gauge("waiting_tasks", "Tasks that wait to be scored, in whole or in part.")

        self.token_cache_lookups = counter(
            "token_cache_lookups", "Texts looked up among recently tokenised ones.", outcome=LOOKUP
        )
        self.token_cache_bytes = gauge("token_cache_bytes", "Size of the token ids kept of recent texts.")
        self.memory_in_flight_bytes = gauge(
            "memory_in_flight_bytes", "Memory that is reserved for requests: bodies, texts and answers."
        )
        self.connections = gauge("connections", "Open HTTP connections.")
        self.tls_certificate_expiry = gauge(
            "tls_certificate_expiry_time_seconds", "When the port's certificate expires, in Unix time; 0 without TLS."
        )
        self.refused_connections = counter(
            "refused_connections",
            "HTTP connections that the service refused or broke off. displaced: a silent one made room for another; "
            "too_many: there was no room, or room for probes only.",
            reason=(
                *("malformed", "headers", "slow_headers", "slow_body", "unread_answer", "handshake"),
                *("displaced", "too_many"),
            ),
        )
        self.refused_requests = counter(
            "refused_requests",
            "Requests refused for want of a known key, of a scope, or by the rate of a key; "
            "ranking: those that bandrank_requests_total counts as well.",
            reason=("unauthorized", "forbidden", "rate"),
            kind=("ranking", "other"),
        )
        self.cache_candidates = counter(
            "cache_candidates", "Candidates of requests whose representation was cached or not.", outcome=LOOKUP
        )
        self.cache_lookups = counter(
            "cache_lookups",
            "Representations looked up in memory and, where it had none, in Redis.",
            tier=("memory", "redis"),
            outcome=LOOKUP,
        )
        for outcome in ("corrupt", "unavailable"):
            self.cache_lookups.labels("redis", outcome)
        self.cache_memory_entries = gauge("cache_memory_entries", "Representations held in memory.")
        self.cache_memory_bytes = gauge("cache_memory_bytes", "Size of the representations held in memory.")
        self.cache_writes = counter(
            "cache_writes",
            "Representations stored in Redis, refused or lost there, or not sent to it.",
            outcome=("stored", "failed", "dropped"),
        )
        self.cache_pending_write_bytes = gauge("cache_pending_write_bytes", "Size of what waits to be sent to Redis.")
        self._add_redis()
        self._add_shadow()
        self.proxy = ProxyMetrics(counter, self._histogram(PROXY_SECONDS))
        ProcessCollector(registry=self.registry, namespace="bandrank")
        self.ready = gauge("ready", "1 when the last self-test passed and requests are taken, else 0.")
        self.build_info = gauge("build_info", "Always 1; what is served.", version=(), model=(), device=(), dtype=())
        self.cuda_kernels = gauge("cuda_kernels", "1 if CUDA kernels compute a scorer's attention, else 0.", scorer=())
        self._device_memory = gauge(
            "device_memory_bytes", "Memory of the scoring device; 0 on a CPU.", kind=DEVICE_MEMORY
        )

    def watch_device(self, memory: Mapping[str, Callable[[], float]]) -> None:
        """Makes each scrape read the device's memory, in bytes, of every kind in DEVICE_MEMORY."""
        for kind in DEVICE_MEMORY:
            self._device_memory.labels(kind).set_function(memory[kind])

    def declare_stage(self, name: str) -> None:
        """Puts the series of a stage at 0, before its first request."""
        for metric in (self.stages, self.stage_candidates, self.stage_seconds):
            metric.labels(name)

    def declare_shadow(self, model: str, shadow: str) -> None:
        """Puts the series of a model and its shadow at 0, before the first request."""
        for metric in (
            *(self.shadow_sampled, self.shadow_scored, self.shadow_failed),
            *(self.shadow_kendall_tau, self.shadow_score_drift, self.shadow_score_shift),
        ):
            metric.labels(model, shadow)
        for reason in SHADOW_DROPS:
            self.shadow_dropped.labels(model, shadow, reason)
        for cutoff in SHADOW_CUTOFFS:
            self.shadow_overlap.labels(model, shadow, cutoff)

    def exposition(self) -> Iterator[bytes]:
        """All series in Prometheus' text format, those of one name after those of another. Together they take as long
        as a small ranking.
        """
        return (generate_latest(_Family(family)) for family in self.registry.collect())

    def _add_redis(self) -> None:
        counter, gauge = partial(self._add, Counter), partial(self._add, Gauge)
        self.redis_seconds = self._histogram(REDIS_SECONDS)(
            "redis_seconds", "Per call to Redis, however it ended.", operation=OPERATIONS
        )
        self.redis_errors = counter(
            "redis_errors", "Calls that failed, took too long, or were refused in part.", operation=OPERATIONS
        )
        self.redis_bytes = counter(
            "redis_bytes", "Size of values read from Redis and written to it.", direction=("read", "written")
        )
        self.redis_breaker_state = gauge(
            "redis_breaker_state", "0: Redis is used; 1: it is tried again; 2: it does not answer and is left alone."
        )

    def _add_shadow(self) -> None:
        """Adds what a shadow model does, and how far it agrees with the models that answered."""
        names: dict[str, Sequence[str]] = {"model": (), "shadow": ()}

        def counter(name: str, text: str, **more: Sequence[str]) -> Counter:
            return self._add(Counter, name, text, **names, **more)

        def histogram(name: str, text: str, buckets: Sequence[float], **more: Sequence[str]) -> Histogram:
            return self._histogram(buckets)(name, text, **names, **more)

        self.shadow_sampled = counter("shadow_sampled", "Answered requests that the shadow was to score, too.")
        self.shadow_scored = counter("shadow_scored", "Sampled requests that the shadow scored.")
        self.shadow_dropped = counter("shadow_dropped", "Sampled requests that were given up.", reason=())
        self.shadow_failed = counter("shadow_failed", "Sampled requests that the shadow could not score.")
        self.shadow_pending = self._add(Gauge, "shadow_pending", "Sampled requests that the shadow has yet to score.")
        self.shadow_rows = self._add(Counter, "shadow_rows", "Rows the shadow computed; batch_tokens leaves them out.")
        self.shadow_kendall_tau = histogram(
            "shadow_kendall_tau", "Kendall's tau-b of answer and shadow, where it is defined.", TAU
        )
        self.shadow_overlap = histogram(
            "shadow_overlap",
            "Share of the answer's first k that the shadow has in its first k, if there are more than k candidates.",
            TENTHS,
            k=(),
        )
        self.shadow_score_drift = histogram(
            "shadow_score_drift", "Mean absolute difference of the candidates' scores, as sigmoids.", DRIFT
        )
        self.shadow_score_shift = histogram(
            "shadow_score_shift", "Mean of the shadow's scores minus that of the answer's, as sigmoids.", SHIFT
        )

    def _histogram(self, buckets: Sequence[float]) -> Callable[..., Histogram]:
        """`_add` for histograms with these buckets."""
        return partial(self._add, partial(Histogram, buckets=buckets))

    def _add(self, kind: Callable[..., Kind], name: str, text: str, /, **labels: Sequence[str]) -> Kind:
        """Registers a series. labels: of each label, the values that start at 0."""
        metric = kind(f"bandrank_{name}", text, labels, registry=self.registry)
        for values in product(*labels.values()) if labels else ():
            metric.labels(*values)
        return metric


@dataclass(frozen=True)
class _Family(Collector):
    """The series of one name."""

    family: Metric

    def collect(self) -> Iterable[Metric]:
        """The family."""
        return [self.family]


class ProxyMetrics:
    """The series of the search proxy."""

    def __init__(self, counter: Callable[..., Counter], seconds: Callable[..., Histogram]) -> None:
        self.requests = counter(
            "proxy_requests",
            "Requests of the search proxy, and searches of an _msearch, by what became of them.",
            outcome=OUTCOMES,
        )
        self.request_seconds = seconds(
            "proxy_request_seconds", "Whole request of the search proxy, the engine's time included.", outcome=OUTCOMES
        )
        self.unranked = counter(
            "proxy_unranked", "Searches to re-rank whose hits stayed in the engine's order, by the reason.", reason=()
        )
        self.upstream_failures = counter(
            "proxy_upstream_failures",
            "Requests that the search engine did not answer, or that did not get to it.",
            reason=("unreachable", "timeout", "broken", "busy", "share"),
        )
