"""How pipeline files name a service of AWS, and the credentials with which requests to it are signed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from millstream import codes
from millstream.spec.problems import Finding, Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.values import ShapeProblem, SpecModel, Text


class AwsService(SpecModel):
    """A service of AWS, and the credentials with which requests to it are signed."""

    noun = "aws"

    region: Text
    """Region of the service, such as `eu-central-1`."""
    service: Text
    """Name of the service in signatures: `es` for OpenSearch Service, `glue` and `s3tables` for catalogs of Iceberg,
    `execute-api` for API Gateway, `lambda` for URLs of functions."""
    access_key: TextOrReference | None = None
    """Id of the access key. Default: the credentials of the environment or of the machine, which are looked up as in
    other AWS clients."""
    secret_key: Secret | None = None
    """Secret of the access key, as `{env: NAME}` or `{file: PATH}`."""
    session_token: Secret | None = None
    """Token of temporary credentials."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects an access key without its secret and the reverse, and a token without both."""
        if (self.access_key is None) != (self.secret_key is None):
            absent = "accessKey" if self.access_key is None else "secretKey"
            what = "`accessKey` and `secretKey` belong together"
            yield ShapeProblem(codes.FIELD_MISSING, (absent,), what, "both, or none for those of the environment")
        elif self.session_token is not None and self.access_key is None:
            what = "`sessionToken` has no effect without `accessKey`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("sessionToken",), what, "all three, or none")


def lacks() -> Iterator[tuple[str, str]]:
    """What signatures need and this machine does not have, with the remedy."""
    if find_spec("botocore") is None:
        yield "needs the package botocore, which is not installed", "`pip install 'millstream[aws]'`"


def aws_findings(settings: AwsService | None, path: Path) -> Iterator[Finding]:
    """What signed requests need and this machine does not have. `path`: the place of the settings in the file."""
    if settings is not None:
        for what, remedy in lacks():
            yield Finding(codes.EXTRA_NEEDED, path, f"`{path[-1]}` {what}", remedy)
