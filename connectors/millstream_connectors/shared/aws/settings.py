"""How pipeline files name a service of AWS, and the credentials with which requests to it are signed."""

from __future__ import annotations

from collections.abc import Iterator

from millstream import codes
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.values import Needed, ShapeProblem, SpecModel, Text


def access_key_problems(access_key: object, secret_key: object, session_token: object) -> Iterator[ShapeProblem]:
    """Rejects an access key without its secret and the reverse, and a token without both."""
    if (access_key is None) != (secret_key is None):
        absent = "accessKey" if access_key is None else "secretKey"
        what = "`accessKey` and `secretKey` belong together"
        yield ShapeProblem(codes.FIELD_MISSING, (absent,), what, "both, or none for those of the environment")
    elif session_token is not None and access_key is None:
        what = "`sessionToken` has no effect without `accessKey`"
        yield ShapeProblem(codes.FIELDS_CONFLICT, ("sessionToken",), what, "all three, or none")


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

    def needs(self) -> Iterator[Needed]:
        yield Needed("botocore", "millstream[aws]")

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects incomplete credentials."""
        yield from access_key_problems(self.access_key, self.secret_key, self.session_token)
