"""`bandrank serve | proxy | check | precompute | models | export | key | version`."""

import os
import sys
from contextlib import nullcontext
from pkgutil import resolve_name
from textwrap import fill

from bandrank import __version__, logs
from bandrank.errors import BadSetting
from bandrank.settings import Settings, asked_log_format, explain
from bandrank.stops import ended_by_signals

COMMANDS = {
    "serve": "Answer POST /rerank over HTTP, until SIGTERM or Ctrl-C.",
    "proxy": "Stand in front of OpenSearch or Elasticsearch (--proxy-upstream URL). Everything passes through; "
    "searches are re-ranked if the header X-Rerank or a rule asks for it.",
    "check": "Load the models, print what they are and what computes them, ask Redis, and score one request. The exit "
    "code is 0 if all is well.",
    "precompute FILE": "Register the candidates of a JSON-lines file (id, text; .gz is unpacked) and encode them into "
    "Redis.",
    "models": "List the families of models that load, with examples.",
    "export MODEL FOLDER": "Turn a cross-encoder or bi-encoder into a windowed cross-encoder to train, in "
    "bandrank's own format.",
    "key NAME": "Make an API key: print it, and its table for the file of keys.",
    "version": "Print the version.",
}
USAGE = "\n".join(
    (
        "usage: bandrank COMMAND [--SETTING VALUE ...]\n",
        *(
            fill(about, 100, initial_indent=f"  {usage:21}", subsequent_indent=" " * 23)
            for usage, about in COMMANDS.items()
        ),
        "\n`bandrank COMMAND --help` says more about a command; `bandrank serve --help` lists the settings.",
    )
)

# Commands that serve nothing and so have arguments of their own instead of settings.
WITHOUT_SETTINGS = {
    "key": "bandrank.new_key:new_key",
    "models": "bandrank.known_models:print_models",
    "export": "bandrank.export:export",
}
FOR_TORCH = {  # in the environment, as torch and oneDNN read these when they first compute
    # Large buffers come and go with every layer; without huge pages a fifth of the CPU's time goes into mapping them.
    "THP_MEM_ALLOC_ENABLE": "1",
    # For each number of rows and each shape of weights, oneDNN writes a program of half a megabyte. It keeps 1,024 of
    # them for each thread, and as many for all, where threads find each other's: these few cost no time.
    "LRU_CACHE_CAPACITY": "32",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0, 1 if the service failed, 2 for an unusable command or setting.

    What it runs is imported when its settings are known: with torch, that takes seconds.
    """
    for name, value in FOR_TORCH.items():
        os.environ.setdefault(name, value)
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if command in {"version", "--version"}:
        print(__version__)
        return 0
    if command in WITHOUT_SETTINGS:
        return int(resolve_name(WITHOUT_SETTINGS[command])(rest))
    if command not in {"serve", "proxy", "check", "precompute"}:
        helped = command in {"-h", "--help", "help"}
        wrong = "" if helped or not command else f"\n\nbandrank: there is no command {command}"
        print(USAGE + wrong, file=sys.stdout if helped else sys.stderr)
        return 0 if helped else 2
    try:
        corpus = take_corpus(rest) if command == "precompute" else None
        usage = next(each for each in COMMANDS if each.split()[0] == command)
        settings = Settings.read(rest, command=usage, about=COMMANDS[usage])
    except BadSetting as error:
        logs.tell_why(explain(error), asked_log_format(rest))
        return 2
    with ended_by_signals() if command in {"serve", "proxy"} else nullcontext():
        return int(resolve_name("bandrank.commands:run")(command, settings, corpus))


def take_corpus(arguments: list[str]) -> str | None:
    """Pops the file from the arguments of `precompute`; None if they ask for help. Raises BadSetting."""
    if {"-h", "--help"} & {*arguments}:
        return None
    if not arguments or arguments[0].startswith("-"):
        raise BadSetting("precompute", "needs a JSON-lines file right after it, before any settings")
    return arguments.pop(0)


if __name__ == "__main__":
    sys.exit(main())
