"""Puts loadtests/ on the path, because it holds scripts, which import each other by their bare names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "loadtests"))
