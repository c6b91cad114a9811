"""Temporary certificate authorities and their certificates, made by the openssl command for one test run."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

OPENSSL = shutil.which("openssl")

_CONFIG = """
[ca]
default_ca = here
[here]
dir = {folder}
database = $dir/index.txt
serial = $dir/serial
new_certs_dir = $dir
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
"""


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "index.txt").touch()
        (folder / "serial").write_text("1000\n")
        (folder / "ca.cnf").write_text(_CONFIG.format(folder=folder))
        self.cert, self.key = make_self_signed(folder, "ca", "Throw-away CA", "CA:TRUE")

    def sign(self, name: str, *, names: str = "DNS:localhost,IP:127.0.0.1", days: tuple[float, float] = (-1, 2)) -> Pair:
        """A certificate for `names` with a validity in days from now."""
        request, cert, key = (self.folder / f"{name}.{ending}" for ending in ("csr", "pem", "key"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
        _openssl("req", "-new", *_key_arguments(key), "-subj", f"/CN={name}", "-out", str(request))
        begin, end = (f"{datetime.now(UTC) + timedelta(days=each):%Y%m%d%H%M%SZ}" for each in days)
        signing = ["ca", "-batch", "-notext", "-config", str(self.folder / "ca.cnf"), "-cert", str(self.cert), "-keyfile", str(self.key)]
        _openssl(*signing, "-in", str(request), "-out", str(cert), "-startdate", begin, "-enddate", end, "-extfile", str(extensions))
        return Pair(cert, key)


def make_self_signed(folder: Path, name: str, subject: str = "self", constraints: str = "CA:FALSE") -> Pair:
    """A self-signed certificate."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    extensions = ["-addext", f"basicConstraints=critical,{constraints}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    _openssl("req", "-x509", *_key_arguments(key), "-days", "2", "-subj", f"/CN={subject}", *extensions, "-out", str(cert))
    return Pair(cert, key)


def _key_arguments(key: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key)]


def _openssl(*arguments: str) -> None:
    done = subprocess.run([str(OPENSSL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
