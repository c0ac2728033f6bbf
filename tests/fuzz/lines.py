"""Tells schemathesis, which loads this file, what bodies of several JSON lines look like."""

import json

import schemathesis
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
CANDIDATES = st.fixed_dictionaries({"id": TEXT, "text": TEXT}).map(lambda candidate: json.dumps(candidate).encode())
LINES = st.lists(CANDIDATES | st.binary()).map(b"\n".join)

schemathesis.openapi.media_type("application/x-ndjson", LINES, aliases=["application/jsonl", "application/x-jsonlines"])
