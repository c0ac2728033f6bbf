"""What happens beyond capacity, measured over HTTP on the real service: the section on overload of docs/operations.md.

Run as `python -m bandrank_bench overload`. A closed loop measures the capacity. Then requests arrive at multiples of
it (Poisson), each sent on time however late the answers are, and last a polite client runs beside a flooding one. The
service is a process of its own on this machine, with default settings. It takes about a quarter of an hour.
"""

import argparse
import asyncio
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bandrank.settings import Settings
from bandrank_bench import machine
from bandrank_bench.output import say
from bandrank_bench.overload.experiments import Laboratory, Measured, Plan
from bandrank_bench.overload.plot import plot
from bandrank_bench.overload.report import put_section, report
from bandrank_bench.service import running_service

RATES = (0.5, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0)
CANDIDATES = (10, 10, 10, 10, 30)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes the section and its plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="the model to serve (default: the service's)")
    parser.add_argument("--strategy", default="", help="of every request (default: none)")
    parser.add_argument("--budget-ms", type=float, default=0.0, help="of every request (default: none)")
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="for the service; may be repeated"
    )
    parser.add_argument("--candidates", type=numbers, default=CANDIDATES, help="numbers, drawn equally often")
    parser.add_argument("--repeat-after", type=int, default=0, help="requests; 0: texts never repeat (default)")
    parser.add_argument("--rates", type=fractions, default=RATES, help="multiples of the capacity")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds at each rate (default: 30)")
    parser.add_argument(
        "--warm-up", type=float, default=3.0, help="seconds before each rate that do not count (default: 3)"
    )
    parser.add_argument(
        "--capacity-seconds", type=float, default=10.0, help="seconds of each closed loop (default: 10)"
    )
    parser.add_argument("--connections", type=int, default=8, help="connections of the closed loop (default: 8)")
    parser.add_argument(
        "--polite-seconds", type=float, default=120.0, help="seconds beside each flood; 0 for no flood (default: 120)"
    )
    parser.add_argument("--polite-share", type=float, default=0.1, help="its share of the capacity (default: 0.1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/operations.md"))
    args = parser.parse_args(arguments)
    settings = dict(setting.split("=", 1) for setting in args.setting)
    if args.model:
        settings["MODEL"] = args.model
    plan = plan_of(args, settings)
    measured = measure(settings, plan)
    asked = shlex.join([] if arguments is None else list(arguments))
    command = f"`python -m bandrank_bench overload {asked}".rstrip() + "`"
    facts = {"command": command} | machine.describe()
    picture = args.out.with_name("overload.svg")
    page = args.out.read_text(encoding="utf-8") if args.out.exists() else "# Operations\n"
    args.out.write_text(put_section(page, report(measured, plan, facts, picture.name)), encoding="utf-8")
    plot(measured, picture)
    say(f"wrote {args.out} and {picture}")
    return 0


def numbers(text: str) -> tuple[int, ...]:
    """Parses integers separated by commas."""
    return tuple(map(int, text.split(",")))


def fractions(text: str) -> tuple[float, ...]:
    """Parses numbers separated by commas."""
    return tuple(map(float, text.split(",")))


def plan_of(args: argparse.Namespace, settings: dict[str, str]) -> Plan:
    """Makes the plan from the options. An answer is late after the request's budget, or else the service's limit."""
    fields = {"strategy": args.strategy} if args.strategy else {}
    if args.budget_ms:
        fields["budget_ms"] = args.budget_ms
    timeout_s = float(settings.get("REQUEST_TIMEOUT_S", Settings().request_timeout_s))
    return Plan(
        rates=args.rates,
        seconds=args.seconds,
        warm_up_s=args.warm_up,
        capacity_s=args.capacity_seconds,
        polite_s=args.polite_seconds,
        connections=args.connections,
        candidates=args.candidates,
        fields=fields,
        limit_s=args.budget_ms / 1e3 or timeout_s,
        polite_share=args.polite_share,
        repeat_after=args.repeat_after,
        seed=args.seed,
    )


def measure(settings: dict[str, str], plan: Plan) -> Measured:
    """Starts a service and runs the experiments on it."""
    with tempfile.TemporaryDirectory(prefix="bandrank-bench-") as folder:
        say("starting the service")
        with (
            running_service(settings, Path(folder) / "service.log") as service,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,  # halves the generator's processor time
        ):
            return runner.run(Laboratory(service, plan).measure())
