"""A lane's client of an external Pulsar cluster, and what its errors mean to the lane.

Above it: the `pulsar` source and sink. Below it: pulsar-client, whose calls block, so each lane has a thread for them.
Every failure becomes a Millstream error, by who must act: one that passes by itself becomes `RetryLaterError`.

The client reports that it could not connect in time, and not why. So a connection of our own precedes each client.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pulsar
from pulsar import exceptions

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.spec.references import Secret, resolve
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of, file_in_memory
from millstream_connectors.pulsar.credentials import Credentials, credentials_now, identity_of
from millstream_connectors.pulsar.handshake import answer_size, connect_frame, refusal
from millstream_connectors.pulsar.settings import PulsarCluster
from millstream_connectors.shared.failing import on_failure, translating
from millstream_connectors.shared.oauth2.issuer import Issuer

FAILURES = (exceptions.PulsarException,)
"""Exceptions of the client."""
_UNKNOWN = (exceptions.AuthenticationError, exceptions.ErrorGettingAuthenticationData)
_REFUSED = (*_UNKNOWN, exceptions.AuthorizationError)
_UNFIT = (
    exceptions.TopicNotFound,
    exceptions.InvalidTopicName,
    exceptions.NotAllowedError,
    exceptions.OperationNotSupported,
    exceptions.IncompatibleSchema,
    exceptions.TopicTerminated,
)
_ANSWERS = (*_UNFIT, exceptions.AuthorizationError)
"""Errors of a cluster that knows who connects."""


class PulsarLink:
    """A client and the certificates that it reads. All methods block."""

    def __init__(self, cluster: PulsarCluster, base_dir: Path, where: str, who: Credentials | Issuer | None) -> None:
        """Raises `UserError` for a certificate that cannot be resolved."""
        self._cluster = cluster
        self._where = where
        self._who = who
        self._descriptors: list[int] = []
        tls = cluster.tls or ServerTls()
        paths = ssl.get_default_verify_paths()
        with on_failure(self._forget_files):
            certificate = self._file(tls.certificate, base_dir, "tls.certificate")
            key = self._file(tls.key, base_dir, "tls.key")
            self.client = pulsar.Client(
                cluster.service_url,
                authentication=_authentication(who, certificate, key),
                operation_timeout_seconds=max(1, math.ceil(cluster.timeout_s)),
                connection_timeout_ms=max(1, math.ceil(cluster.timeout_s * 1000)),
                stats_interval_in_seconds=0,
                tls_trust_certs_file_path=self._file(tls.ca, base_dir, "tls.ca")
                or paths.cafile
                or paths.openssl_cafile,
                tls_certificate_file_path=certificate,
                tls_private_key_file_path=key,
                tls_validate_hostname=True,
                # Errors are in the answers; the client would also write them to the standard output.
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
            )

    def close(self) -> None:
        """Abandons what is in progress."""
        if isinstance(self._who, Issuer):
            self._who.close()
        try:
            self.client.shutdown()
        finally:
            self._forget_files()

    def partitions(self, topic: str) -> list[str]:
        """The names of a topic's partitions; its own name if it has none. Raises `FAILURES`."""
        return list(self.client.get_topic_partitions(topic))

    def translated(self) -> AbstractContextManager[None]:
        """Converts errors of the client to Millstream errors."""
        return translating(FAILURES, self.error_of)

    def error_of(self, error: BaseException) -> MillstreamError:
        """The Millstream error for an error of the client."""
        if isinstance(self._who, Issuer):
            # A client whose token has expired tries to connect until its time is over.
            # The next link reads the secret again, which may have been replaced, and the answer to that is final.
            if (failure := self._who.failure) is not None and not isinstance(error, _ANSWERS):
                return RetryLaterError(codes.TARGET_AWAY, str(failure))
            # The next link gets a new token, and the answer to that is final.
            if isinstance(error, _UNKNOWN):
                what = f"{_place(self._cluster, self._where)} does not accept a token that was issued earlier"
                return RetryLaterError(codes.TARGET_AWAY, what)
        return error_of(error, self._cluster, self._where)

    def _file(self, secret: Secret | None, base_dir: Path, name: str) -> str | None:
        # The client reads it again when it reconnects.
        if secret is None:
            return None
        descriptor = file_in_memory(resolve(secret, base_dir, f"{self._where}: {name}").encode())
        self._descriptors.append(descriptor)
        return f"/proc/self/fd/{descriptor}"

    def _forget_files(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def open_link(cluster: PulsarCluster, base_dir: Path, where: str) -> PulsarLink:
    """A client of a cluster that accepts the connection. Blocks for about the cluster's timeout at most, however many
    addresses it has.

    Raises `UserError` if the user has to change something, and `RetryLaterError` if it cannot be reached now.
    """
    who = identity_of(cluster, base_dir, where)
    context = context_of(cluster.tls or ServerTls(), base_dir, where) if cluster.encrypted else None
    errors: list[MillstreamError] = []
    deadline_s = time.monotonic() + cluster.timeout_s
    for tried, (host, port) in enumerate(cluster.places):
        # An equal share of what is left, so that an address that is silent leaves time for the others.
        now_s = time.monotonic()
        share_s = (deadline_s - now_s) / (len(cluster.places) - tried)
        try:
            _connect(host, port, context, who, now_s + share_s, where)
            break
        except (UserError, RetryLaterError) as error:
            errors.append(error)
    else:
        # What only the user can change does not pass while the other addresses are away.
        refused = next((error for error in errors if isinstance(error, UserError)), None)
        if refused is not None:
            raise refused
        texts = dict.fromkeys(str(error).removeprefix(f"{where}: ") for error in errors)
        raise RetryLaterError(codes.TARGET_AWAY, f"{where}: {'; '.join(texts)}") from errors[0]
    link = PulsarLink(cluster, base_dir, where, who)
    if isinstance(who, Issuer):
        who.keep(cluster.timeout_s)
    return link


def _authentication(
    who: Credentials | Issuer | None, certificate: str | None, key: str | None
) -> pulsar.Authentication | None:
    """`certificate`, `key`: the files of the client's own."""
    if who is None:
        return None
    if isinstance(who, Issuer):
        # The client asks at each connection, and when a broker asks for a new token. Its `shutdown` waits for the
        # answer without releasing the interpreter's lock, so the answer must not wait for anything.
        return pulsar.AuthenticationToken(who.last)
    if who.secret is None:
        return pulsar.AuthenticationTLS(certificate, key)
    if who.user is not None:
        return pulsar.AuthenticationBasic(who.user, who.secret)
    return pulsar.AuthenticationToken(who.secret)


def _connect(
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    who: Credentials | Issuer | None,
    deadline_s: float,
    where: str,
) -> None:
    """Connect once without the client, to learn why that is not possible."""

    def left_s() -> float:
        left = deadline_s - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    place = f"{where}: Pulsar at {host}:{port}"
    try:
        with ExitStack() as life:
            connection = life.enter_context(socket.create_connection((host, port), left_s()))
            connection.settimeout(left_s())
            if context is not None:
                connection = life.enter_context(context.wrap_socket(connection, server_hostname=host))
                connection.settimeout(left_s())
            # An issuer is asked for a token only if the cluster can be reached.
            connection.sendall(connect_frame(credentials_now(who, left_s())))
            connection.settimeout(left_s())
            stream = life.enter_context(connection.makefile("rb"))
            size = answer_size(stream.read(4))
            connection.settimeout(left_s())
            refused = refusal(stream.read(size))
    except (OSError, ValueError) as error:
        # A server that ends in the middle of the handshake has not judged it.
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            raise UserError(codes.TARGET_REFUSES, f"{place}: no encrypted connection: {error}") from error
        said = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
        raise RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}") from error
    if refused is not None and refused.of_user:
        raise UserError(codes.TARGET_REFUSES, f"{place} refuses who connects: {refused.text}")
    if refused is not None:
        raise RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {refused.text}")


def error_of(error: BaseException, cluster: PulsarCluster, where: str) -> MillstreamError:
    """The Millstream error for an error of the client."""
    place = _place(cluster, where)
    said = type(error).__name__ if not str(error) else f"{type(error).__name__}: {error}"
    if isinstance(error, _REFUSED):
        return UserError(codes.TARGET_REFUSES, f"{place} refuses the connection or an operation: {said}")
    if isinstance(error, _UNFIT):
        return UserError(codes.TARGET_UNFIT, f"{place}: {said}")
    if isinstance(error, exceptions.Timeout):
        return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}")


def _place(cluster: PulsarCluster, where: str) -> str:
    return f"{where}: Pulsar at {cluster.shown}"
