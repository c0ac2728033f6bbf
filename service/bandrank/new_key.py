"""`bandrank key`: a new API key, and the lines for the file of keys."""

import argparse
import hashlib
import json
import re
import secrets
import sys
from collections.abc import Sequence

from bandrank.api.keys import NAME, Scope


def new_key(arguments: Sequence[str]) -> int:
    """Makes a key and prints it, on a line of its own, followed by its table for the file of keys; returns 0.

    The key itself is kept nowhere: the table has its hash. Exits with 2 for arguments that cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="bandrank key",
        description="Makes an API key. Prints it, this one time, and the lines to add to the file that the setting "
        "`keys` names.",
    )
    parser.add_argument("name", type=_name, help="who will use it: the name of its client")
    parser.add_argument(
        "--scopes", type=_scopes, default=[Scope.RANK], help="rank (the default), register, admin; several with commas"
    )
    options = parser.parse_args(arguments)
    key = secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode("ascii")).hexdigest()
    sys.stdout.write(f'{key}\n\n[{options.name}]\nsha256 = "{digest}"\nscopes = {json.dumps(options.scopes)}\n')
    return 0


def _name(text: str) -> str:
    if re.fullmatch(NAME, text) is None:
        raise argparse.ArgumentTypeError("must be 1 to 32 letters, digits, - and _")
    return text


def _scopes(text: str) -> list[Scope]:
    names = [part.strip() for part in text.split(",")]
    if not set(names) <= {*Scope}:
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(Scope)}, with commas between them")
    return [scope for scope in Scope if scope in names]
