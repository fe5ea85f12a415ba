"""How pipeline files name an object store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from millstream import codes
from millstream.spec.addresses import SERVER_CHECK, without_secrets
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference, secret_in_file
from millstream.spec.tls import is_open
from millstream.spec.values import After, Flag, PositiveDuration, ShapeProblem, SpecModel, Text, field, without_effect
from millstream_connectors.shared.aws.settings import access_key_problems

SCHEMES = {"s3": "S3", "gs": "Google Cloud Storage", "az": "Azure"}
"""Schemes of URLs, with the usual name of the store."""
_FIELDS = {
    "s3": ("region", "accessKey", "secretKey", "sessionToken"),
    "az": ("account", "accountKey", "sasToken"),
    "gs": ("serviceAccountKey",),
}
"""The fields that one kind of store alone has."""


class ObjectUrl(NamedTuple):
    """The place of objects."""

    scheme: str
    bucket: str
    key: str
    """Key of an object, or the beginning of one; may contain a pattern."""

    @property
    def root(self) -> str:
        """The bucket, as users write it."""
        return f"{self.scheme}://{self.bucket}"

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"


def is_url(written: str) -> bool:
    """Whether a path is in an object store."""
    return "://" in written


def parse_url(written: str) -> ObjectUrl:
    """Raises `ValueError`, with what is expected, for a URL of another kind."""
    scheme, _, rest = written.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES or not bucket or any(character in bucket for character in "*?[]@:"):
        raise ValueError("a path, or s3://bucket/prefix, gs://bucket/prefix, az://container/prefix")
    return ObjectUrl(scheme, bucket, key)


def url_problem(written: str, loc: tuple[str | int, ...]) -> Iterator[ShapeProblem]:
    """What is wrong with a path that is a URL."""
    if is_url(written):
        try:
            parse_url(written)
        except ValueError as error:
            what = f"{without_secrets(written)!r} is not the URL of an object store"
            yield ShapeProblem(codes.VALUE_MALFORMED, loc, what, str(error))


class ObjectStore(SpecModel):
    """How to reach an object store, where the environment does not say."""

    noun = "an object store"

    endpoint: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address of the server, `https://host:port`, for stores with the protocol of S3. Default: the cloud's own."""
    region: Text | None = None
    """Region of the bucket (S3). Default: `AWS_REGION`, else us-east-1."""
    access_key: TextOrReference | None = None
    """Id of the access key (S3). Default: `AWS_ACCESS_KEY_ID`, or the role of the machine."""
    secret_key: TextOrReference | None = None
    """Secret of the access key (S3), as `{env: NAME}` or `{file: PATH}`. Default: `AWS_SECRET_ACCESS_KEY`, or the role
    of the machine."""
    session_token: TextOrReference | None = None
    """Token of temporary credentials (S3)."""
    account: Text | None = None
    """Name of the storage account (Azure). Default: `AZURE_STORAGE_ACCOUNT_NAME`."""
    account_key: TextOrReference | None = None
    """Key of the storage account (Azure). Default: `AZURE_STORAGE_ACCOUNT_KEY`, or the identity of the machine."""
    sas_token: TextOrReference | None = None
    """Shared access signature (Azure), in place of the key, as `{env: NAME}` or `{file: PATH}`."""
    service_account_key: TextOrReference | None = None
    """JSON key of a service account (Google Cloud Storage), as `{file: PATH}`. Default: the credentials of the
    application or the machine."""
    anonymous: Flag = False
    """Send requests without credentials, for public buckets."""
    timeout_s: PositiveDuration = field(default=30.0, alias="timeout")
    """Longest time for one request. After it, the request is repeated. Duration, default 30s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects incomplete credentials for S3, and two kinds of them for Azure."""
        yield from access_key_problems(self.access_key, self.secret_key, self.session_token)
        if self.account_key is not None and self.sas_token is not None:
            what = "a store is reached with a key or with a signature"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("sasToken",), what, "either `accountKey` or `sasToken`")

    @property
    def secrets(self) -> Iterator[tuple[str, object]]:
        """The secrets that are set, by the names of their fields."""
        values = {
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "sessionToken": self.session_token,
            "accountKey": self.account_key,
            "sasToken": self.sas_token,
            "serviceAccountKey": self.service_account_key,
        }
        yield from ((name, value) for name, value in values.items() if value is not None)

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on secrets in the pipeline file, and on objects that are sent over the network unencrypted."""
        for name, value in self.secrets:
            if isinstance(value, str) and name != "accessKey":
                yield (*path, name), secret_in_file(name)
        if self.endpoint is not None and is_open(self.endpoint):
            yield (*path, "endpoint"), "the objects are sent over the network unencrypted; https:// encrypts them"


def place_problems(settings: ObjectStore | None, path: str, *, url: str) -> Iterator[ShapeProblem]:
    """What is wrong with a `path`, and with a `store` for it. `url`: an example of one in a store."""
    yield from url_problem(path, ("path",))
    yield from unused_problems(settings, (path,))
    if not is_url(path):
        yield from without_effect({"store": settings}, "when `path` is a directory", f"`path: {url}`")


def unused_problems(settings: ObjectStore | None, paths: Sequence[str]) -> Iterator[ShapeProblem]:
    """Rejects fields of `store` for other stores than those of the paths. Another path than a URL has problems of its
    own."""
    schemes = {path.partition("://")[0] for path in paths}
    if settings is None or not schemes <= SCHEMES.keys():
        return
    used = {name for scheme in schemes for name in _FIELDS[scheme]}
    given = {"region": settings.region, "account": settings.account, **dict(settings.secrets)}
    unused = {name: value for name, value in given.items() if name not in used}
    stores = " and ".join(sorted(SCHEMES[scheme] for scheme in schemes))
    expected = ", ".join(f"`{name}`" for name in sorted(used))
    yield from without_effect(unused, f"on {stores}", expected, within=("store",))
