"""Reads and checks access files, which describe how to reach a broker, and loads their certificates. Each technology
defines the other fields of its access file.

Secrets are in the environment or in separate files, so other users may read an access file. Nothing in it comes from
the command line, which every user of a machine can read. Above it: technologies. Below it: YAML and references.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from millstream import codes
from millstream.errors import UserError
from millstream.json_parser import parse_json
from millstream.spec.addresses import without_secrets
from millstream.spec.model import NotReadError
from millstream.spec.problems import Finding, path_text
from millstream.spec.references import placeholders, resolve
from millstream.spec.values import ShapeProblem, SpecModel, Text

if TYPE_CHECKING:
    import ssl

FILE_BYTES_MAX = 64 * 1024
"""Maximum size of an access file."""

WrittenT = TypeVar("WrittenT", bound=SpecModel)


class TlsFiles(SpecModel):
    """Certificates, as PEM files; paths are relative to the access file."""

    noun = "`tls`"

    ca: Text | None = None
    """Certificates of the authorities that may issue the server's certificate. Default: those of the system."""
    certificate: Text | None = None
    """The client's own certificate, if the server requires one."""
    key: Text | None = None
    """The private key of the client's certificate, without a passphrase."""
    server_name: Text | None = None
    """The name in the server's certificate, if it differs from the one in the URL."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires that a certificate and its key are given together."""
        if (data.get("certificate") is None) != (data.get("key") is None):
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, (), "`certificate` and `key` belong together", "both of them, or neither"
            )


def read_access(path: Path, model: type[WrittenT]) -> WrittenT:
    """The contents of the file. Raises `UserError` for an unusable one; no message contains a secret."""
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(
            codes.BROKER_ACCESS_FILE, f"the broker's access file {path} cannot be read: {error.strerror}"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise UserError(
            codes.BROKER_ACCESS_FILE, f"the broker's access file {path} is larger than {FILE_BYTES_MAX} bytes"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(codes.BROKER_ACCESS_FILE, f"the broker's access file {path} is not UTF-8") from error
    try:
        return _of_json(text, model)
    except ValueError:
        return _of_yaml(text, path, model)


def _of_json(text: str, model: type[WrittenT]) -> WrittenT:
    """The contents of a file that a program has written, such as the runner for its workers. Raises `ValueError` for
    anything except valid JSON."""
    value = parse_json(text, object_pairs_hook=_mapping)
    if any(True for _ in placeholders(value)):
        raise NotReadError
    return model.read(value)


def _mapping(members: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(members)
    if len(mapping) < len(members):
        raise NotReadError
    return mapping


def _of_yaml(text: str, path: Path, model: type[WrittenT]) -> WrittenT:
    """The contents of a file in YAML. Raises a `UserError` that lists all problems."""
    # A worker that was started by a runner does not need YAML.
    from millstream.spec import yaml_text
    from millstream.spec.messages import findings_of

    try:
        document = yaml_text.parse(text)
    except yaml_text.UnreadableError as problem:
        raise UserError(codes.BROKER_ACCESS_FILE, f"the broker's access file {path}: {problem.problem.what}") from None
    findings = [Finding(problem.code, problem.path, problem.what, problem.expected) for problem in document.problems]
    if not isinstance(document.value, dict):
        raise UserError(
            codes.BROKER_ACCESS_FILE, f"the broker's access file {path} is not a mapping, such as `user: NAME`"
        )
    findings += placeholders(document.value)
    try:
        written = model.model_validate(document.value)
    except ValueError as failure:
        findings += findings_of(failure, document.value, set())
    if findings:
        raise UserError(codes.BROKER_ACCESS_FILE, "\n".join(f"{path}: {_text(finding)}" for finding in findings))
    return written


def secret(path: Path, name: str, value: object) -> str | None:
    """The secret that a field refers to."""
    return None if value is None else resolve(value, path.absolute().parent, f"{path}: {name}")


def check_url(server: str, schemes: tuple[str, ...]) -> None:
    """Raise `UserError` for text that is not a broker's URL, or that contains a password. The first scheme is the usual
    one."""
    parts = urlsplit(server if "//" in server else f"{schemes[0]}://{server}")
    if parts.username is not None or parts.password is not None:
        raise UserError(
            codes.BROKER_ADDRESS,
            f"the URL of the broker at {parts.hostname} has a user or password in it, which every user of this "
            "machine can read from the command line. Put them into a file, and pass it with --broker-access "
            "(deploy/README.md)",
        )
    try:
        valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        usual, encrypted = schemes
        raise UserError(
            codes.BROKER_ADDRESS,
            f"{without_secrets(server)!r} is not a URL of a broker; expected {usual}://HOST:PORT, or "
            f"{encrypted}://HOST:PORT",
        )


def _text(finding: Finding) -> str:
    place = path_text(finding.path)
    return f"{place + ': ' if place else ''}{finding.what} (expected: {finding.expected})"


def tls_context(files: TlsFiles, base: Path, path: Path) -> ssl.SSLContext:
    import ssl

    try:
        ca = None if files.ca is None else str(base / files.ca)
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
        if files.certificate is not None and files.key is not None:
            # Never prompts for a passphrase: an encrypted key is refused.
            context.load_cert_chain(base / files.certificate, base / files.key, password=lambda: "")
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            codes.CERTIFICATES, f"{path}: tls: the certificates cannot be used: {reason}; they must be PEM files"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
