"""The host's steps of a request, measured without a GPU: each step without those within it, and nothing left tapped."""

import itertools
import time
from types import SimpleNamespace

import pytest
import torch
from emulation.compiled import needs_compiler
from emulation.graphs import RecordingDevice
from support.cached import cached, mix_encoder
from support.graph_lab import scorer, serve_from
from support.layouts import CPU
from support.models import score_batch

from bandrank.models.architectures import CrossEncoder
from bandrank.models.prepared import prepare
from bandrank_bench.gpu import host
from bandrank_bench.gpu.host import Request
from bandrank_bench.gpu.lab import Lab

LAB = Lab(dry=True)


def test_a_step_is_measured_without_the_steps_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the clock moves by 1 us at each look, so a step without others takes 1, and one around two takes 3."""
    made = SimpleNamespace(inner=lambda: None)
    made.outer = lambda: (made.inner(), made.inner())
    inner, outer, steps = made.inner, made.outer, host.Steps()
    monkeypatch.setattr(time, "perf_counter_ns", itertools.count(step=1000).__next__)
    with steps.tapping([(made, "inner", "within"), (made, "outer", "around")]):
        steps.request(made.outer)

    assert steps.facts["steps_us"] == {"within": 2.0, "around": 3.0, "rest": 2.0}
    assert steps.facts["calls"] == {"within": 2, "around": 1, "rest": 1}
    assert (made.inner, made.outer) == (inner, outer)


@needs_compiler
@pytest.mark.parametrize("kind", ["passages", "cached"])
def test_the_steps_of_a_request_from_a_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step that the host takes on an emulated card is found, and those of the card's own library are missing."""
    device = RecordingDevice()
    serve_from(device, monkeypatch)

    def make() -> Request:
        if kind == "cached":
            stored = mix_encoder("c")
            return prepare(stored, device=CPU, dtype=torch.float32, graphs=device), cached(stored, [9], [40])
        copy = CrossEncoder(scorer().config)
        copy.load_state_dict(scorer().state_dict())
        return prepare(copy, device=CPU, dtype=torch.float32, graphs=device), score_batch([[5]], [[[6, 7], [8]]])

    facts = host.measured(LAB, make)

    shared = {"rest", "runner, rest", "fit to bucket", "staging, rest", "write to pinned memory"}
    own = {"split into passages", "pack", "plan"} if kind == "passages" else set()
    assert shared | own <= set(facts["steps_us"])
    assert facts["graph launch alone, us"] > 0
