"""The volumes that the pods of a pipeline have to mount for its references to Kubernetes Secrets. Pure.

Above it: the command line. Below it: references, and where they are read (`millstream.spec.references`).
"""

from __future__ import annotations

from typing import Any

from millstream.spec.models import Pipeline
from millstream.spec.references import SECRETS_DIR, references_in

DRIVER = "spark-driver"
"""The Spark driver among the vertices. Its pod needs the Secrets that the pipeline's `spark` refers to."""

_MODE = 0o440
"""Mode of the mounted files: readable for the owner and the pod's group (`fsGroup`), not for other users."""


def mounts_of(pipeline: Pipeline) -> dict[str, dict[str, list[Any]]]:
    """By vertex: `volumes` of its pod, and `volumeMounts` of its container. Only vertices that need Secrets are
    included."""
    needed: dict[str, object] = {vertex.name: vertex for vertex in pipeline.spec.vertices}
    if pipeline.spec.spark is not None:
        needed[DRIVER] = pipeline.spec.spark
    found: dict[str, dict[str, list[Any]]] = {}
    for pod, settings in needed.items():
        secrets = sorted({one.secret.name for one in references_in(settings) if one.secret is not None})
        # The name of a Secret may be longer than that of a volume, and contain dots.
        named = {f"secret-{number}": secret for number, secret in enumerate(secrets)}
        if named:
            found[pod] = {
                "volumes": [
                    {"name": name, "secret": {"secretName": secret, "defaultMode": _MODE}}
                    for name, secret in named.items()
                ],
                "volumeMounts": [
                    {"name": name, "mountPath": f"{SECRETS_DIR}/{secret}", "readOnly": True}
                    for name, secret in named.items()
                ],
            }
    return found
