"""Stores the models that each vendor listed in its last session.

A frontend requests the models before the vendor runs, so the response contains the stored models.
"""

import os
from collections.abc import Mapping

from shim.core.claude.argv.models import OfferedModel, parse_offered_models
from shim.core.reading.json_text import dump_json
from shim.state.config import get_state_dir
from shim.state.files import read_state_file, write_state_file

MODELS_FOLDER = "models"
MAX_MODELS_BYTES = 1024 * 1024  # the size limit for a file; 500 models with long texts fit


def load_offered_models(vendor: str, environment: Mapping[str, str]) -> tuple[OfferedModel, ...]:
    """Return the models that a vendor listed in its last session, or () if none are stored."""
    folder, name = _locate_file(vendor, environment)
    if not os.path.lexists(os.path.join(folder, name)):
        return ()
    data = read_state_file(folder, name, MAX_MODELS_BYTES)
    if not data:
        return ()
    import orjson

    try:
        return parse_offered_models(orjson.loads(data), "name", "display_name")
    except orjson.JSONDecodeError:
        return ()


def store_offered_models(
    vendor: str, models: tuple[OfferedModel, ...], environment: Mapping[str, str]
) -> None:
    """Store the models that a vendor has listed. Nothing is written if the list is unchanged."""
    if load_offered_models(vendor, environment) == models:
        return
    folder, name = _locate_file(vendor, environment)
    write_state_file(folder, name, dump_json([model._asdict() for model in models]))


def _locate_file(vendor: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the folder and the name of a vendor's file."""
    return os.path.join(get_state_dir(environment), MODELS_FOLDER), f"{vendor}.json"
