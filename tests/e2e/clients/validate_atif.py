"""Runs Harbor's own validator on the given files, and prints the errors as JSON."""

import json
import sys
from pathlib import Path

from harbor.utils.trajectory_validator import TrajectoryValidator

errors_by_path = {}
for name in sys.argv[1:]:
    validator = TrajectoryValidator()
    if not validator.validate(Path(name)):
        errors_by_path[name] = validator.errors
sys.stdout.write(json.dumps(errors_by_path))
