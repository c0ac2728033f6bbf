"""`python -m bandrank_training COMMAND`: each command is a module, and says more with --help."""

import argparse
import sys
from typing import Protocol

INTERRUPTED = 130  # the exit code after Ctrl-C


def _say_interrupted() -> None:
    kept = "mine, mix, train and fine-tune resume when they are run again; other commands start over"
    print(f"\nbandrank_training: interrupted; {kept}", file=sys.stderr)  # noqa: T201


try:  # importing torch takes seconds
    from bandrank.cpus import limit_threads
    from bandrank.models.checkpoint import BadCheckpoint
    from bandrank_training import (
        aligning,
        averaging,
        comparison,
        evaluation,
        exporting,
        fine_tuning,
        lexical,
        mining,
        mixture,
        pairs,
        quantising,
        rescoring,
        training,
    )
    from bandrank_training.errors import BadInput
except ModuleNotFoundError as error:
    sys.exit(
        f"bandrank_training: {error}; install the extra `train` in the checkout: pip install --editable '.[train]'"
    )
except KeyboardInterrupt:
    _say_interrupted()
    sys.exit(INTERRUPTED)


class Command(Protocol):
    """A module that is a command; its docstring is the help."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the arguments that `run` reads."""

    def run(self, args: argparse.Namespace) -> int:
        """Runs the command; returns the exit code."""


COMMANDS: dict[str, Command] = {
    "mine": mining,
    "mix": mixture,
    "pairs": pairs,
    "score": rescoring,
    "train": training,
    "fine-tune": fine_tuning,
    "align": aligning,
    "average": averaging,
    "lexical": lexical,
    "export": exporting,
    "quantise": quantising,
    "evaluate": evaluation,
    "compare": comparison,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns the exit code: 0, 2 for arguments or files that cannot be used, or 130 after Ctrl-C."""
    limit_threads()
    try:
        args = _parsed(arguments)
        return COMMANDS[args.command].run(args)
    except (BadInput, BadCheckpoint, OSError) as error:
        print(f"bandrank_training: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        _say_interrupted()
        return INTERRUPTED


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    about = "Trains and evaluates bandrank's scorers."
    parser = argparse.ArgumentParser(prog="python -m bandrank_training", description=about)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        text = (module.__doc__ or "").removeprefix(f"{name}: ")
        module.add_arguments(commands.add_parser(name, help=text.partition("\n\n")[0], description=text))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
