"""bandrank, infinity and TEI over HTTP, on one checkpoint: docs/benchmarks-services.md.

Run as `python -m bandrank_bench services`. infinity comes from a virtual environment of its own, which
`make .venv-infinity/stamp` makes; TEI has to run already, with whatever weights it was given. It takes about
twenty minutes. The samples go to a file beside the page, with the suffix .jsonl.bz2.
"""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import uvloop

from bandrank_bench import infinity, machine
from bandrank_bench.calibrate import Calibration
from bandrank_bench.checkpoint import write_patterns
from bandrank_bench.cpu.agreement import Agreement, Disagreement, reference_scores
from bandrank_bench.output import say, write_page
from bandrank_bench.overload.command import fractions, numbers
from bandrank_bench.process import make_ready
from bandrank_bench.service import Service
from bandrank_bench.services.agreement import agreement_of
from bandrank_bench.services.contenders import Contender, fastest_of_each_precision, tei
from bandrank_bench.services.experiments import SATURATING, Laboratory, Plan
from bandrank_bench.services.field import bandranks, infinities, tried_infinities
from bandrank_bench.services.memory import Memory
from bandrank_bench.services.report import Results, json_lines, markdown
from bandrank_bench.services.resting import awake, resting
from bandrank_bench.services.runs import Run
from bandrank_bench.workloads import WORKLOADS, Writer, load_tokenizer

CHECK_ROUND = 1003  # its texts occur in no other request


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="services whose name contains this")
    parser.add_argument("--infinity", type=Path, default=infinity.ENVIRONMENT, help="its virtual environment")
    parser.add_argument("--tei", default="", metavar="URL", help="of a running TEI")
    parser.add_argument("--clients", type=numbers, default=(1, 8, 32, 64))
    parser.add_argument("--loads", type=fractions, default=(0.5, 0.8, 0.95), help="shares of a service's capacity")
    parser.add_argument(
        "--steady-loads", type=fractions, default=(0.8,), help="the same, with arrivals at equal intervals"
    )
    parser.add_argument("--candidates", type=int, default=10, help="how many a request has (default: 10)")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds until an answer is late (default: 10)")
    parser.add_argument(
        "--closed-seconds", type=float, default=4.0, help="seconds for each number of clients (default: 4)"
    )
    parser.add_argument("--open-seconds", type=float, default=10.0, help="seconds for each load (default: 10)")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds that do not count (default: 1)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-services.md"))
    args = parser.parse_args(arguments)
    if max(args.clients) < SATURATING:
        parser.error(f"--clients needs {SATURATING} or more: their answers are the capacity that loads are shares of")
    plan = Plan(
        clients=args.clients,
        loads=args.loads,
        steady_loads=args.steady_loads,
        closed_s=args.closed_seconds,
        open_s=args.open_seconds,
        warm_up_s=args.warm_up,
        deadline_s=args.deadline,
        candidates=args.candidates,
        rounds=args.rounds,
    )
    make_ready()
    with (
        tempfile.TemporaryDirectory(prefix="bandrank-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        match = Match(plan, Path(folder), runner)
        match.gather(args.infinity, args.tei, args.only)
        if not match.contenders:
            parser.error(f"no service can be compared: --only {args.only}")
        results = match.play()
    write_page(args.out, markdown(results, plan), json_lines(results))
    return 0


class Match:
    """The services that take part, and their runs."""

    def __init__(self, plan: Plan, work: Path, runner: asyncio.Runner) -> None:
        self._plan, self._work = plan, work
        self._calibration = Calibration()
        self._laboratory = Laboratory(plan, self._calibration, runner)
        self._short = Laboratory(replace(plan, warm_up_s=1.0, closed_s=4.0), self._calibration, runner)
        self.contenders: list[Contender] = []
        self._tried: dict[Contender, float] = {}
        self._left_out: dict[str, str] = {}
        self._versions = ""

    def gather(self, environment: Path, tei_url: str, only: str) -> None:
        """Chooses the contenders; tries infinity's configurations for that."""
        self._checkpoints = write_patterns(self._work)
        self.contenders = [one for one in bandranks(self._checkpoints) if only in one.name]
        if asked := infinities(only):
            try:
                program = infinity.find(environment)
            except FileNotFoundError as missing:
                say(str(missing))
                self._left_out["infinity"] = str(missing)
            else:
                self._versions = infinity.versions(environment)
                full = self._checkpoints["full"]
                self._tried = tried_infinities(program, full, self._work, self._short_throughput, asked)
                self.contenders += fastest_of_each_precision(self._tried)
        if tei_url:
            self.contenders.append(tei(tei_url))

    def play(self) -> Results:
        """Starts all services, and measures them one at a time."""
        runs: list[Run] = []
        memory: dict[str, tuple[Memory, Memory]] = {}
        with ExitStack() as stack:
            services, agreements = self._start(stack)
            idle = {one: _memory(service) for one, service in services.items()}
            for number in range(self._plan.rounds):
                for one in random.Random(number).sample(list(services), len(services)):
                    with awake(services[one]):
                        runs += self._laboratory.round(one, services[one], number)
            for one, service in services.items():
                before, after = idle[one], _memory(service)
                if before is not None and after is not None:
                    memory[one.name] = before, after
        return Results(
            contenders=list(services),
            runs=runs,
            agreements=agreements,
            tried=self._tried,
            left_out=self._left_out,
            memory=memory,
            calm_s=self._calibration.calm_s,
            facts=machine.describe()
            | {"of infinity": self._versions or "not installed"}
            | {"calibration product": self._calibration.describe()},
        )

    def _start(self, stack: ExitStack) -> tuple[dict[Contender, Service], list[Agreement]]:
        """Starts all services, keeps those with the right scores, and suspends them."""
        writer = Writer(load_tokenizer(self._checkpoints["full"]))
        request = WORKLOADS["W0"].request(writer, CHECK_ROUND)
        references = reference_scores(self._checkpoints, request)
        services: dict[Contender, Service] = {}
        agreements = []
        for number, one in enumerate(self.contenders):
            say(f"starting {one.name}")
            service = stack.enter_context(one.start(self._work / f"{number}.log"))
            try:
                agreement = agreement_of(one, service, request, references)
            except Disagreement as disagreement:
                self._left_out[one.name] = str(disagreement)
                continue
            agreements += [agreement] if agreement else []
            self._short.closed(self._short.turn(one, service), clients=1)  # warms up
            stack.enter_context(resting(service))
            services[one] = service
        return services, agreements

    def _short_throughput(self, one: Contender) -> float:
        """Answers per second to some clients; 0 if the contender cannot be started."""
        try:
            with one.start(self._work / "tried.log") as service:
                return self._short.closed(self._short.turn(one, service), SATURATING).throughput
        except RuntimeError as error:
            self._left_out[one.name] = str(error).splitlines()[-1]
            return 0.0


def _memory(service: Service) -> Memory | None:
    return None if service.pid is None else Memory.of(service.pid)
