"""A connector's way to a table of Apache Iceberg, and what its errors mean to a lane.

Above it: connectors. Below it: pyiceberg, an extra. Tables and answers of catalogs are data of others: nothing is
loaded by a name in them (`imports`), and only listed properties of them are used (`answers`). Every failure becomes a
Millstream error, by who must act: one that passes by itself becomes `RetryLaterError`, so the lane waits for a catalog
or store that is away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from ssl import SSLContext
from types import MappingProxyType
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    ResolveError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.io import FileIO
from pyiceberg.table import StagedTable, Table
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import SSLError
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import CATALOG_ANSWER_BYTES_MAX
from millstream.spec.references import resolve
from millstream.wire.client_tls import trusting
from millstream_connectors.iceberg.answers import of_catalog, of_files
from millstream_connectors.iceberg.bounds import bound_metadata
from millstream_connectors.iceberg.files import DurableFileIO
from millstream_connectors.iceberg.imports import DURABLE, load_nothing_by_name
from millstream_connectors.iceberg.settings import IcebergCatalog, IcebergTable
from millstream_connectors.shared.aws.settings import AwsService
from millstream_connectors.shared.aws.signing import AwsCredentials, open_credentials, signed_headers
from millstream_connectors.shared.objects.certificates import distrust
from millstream_connectors.shared.objects.settings import ObjectStore, is_url

load_nothing_by_name()
bound_metadata()

FAILURES = (
    *(OSError, SQLAlchemyError, RESTError, NoSuchNamespaceError, NoSuchTableError),
    *(ValueError, EOFError, ResolveError, RecursionError),
)
"""Exceptions of the client: everything that can go wrong between a lane and its table. A file with invalid contents
raises `ValueError`, or `EOFError` if it ends too early, or `ResolveError` for another schema."""
ABSENT = NoSuchTableError
CONFLICT = CommitFailedException
"""A commit was refused, because the table was changed since its base was read."""
EXISTS = (NamespaceAlreadyExistsError, TableAlreadyExistsError, IntegrityError, CONFLICT)
"""What was to be created exists, perhaps because another process has just created it."""

_TableT = TypeVar("_TableT", bound=Table)
_TIMEOUT_S = 30.0
_CONNECT_S = 5.0
_REFUSED = re.compile(
    r"AccessDenied|ACCESS_DENIED|InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH"
    r"|INVALID_SIGNATURE|HTTP status 403|HTTP status 401|error code 15"
)
_MISSING = re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|Bucket '[^']*' not found", re.IGNORECASE)


class _Sent(HTTPAdapter):
    """Sends requests with a timeout, which pyiceberg does not set, and with this client's own authorities: `requests`
    prefers those of variables of the environment. Follows no redirect."""

    def __init__(self, timeout_s: float, context: SSLContext) -> None:
        self._timeout_s = timeout_s
        self._context = context
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: str, verify: object, cert: object) -> None:
        # The context has the authorities. `requests` would add those of its own package to it.
        conn.cert_reqs = "CERT_REQUIRED"

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        kwargs["timeout"] = (min(self._timeout_s, _CONNECT_S), self._timeout_s)
        kwargs["stream"] = True
        answer = super().send(request, *args, **kwargs)
        contents = bytearray()
        for part in answer.iter_content(64 * 1024):
            # It may be compressed.
            contents += part
            if len(contents) > CATALOG_ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of the catalog has more than {CATALOG_ANSWER_BYTES_MAX} bytes")
        answer._content = bytes(contents)
        if answer.is_redirect:
            to = urlsplit(answer.headers["Location"])
            what = f"the server redirects to {to.scheme}://{to.hostname}" if to.hostname else "the server redirects"
            raise ValueError(f"{what}; redirects are not followed. Set `rest` to the target of the redirect")
        return answer


class _Signed(_Sent):
    """Signs requests, too, for a service of AWS. pyiceberg does so only with boto3, which needs other packages."""

    def __init__(
        self, timeout_s: float, context: SSLContext, settings: AwsService, credentials: AwsCredentials
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        super().__init__(timeout_s, context)

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        # pyiceberg sends JSON, which requests has made text or bytes.
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        assert isinstance(body, bytes)
        content_type = cast("str | None", request.headers.get("Content-Type"))
        method, url = cast("str", request.method), cast("str", request.url)
        keys = self._credentials.keys()
        request.headers.update(signed_headers(self._settings, keys, method, url, content_type, body))
        return super().send(request, *args, **kwargs)


class _ServerCatalog(RestCatalog):
    """A REST catalog, all requests to which use one adapter. Of its answers, only what `answers` names is used."""

    def __init__(self, name: str, adapter: HTTPAdapter, **properties: Any) -> None:
        self._adapter = adapter
        super().__init__(name, **properties)

    def _config_headers(self, session: Session) -> None:
        """Called before the session is used for anything, even to request a token."""
        super()._config_headers(session)
        # Neither proxies nor credentials nor authorities of the environment.
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(scheme, self._adapter)

    def _fetch_config(self) -> None:
        ours, uri = dict(self.properties), self.uri
        super()._fetch_config()
        self.properties, self.uri = {**ours, **of_catalog(self.properties)}, uri

    def _load_file_io(
        self, properties: Mapping[str, Any] = MappingProxyType({}), location: str | None = None
    ) -> FileIO:
        """`properties`: of the table as well, so none of them is used."""
        return DurableFileIO(self.properties)

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        return self._with_files(super()._response_to_table(identifier_tuple, table_response), table_response)

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> StagedTable:
        return self._with_files(super()._response_to_staged_table(identifier_tuple, table_response), table_response)

    def _with_files(self, table: _TableT, answer: TableResponse) -> _TableT:
        vended = self._resolve_storage_credentials(answer.storage_credentials, answer.metadata_location)
        table.io = DurableFileIO({**self.properties, **of_files({**answer.config, **vended})})
        return table


class _FileCatalog(SqlCatalog):
    """In a file of SQLite, which keeps what it has acknowledged."""

    def __init__(self, name: str, url: URL, properties: dict[str, str]) -> None:
        super().__init__(name, uri=url.render_as_string(), **properties)
        self.engine.dispose()
        # Of its own accord, pyiceberg keeps the file open after the lane has ended.
        self.engine = create_engine(url, poolclass=NullPool)
        event.listen(self.engine, "connect", _sync_every_commit)

    def _load_file_io(
        self, properties: Mapping[str, Any] = MappingProxyType({}), location: str | None = None
    ) -> FileIO:
        """`properties`: of the table, so none of them is used."""
        return DurableFileIO(self.properties)


def _sync_every_commit(connection: Any, _: object) -> None:
    # `FULL`, the default, does not sync the removal of the journal: a loss of power could take a commit back.
    connection.execute("PRAGMA synchronous = EXTRA")


def open_catalog(
    settings: IcebergCatalog, store: ObjectStore | None, base_dir: Path, where: str, *, create: bool
) -> Catalog:
    """The catalog. Blocks. `create`: create a SQLite file that does not exist.

    Raises `UserError` for missing credentials, and otherwise exceptions that `error_of` converts.
    """
    properties = _store_properties(store or ObjectStore(), base_dir, where)
    properties["py-io-impl"] = DURABLE
    if settings.warehouse is not None:
        plain = settings.rest is not None or is_url(settings.warehouse)
        properties["warehouse"] = settings.warehouse if plain else str((base_dir / settings.warehouse).resolve())
    if settings.sqlite is not None:
        path = (base_dir / settings.sqlite).resolve()
        if not path.exists() and not create:
            raise UserError(
                codes.TARGET_UNFIT, f"{where}: there is no Iceberg catalog {settings.sqlite}. Correct `sqlite`"
            )
        url = URL.create("sqlite", database=str(path))
        try:
            return _FileCatalog(settings.name, url, properties)
        except OperationalError as error:
            if "already exists" not in str(error):
                raise
            # Another lane has just created the tables of the catalog.
            return _FileCatalog(settings.name, url, properties)
    assert settings.rest is not None, "the model has checked this"
    address = settings.rest.rstrip("/")
    properties["oauth2-server-uri"] = settings.oauth2_server_uri or f"{address}/v1/oauth/tokens"
    if settings.scope is not None:
        properties["scope"] = settings.scope
    for name, value in (("token", settings.token), ("credential", settings.credential)):
        if value is not None:
            properties[name] = resolve(value, base_dir, f"{where}: the {name} for {settings.rest}")
    context = _context(settings.ca, base_dir, where)
    adapter = _Sent(_TIMEOUT_S, context)
    if (aws := settings.aws) is not None:
        adapter = _Signed(_TIMEOUT_S, context, aws, open_credentials(aws, base_dir, f"{where}: catalog.aws"))
    return _ServerCatalog(settings.name, adapter, uri=address, **properties)


def _context(ca: str | None, base_dir: Path, where: str) -> SSLContext:
    """What a catalog's certificate is checked with. Raises `UserError` for a file that has no certificates."""
    try:
        return trusting((base_dir / ca if ca is not None else Path(DEFAULT_CA_BUNDLE_PATH)).read_text("utf-8"))
    except (OSError, ValueError) as error:
        what = f"{where}: `catalog.ca`: {ca} has no certificates that can be used: {error}"
        raise UserError(codes.CERTIFICATES, what) from error


def _store_properties(store: ObjectStore, base_dir: Path, where: str) -> dict[str, str]:
    """The properties with which pyiceberg reaches an object store."""
    named = {
        "s3.access-key-id": store.access_key,
        "s3.secret-access-key": store.secret_key,
        "s3.session-token": store.session_token,
    }
    properties = {
        name: resolve(value, base_dir, f"{where}: the {name} of the object store")
        for name, value in named.items()
        if value is not None
    }
    plain = {"s3.region": store.region, "s3.endpoint": store.endpoint, "gcs.service.host": store.endpoint}
    properties.update((name, text) for name, text in plain.items() if text is not None)
    if store.anonymous:
        properties["s3.anonymous"] = "true"
    return properties | {
        "s3.request-timeout": f"{store.timeout_s:g}",
        "s3.connect-timeout": f"{min(store.timeout_s, _CONNECT_S):g}",
    }


def error_of(error: BaseException, settings: IcebergTable, where: str) -> MillstreamError:
    """The Millstream error for an error of the client. No message holds a credential."""
    said = " ".join(str(error).split()) or type(error).__name__
    # SQLAlchemy appends the statement with its parameters in brackets.
    said = said.partition(" [SQL:")[0]
    what = distrust(said)
    said = said if len(said) <= 300 else f"{said[:300]}…"
    place = f"{where}: the Iceberg table {settings.table}"
    if isinstance(error, UnauthorizedError | ForbiddenError | OAuthError | AuthorizationExpiredError):
        return UserError(codes.TARGET_REFUSES, f"{place}: the catalog denies access: {said}")
    if isinstance(error, PermissionError) or _REFUSED.search(said):
        return UserError(codes.TARGET_REFUSES, f"{place}: access is denied: {said}")
    if _MISSING.search(said):
        return UserError(
            codes.TARGET_UNFIT, f"{place}: there is no such bucket. Correct `warehouse`, or create the bucket"
        )
    if isinstance(error, SSLError):
        return UserError(codes.TARGET_REFUSES, f"{place}: the certificate of the catalog is not trusted: {said}")
    if what is not None:
        return UserError(codes.TARGET_REFUSES, f"{place}: the store of its files: {what}")
    is_place = isinstance(error, NotADirectoryError | IsADirectoryError) or "unable to open database file" in said
    is_database = isinstance(error, DatabaseError) and not isinstance(error, OperationalError)
    is_value = isinstance(error, ValueError | EOFError | ResolveError) and not isinstance(error, OSError)
    if is_place or is_database or is_value or isinstance(error, BadRequestError | NoSuchNamespaceError):
        return UserError(codes.TARGET_UNFIT, f"{place}: {said}")
    advice = ". Free some space there" if "No space left" in said else ""
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}{advice}")
