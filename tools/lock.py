"""Resolves the lock files under `requirements/` from the two pyproject.toml files.

A lock is a requirements file with the hash of every artefact and no address to fetch it from, so pip
installs it from whatever index it is set up with. All locks agree on versions: the largest one is
resolved first, and it constrains the others. Versions that a lock holds stay unless `--upgrade` is given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LOCKS = Path("requirements")
LARGEST = LOCKS / "dev.txt"

_VERTEX = [
    "--extra",
    "arrow",
    "--extra",
    "nkeys",
    "--extra",
    "zstd",
    "--extra",
    "disk",
    "--extra",
    "objects",
    "--extra",
    "redis",
    "--extra",
    "kafka",
    "--extra",
    "postgres",
    "--extra",
    "sql",
    "--extra",
    "rabbitmq",
    "--extra",
    "pulsar",
    "--extra",
    "delta",
    "--extra",
    "iceberg",
    "--extra",
    "sqs",
    "--extra",
    "bigquery",
    "--extra",
    "pubsub",
    "--extra",
    "avro",
    "--extra",
    "jsonschema",
    "--extra",
    "mqtt",
]
"""What every vertex may need."""
INPUTS: dict[Path, list[str]] = {
    LARGEST: [
        "pyproject.toml",
        *_VERTEX,
        "--extra",
        "debug",
        "--extra",
        "demo",
        "--extra",
        "reduce",
        "--group",
        "dev",
    ],
    LOCKS / "run.txt": ["pyproject.toml", *_VERTEX],
    LOCKS / "reduce.txt": ["pyproject.toml", *_VERTEX, "--extra", "reduce"],
    LOCKS / "udf.txt": ["services/udf_sdk/pyproject.toml"],
}
"""What each lock is resolved from: all checks and the demonstration, a vertex, a reduce vertex, a function alone."""

BUILD_LOCK = LOCKS / "build.txt"
BUILD_INPUT = "hatchling"
"""What building the distributions needs."""


def _compile(output: Path, arguments: list[str], *, upgrade: bool) -> None:
    command = [
        str(Path(sys.executable).parent / "uv"),
        *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"),
        *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
        *("--no-emit-package", "millstream-udf", "--output-file", str(output)),
        *(["--upgrade"] if upgrade else []),
        *(["--constraint", str(LARGEST)] if output != LARGEST else []),
        *arguments,
    ]
    subprocess.run(command, cwd=REPOSITORY, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    upgrade = parser.parse_args().upgrade
    for output, arguments in INPUTS.items():
        _compile(output, arguments, upgrade=upgrade and output == LARGEST)
    with tempfile.NamedTemporaryFile("w", suffix=".in") as build_input:
        build_input.write(BUILD_INPUT + "\n")
        build_input.flush()
        _compile(BUILD_LOCK, [build_input.name], upgrade=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
