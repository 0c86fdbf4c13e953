"""ATIF-v1.8 as JSON Schema, written from Harbor's documentation of the format, and the rules that a
schema cannot express.
"""

from typing import Any

import jsonschema

TEXT: Any = {"type": "string"}
EXTRA: Any = {"type": "object"}
COUNT: Any = {"type": "integer", "minimum": 0}


def build_object_schema(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """Build the schema of an object with exactly these fields."""
    return {
        "type": "object",
        "required": list(required),
        "properties": fields | {"extra": EXTRA},
        "additionalProperties": False,
    }


def build_array_schema(items: Any, **keywords: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **keywords}


TOKENS = {
    "prompt_tokens": COUNT,
    "completion_tokens": COUNT,
    "cached_tokens": COUNT,
    "cost_usd": {"type": "number"},
}
CALL = build_object_schema(
    ("tool_call_id", "function_name", "arguments"),
    tool_call_id=TEXT,
    function_name=TEXT,
    arguments={"type": "object"},
)
REFERENCE = build_object_schema(
    ("trajectory_id",), trajectory_id=TEXT, session_id=TEXT, trajectory_path=TEXT
)
RESULT = build_object_schema(
    source_call_id=TEXT, content=TEXT, subagent_trajectory_ref=build_array_schema(REFERENCE)
)
OBSERVATION = {
    "type": "object",
    "required": ["results"],
    "properties": {"results": build_array_schema(RESULT)},
    "additionalProperties": False,
}
STEP = build_object_schema(
    ("step_id", "source", "message"),
    step_id={"type": "integer", "minimum": 1},
    timestamp={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"},
    source={"enum": ["system", "user", "agent"]},
    message=TEXT,
    model_name=TEXT,
    reasoning_content=TEXT,
    tool_calls=build_array_schema(CALL, minItems=1),
    observation=OBSERVATION,
    metrics=build_object_schema(**TOKENS),
    llm_call_count=COUNT,
)
AGENT = build_object_schema(
    ("name", "version"),
    name=TEXT,
    version=TEXT,
    model_name=TEXT,
    tool_definitions=build_array_schema({"type": "object"}),
)
FINAL = build_object_schema(
    total_prompt_tokens=COUNT,
    total_completion_tokens=COUNT,
    total_cached_tokens=COUNT,
    total_cost_usd={"type": "number"},
    total_steps=COUNT,
)
SCHEMA = build_object_schema(
    ("schema_version", "agent", "steps"),
    schema_version={"const": "ATIF-v1.8"},
    session_id=TEXT,
    trajectory_id=TEXT,
    agent=AGENT,
    steps=build_array_schema(STEP, minItems=1),
    notes=TEXT,
    final_metrics=FINAL,
    subagent_trajectories=build_array_schema({"$ref": "#"}),
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
AGENT_ONLY = ("model_name", "reasoning_content", "tool_calls", "metrics")


def check_trajectory(trajectory: dict[str, Any]) -> None:
    """Assert that a trajectory follows all rules of the format."""
    VALIDATOR.validate(trajectory)
    _check_rules(trajectory)


def _check_rules(trajectory: dict[str, Any]) -> None:
    steps, nested = trajectory["steps"], trajectory.get("subagent_trajectories", [])
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1)), (
        "step ids count from 1"
    )
    names = [inner["trajectory_id"] for inner in nested]
    assert len(set(names)) == len(names), "the ids of nested trajectories are their own"
    referred = []
    for step in steps:
        if step["source"] != "agent":
            assert not [name for name in AGENT_ONLY if name in step], "only an agent has these"
        calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        for result in step.get("observation", {}).get("results", []):
            assert result.get("source_call_id") in {None, *calls}, (
                "a result belongs to a call of its step"
            )
            referred += [
                reference["trajectory_id"]
                for reference in result.get("subagent_trajectory_ref", [])
            ]
    assert sorted(referred) == sorted(names), (
        "every nested trajectory is referred to, and every reference is there"
    )
    for inner in nested:
        _check_rules(inner)
