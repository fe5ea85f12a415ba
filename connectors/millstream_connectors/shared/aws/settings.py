"""How pipeline files name a service of AWS, and the credentials with which requests to it are signed."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.spec.references import Secret, TextOrReference
from millstream.spec.values import Needed, ShapeProblem, SpecModel, Text
from millstream_connectors.shared.access_keys import access_key_problems


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
