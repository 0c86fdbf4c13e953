"""The models that a vendor listed in its last session."""

from shim.core.claude.argv.models import OfferedModel
from shim.state.stored_models import MODELS_FOLDER, load_offered_models, store_offered_models

MODELS = (OfferedModel("m-1", "One", "The first."), OfferedModel("m-2"))


def test_stored_models_are_loaded_per_vendor(tmp_path):
    environment = {"SHIM_STATE": str(tmp_path)}
    assert load_offered_models("pi", environment) == ()
    store_offered_models("pi", MODELS, environment)
    assert load_offered_models("pi", environment) == MODELS
    assert load_offered_models("codex", environment) == ()


def test_damaged_file_is_no_list(tmp_path):
    environment = {"SHIM_STATE": str(tmp_path)}
    store_offered_models("pi", MODELS, environment)
    (file,) = (tmp_path / MODELS_FOLDER).iterdir()
    file.write_text("{")
    assert load_offered_models("pi", environment) == ()


def test_unchanged_list_is_not_rewritten(tmp_path):
    environment = {"SHIM_STATE": str(tmp_path)}
    store_offered_models("pi", MODELS, environment)
    (file,) = (tmp_path / MODELS_FOLDER).iterdir()
    file.touch()
    written_at = file.stat().st_mtime_ns
    store_offered_models("pi", MODELS, environment)
    assert file.stat().st_mtime_ns == written_at
