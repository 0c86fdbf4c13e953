"""Stores the models that each vendor listed in its last session.

A frontend requests the models before the vendor runs, so the response contains the stored models.
"""

from collections.abc import Mapping

from shim.core.claude.argv.models import OfferedModel, parse_offered_models
from shim.state.vendor_file import VendorFile

MODELS_FOLDER = "models"
MAX_MODELS_BYTES = 1024 * 1024  # the size limit for a file; 500 models with long texts fit


def load_offered_models(vendor: str, environment: Mapping[str, str]) -> tuple[OfferedModel, ...]:
    """Return the models that a vendor listed in its last session, or () if none are stored."""
    file = VendorFile(MODELS_FOLDER, vendor, environment, MAX_MODELS_BYTES)
    return parse_offered_models(file.load(), "name", "display_name")


def store_offered_models(
    vendor: str, models: tuple[OfferedModel, ...], environment: Mapping[str, str]
) -> None:
    """Store the models that a vendor has listed. Nothing is written if the list is unchanged."""
    if load_offered_models(vendor, environment) != models:
        file = VendorFile(MODELS_FOLDER, vendor, environment, MAX_MODELS_BYTES)
        file.store([model._asdict() for model in models])
