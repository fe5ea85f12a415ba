"""Fields of Numaflow's v1alpha1 Pipeline that our models do not have, and what they mean here.

There are two types. Fields that only control how Kubernetes runs things are removed and reported as notes. Fields that
would change results are problems until they are supported. No field is ignored silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream import codes
from millstream.nearest import one_of
from millstream.spec.connectors import SINKS, SOURCES
from millstream.spec.problems import Finding, Path
from millstream.spec.registry import Registry

NO_EFFECT = "has no effect on `millstream run`"
API_VERSION = "numaflow.numaproj.io/v1alpha1"

_METADATA = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
]
_POD = [
    "affinity",
    "automountServiceAccountToken",
    "containerTemplate",
    "dnsConfig",
    "dnsPolicy",
    "imagePullSecrets",
    "initContainerTemplate",
    "initContainers",
    "metadata",
    "nodeSelector",
    "ordered",
    "priority",
    "priorityClassName",
    "resourceClaims",
    "runtimeClassName",
    "scale",
    "securityContext",
    "serviceAccountName",
    "sideInputsContainerTemplate",
    "sidecars",
    "tolerations",
    "updateStrategy",
    "volumes",
]
_CONTAINER = [
    "imagePullPolicy",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resources",
    "securityContext",
    "volumeMounts",
]
_LIFECYCLE = ["pauseGracePeriodSeconds", "deletionGracePeriodSeconds", "deleteGracePeriodSeconds"]

_WITHOUT_EFFECT: Mapping[str, Mapping[str, str]] = {
    "pipeline": {"status": "is written by Kubernetes and ignored"},
    "metadata": dict.fromkeys(_METADATA, "is written by Kubernetes and ignored"),
    "spec": {
        "interStepBufferServiceName": f"{NO_EFFECT}, which starts its own buffer service",
        "templates": NO_EFFECT,
        "ordered": "has no effect: records of one key and partition always stay in order",
    },
    "lifecycle": dict.fromkeys(_LIFECYCLE, NO_EFFECT),
    "vertex": {
        **dict.fromkeys(_POD, NO_EFFECT),
        "ordered": "has no effect: records of one key and partition always stay in order",
        "scale": f"{NO_EFFECT}; `replicas` says how many replicas it has",
    },
    "container": dict.fromkeys(_CONTAINER, NO_EFFECT),
    "http source": {"service": NO_EFFECT},
    "emptyDir": {"medium": NO_EFFECT},
}

_UNSUPPORTED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "spec": {
        "sideInputs": ("side inputs are not supported yet", "no `sideInputs`"),
        "serving": ("serving is not supported yet", "no `serving`"),
    },
    "limits": {"rateLimit": ("rate limits are not supported yet", "no `rateLimit`")},
    "vertex": {"sideInputs": ("side inputs are not supported yet", "no `sideInputs`")},
    "window": {"accumulator": ("accumulator windows are not supported", "fixed, sliding, session or global")},
    "builtin": {"args": ("`args` is not supported: arguments of built-ins have names", "`kwargs`")},
    "sink": {"onSuccess": ("onSuccess sinks are not supported yet", "no `onSuccess`")},
    "http source": {"ports": ("HTTPS and several ports are not supported yet", "`port`")},
    "container": {"envFrom": ("whole sets of variables are not supported yet", "`env` with `value`")},
}

_CONNECTORS = {
    "source": ["nats", "jetstream", "sqs", "serving", "redisStreams"],
    "sink": ["sqs", "serve"],
}
"""Numaflow's sources and sinks that are not Millstream's; an installed package may have one."""
_REGISTRIES: Mapping[str, Registry[Any]] = {"source": SOURCES, "sink": SINKS}


@dataclass(slots=True)
class SiftedPipeline:
    """A pipeline without the fields that only Numaflow has."""

    value: Any = None
    """The remaining fields, for the models; the input itself is not changed."""
    notes: list[tuple[Path, str]] = field(default_factory=list)
    """Fields without effect, each with its note."""
    problems: list[Finding] = field(default_factory=list)
    """Fields that would change results and are not supported."""


def sift(value: Any) -> SiftedPipeline:
    """Separates Numaflow's own fields from the rest."""
    sifted = SiftedPipeline()
    sifted.value = _sift(value, (), sifted)
    _narrow_reduces(sifted)
    return sifted


def vertices_in(value: Any) -> list[Any]:
    """The vertices of a pipeline as written, whatever else is wrong."""
    spec = value.get("spec") if isinstance(value, dict) else None
    vertices = spec.get("vertices") if isinstance(spec, dict) else None
    return vertices if isinstance(vertices, list) else []


def field_names(path: Path) -> tuple[str, ...]:
    """Names of the known fields at a place that the models do not have."""
    place = place_name(path)
    return (*_WITHOUT_EFFECT.get(place, {}), *_UNSUPPORTED.get(place, {}), *_CONNECTORS.get(place, ()))


def place_name(path: Path) -> str:
    """The kind of object at a path, as named in the tables above; empty for anything else."""
    match path:
        case ():
            return "pipeline"
        case ("metadata",) | ("spec",) | ("spec", "lifecycle"):
            return str(path[-1])
        case ("spec", "limits") | ("spec", "vertices", int(), "limits"):
            return "limits"
        case ("spec", "vertices", int()):
            return "vertex"
        case ("spec", "vertices", int(), "udf" | "source" | "sink" as kind):
            return kind
        case ("spec", "vertices", int(), "sink", "fallback"):
            return "sink"
        case ("spec", "vertices", int(), "source", "http"):
            return "http source"
        case ("spec", "vertices", int(), "udf", "groupBy", "window"):
            return "window"
        case ("spec", "vertices", int(), "udf", "groupBy", "storage", "emptyDir"):
            return "emptyDir"
        case ("spec", "vertices", int(), *_, "container" | "builtin" as last):
            return last
        case ("spec", "vertices", int(), *_, "env", int()):
            return "env"
    return ""


def _sift(value: Any, path: Path, sifted: SiftedPipeline) -> Any:
    if isinstance(value, list):
        return [_sift(entry, (*path, index), sifted) for index, entry in enumerate(value)]
    if not isinstance(value, dict):
        return value
    place = place_name(path)
    rest = {}
    for name, member in value.items():
        here = (*path, name)
        if here == ("spec", "lifecycle"):
            _sift_lifecycle(member, here, sifted)
        elif place == "env" and name == "valueFrom":
            rest["value"] = _value_of_secret(member, here, sifted)
        elif name in _WITHOUT_EFFECT.get(place, {}):
            sifted.notes.append((here, f"`{name}` {_WITHOUT_EFFECT[place][name]}"))
        elif name in _UNSUPPORTED.get(place, {}):
            sifted.problems.append(Finding(codes.NOT_SUPPORTED, here, *_UNSUPPORTED[place][name]))
        elif name in _CONNECTORS.get(place, ()) and name not in _REGISTRIES[place]:
            *others, last = _REGISTRIES[place].names
            expected = f"{', '.join(others)} or {last}"
            sifted.problems.append(
                Finding(codes.NOT_SUPPORTED, here, f"the {name} {place} is not supported yet", expected)
            )
        else:
            rest[name] = _sift(member, here, sifted)
    return rest


def _value_of_secret(written: Any, path: Path, sifted: SiftedPipeline) -> Any:
    """The value of a variable that is a key of a Secret, as a reference."""
    match written:
        case {"secretKeyRef": {"name": name, "key": key, **others}, **rest} if not rest and others in (
            {},
            {"optional": False},
        ):
            return {"secret": {"name": name, "key": key}}
    expected = "`secretKeyRef` with `name` and `key`, or `value`"
    what = "this kind of `valueFrom` is not supported yet"
    sifted.problems.append(Finding(codes.NOT_SUPPORTED, path, what, expected))
    return ""


def _narrow_reduces(sifted: SiftedPipeline) -> None:
    """In Numaflow, a reduce that is not keyed has one partition, whatever its file says."""
    if not isinstance(sifted.value, dict) or sifted.value.get("apiVersion") != API_VERSION:
        return
    for index, vertex in enumerate(vertices_in(sifted.value)):
        udf = vertex.get("udf") if isinstance(vertex, dict) else None
        group_by = udf.get("groupBy") if isinstance(udf, dict) else None
        partitions = vertex.get("partitions") if isinstance(vertex, dict) else None
        if not isinstance(group_by, dict) or group_by.get("keyed", False) is not False:
            continue
        if isinstance(partitions, int) and partitions > 1:
            vertex["partitions"] = 1
            what = "`partitions` counts as 1, as in Numaflow, because the reduce is not keyed"
            sifted.notes.append((("spec", "vertices", index, "partitions"), what))


def _sift_lifecycle(value: Any, path: Path, sifted: SiftedPipeline) -> None:
    if not isinstance(value, dict):
        expected = "a mapping with `desiredPhase`"
        sifted.problems.append(Finding(codes.WRONG_TYPE, path, "`lifecycle` is not a mapping", expected))
        return
    for name, member in value.items():
        here = (*path, name)
        if name in _WITHOUT_EFFECT["lifecycle"]:
            sifted.notes.append((here, f"`{name}` {NO_EFFECT}"))
        elif name != "desiredPhase":
            expected = one_of(str(name), ("desiredPhase", *_LIFECYCLE))
            sifted.problems.append(Finding(codes.UNKNOWN_FIELD, here, f"unknown field `{name}`", expected))
        elif member == "Running":
            sifted.notes.append((here, f"`desiredPhase` {NO_EFFECT}, which always runs"))
        else:
            what = f"`desiredPhase: {member}` is not supported yet"
            sifted.problems.append(Finding(codes.NOT_SUPPORTED, here, what, "`Running`"))
