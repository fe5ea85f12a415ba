"""Which Spark computes the windows of a pipeline. Owns `spec.spark`; it knows nothing of jobs."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from millstream import codes
from millstream.limits import MIB
from millstream.spec.addresses import without_secrets
from millstream.spec.references import TextOrReference
from millstream.spec.values import (
    After,
    Before,
    Flag,
    Quantity,
    ShapeProblem,
    SpecModel,
    at_most_one,
    conflicts,
    field,
    problem,
    text_check,
)

DRIVER_MEMORY = 1024 * MIB
"""Default of `driverMemory`."""
DRIVER_MEMORY_MIN = 512 * MIB
"""Spark refuses a heap of less than 450 MiB, and a garbage collector may use some of it."""

_MASTER = re.compile(
    r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]|yarn|(spark|k8s)://\S+",
)
_REMOTE = re.compile(r"sc://[^\s/]+(/\S*)?")
_SECRET = "spark.authenticate.secret"
_OF_FIELDS: Mapping[str, str] = {
    "spark.master": "`master`",
    "spark.remote": "`remote`",
    "spark.driver.memory": "`driverMemory`",
}


def _checked_remote(written: str) -> str:
    if _REMOTE.fullmatch(written) is None or "@" in written or ";token=" in written.lower():
        what = f"{without_secrets(written)!r} is not a Spark Connect address"
        raise problem(codes.VALUE_MALFORMED, what, "'sc://host:port', with the token as a separate field")
    return written


def _conf_text(written: Any) -> Any:
    """Numbers and booleans of YAML as Spark writes them."""
    if isinstance(written, bool):
        return str(written).lower()
    return str(written) if isinstance(written, int | float) else written


_Master = Annotated[
    str,
    text_check(
        _MASTER.fullmatch,
        "is not a Spark master",
        "'local[*]', 'local[2]', 'spark://host:port', 'k8s://https://host:port' or 'yarn'",
    ),
]
_ConfValue = Annotated[TextOrReference, Before(_conf_text, bool | int | float | TextOrReference)]


class Spark(SpecModel):
    """The Spark of a pipeline's reduces: by default one inside the driver process, on this machine."""

    noun = "spark"

    master: _Master | None = None
    """Where jobs run: `local[N]` (in the driver, N tasks at a time), `spark://host:port`, `k8s://...` or `yarn`.
    Default: in the driver, with as many tasks as processors."""
    remote: Annotated[str, After(_checked_remote)] | None = None
    """Address of a Spark Connect server, `sc://host:port`, to use instead of a local driver."""
    token: TextOrReference | None = None
    """Token for the Spark Connect server, as `{env: NAME}` or `{file: PATH}`. The connection is then encrypted."""
    encryption: Flag = False
    """Whether Spark's processes encrypt the data that they send each other, and the window data that they write to
    disk."""
    driver_memory: Quantity = DRIVER_MEMORY
    """Java heap of the driver, at least 512Mi. Default 1Gi."""
    conf: dict[str, _ConfValue] = field(default_factory=dict)
    """Settings of Spark, `spark.name: value`. Give a password as `{env: NAME}` or `{file: PATH}`."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires either a local driver or a server."""
        yield from at_most_one(data, ("master", "remote"), cls.noun)
        if data.get("remote") is not None and data.get("driverMemory") is not None:
            what = "`driverMemory` is only for a driver that is started here"
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, ("driverMemory",), what, "the setting of the server, or no `remote`"
            )

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires a heap size that Spark accepts, and allows only Spark's settings that have no field here."""
        if self.driver_memory < DRIVER_MEMORY_MIN:
            yield ShapeProblem(
                codes.OUT_OF_RANGE, ("driverMemory",), "Spark does not start with such a small heap", "at least 512Mi"
            )
        yield from conflicts(
            (
                self.encryption and self.remote is not None,
                ("encryption",),
                "`encryption` is only for a driver that is started here",
                "the settings of the server, and `token`",
            ),
            (
                self.encryption and (self.master or "").startswith("spark://") and _SECRET not in self.conf,
                ("encryption",),
                f"`encryption` needs the secret of the cluster, `{_SECRET}` in `conf`",
                f"`conf: {{{_SECRET}: {{env: NAME}}}}`",
            ),
            (
                self.token is not None and self.remote is None,
                ("token",),
                "`token` is only for a Spark Connect server",
                "`remote: sc://host:port`, or no `token`",
            ),
        )
        for name in self.conf:
            if name in _OF_FIELDS:
                yield ShapeProblem(
                    codes.FIELDS_CONFLICT,
                    ("conf", name),
                    f"`{name}` has no effect: there is a field for it",
                    _OF_FIELDS[name],
                )
            elif not name.startswith("spark."):
                yield ShapeProblem(
                    codes.NOT_ALLOWED,
                    ("conf", name),
                    f"`{name}` is not a Spark setting",
                    "a name that starts with `spark.`",
                )
