"""Puts loadtests/, which holds scripts and is no package, on the path, as when one of them is run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "loadtests"))
