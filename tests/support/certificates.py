"""Creates certificates for tests of TLS."""

import shutil
import subprocess
from pathlib import Path

import pytest


def create_certificate(name: str, folder: Path) -> tuple[str, str]:
    """Create a self-signed certificate for a name. Return the paths of the certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += [
        "-keyout",
        key,
        "-out",
        cert,
        "-subj",
        f"/CN={name}",
        "-addext",
        f"subjectAltName=DNS:{name}",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key
