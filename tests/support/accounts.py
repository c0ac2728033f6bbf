"""An account for calls that are made without HTTP."""

from bandrank.engine.clients import ITSELF
from bandrank.engine.memory import Memory
from bandrank.metrics import Metrics

ACCOUNT = Memory(1 << 40, Metrics()).open(ITSELF)
