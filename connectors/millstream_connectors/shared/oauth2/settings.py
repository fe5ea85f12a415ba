"""How pipeline files name an issuer of tokens, and the client that gets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import SERVER_CHECK
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.tls import ServerTls, is_open
from millstream.spec.values import After, ShapeProblem, SpecModel, Text, exactly_one, without_effect


class Oauth2(SpecModel):
    """A client of an issuer of tokens: OAuth 2.0 with client credentials. Its id and secret are in `privateKey`, or in
    `clientId` and `clientSecret`."""

    noun = "oauth2"

    issuer_url: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address of the issuer. Its document `/.well-known/openid-configuration` names where it issues tokens."""
    token_endpoint_url: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address at which the issuer issues tokens, instead of `issuerUrl`: `https://host/path`."""
    audience: Text | None = None
    """For whom the tokens are, if the issuer requires that: the cluster's or server's name at the issuer."""
    scope: Text | None = None
    """What the tokens have to allow, if the issuer requires that."""
    private_key: Secret | None = None
    """A key file, as Pulsar's clients read it: JSON with `client_id` and `client_secret`. `{file: PATH}`,
    `{env: NAME}`, or a key of a Kubernetes Secret."""
    client_id: TextOrReference | None = None
    """The client's id, or a reference to it."""
    client_secret: Secret | None = None
    """The client's secret: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""
    auth_method: Literal["client_secret_post", "client_secret_basic"] = "client_secret_post"
    """How the issuer gets id and secret: in the body of a request, or as its user and password."""
    tls: ServerTls | None = None
    """Which certificates of the issuer are accepted. Default: those of the system's certificate authorities."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires one address, and one kind of client credentials, as a whole."""
        yield from exactly_one(data, ("issuerUrl", "tokenEndpointUrl"), cls.noun)
        in_file = data.get("privateKey") is not None
        parts = [data.get(name) is not None for name in ("clientId", "clientSecret")]
        if any(parts) if in_file else not all(parts):
            what = "the client's id and secret come from one place"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), what, "either `privateKey`, or `clientId` and `clientSecret`")

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects `tls` for an unencrypted connection."""
        if self.tls is not None and not self.encrypted:
            yield from without_effect({"tls": self.tls}, "with http://", "https://")

    @property
    def address(self) -> str:
        """Where the issuer is asked first."""
        address = self.token_endpoint_url or self.issuer_url
        assert address is not None, "the settings have one of them"
        return address

    @property
    def address_field(self) -> str:
        """The name of the field with that address."""
        return "issuerUrl" if self.token_endpoint_url is None else "tokenEndpointUrl"

    @property
    def encrypted(self) -> bool:
        """Whether connections to the issuer use TLS."""
        return urlsplit(self.address).scheme == "https"

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """A note on a secret that is sent over the network unencrypted."""
        if is_open(self.address):
            what = "the client's secret is sent to the issuer unencrypted; https:// encrypts it"
            yield (*path, self.address_field), what
