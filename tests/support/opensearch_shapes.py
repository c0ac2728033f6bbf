"""JSON schemas of the bodies that OpenSearch documents for the calls of the set-up."""

from support.shapes import TEXT, shape

ACTION = shape(
    {"action_type": {"enum": ["predict"]}, "method": {"enum": ["POST", "GET"]}, "url": TEXT},
    {
        "headers": {"type": "object", "additionalProperties": TEXT},
        "request_body": TEXT,
        "pre_process_function": {"enum": ["connector.pre_process.cohere.rerank"]},
        "post_process_function": {"enum": ["connector.post_process.cohere.rerank"]},
    },
)
CONNECTOR = shape(
    {
        "name": TEXT,
        "description": TEXT,
        "version": TEXT,
        "protocol": {"enum": ["http"]},
        "parameters": {"type": "object", "additionalProperties": TEXT},
        "credential": {"type": "object", "minProperties": 1, "additionalProperties": TEXT},
        "actions": {"type": "array", "items": ACTION, "minItems": 1},
    }
)
MODEL = shape(
    {"name": TEXT, "function_name": {"enum": ["remote"]}, "connector_id": TEXT},
    {"description": TEXT, "model_group_id": TEXT},
)
PIPELINE = shape(
    {"response_processors": {"type": "array", "minItems": 1}},
    {"description": TEXT, "request_processors": {"type": "array"}},
)
NAMED = shape({"query": shape({"term": shape({"name.keyword": TEXT})})}, {"size": {"type": "integer", "minimum": 1}})
MATCH = shape({"match": {"type": "object", "minProperties": 1, "maxProperties": 1}})
SEARCH = shape({"query": MATCH}, {"size": {"type": "integer"}, "_source": {"type": "array"}, "ext": {"type": "object"}})
