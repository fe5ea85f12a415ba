"""What the clients of object stores say of a certificate that they do not accept."""

import pytest

from millstream_connectors.shared.objects.certificates import distrust

_HEAD = "AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode:"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("error sending request: InvalidCertificate(UnknownIssuer)", "UnknownIssuer"),
        ("client error (Connect): invalid peer certificate: certificate not valid for name", "certificate not valid"),
        (f"{_HEAD} 60, SSL certificate OpenSSL verify result: unable to get issuer (20)", "unable to get issuer"),
        (f"{_HEAD} 60, SSL peer certificate or SSH remote key was not OK", "SSL peer certificate"),
        (f"{_HEAD} 7, Could not connect to server", None),
    ],
)
def test_a_certificate_that_is_not_accepted_is_known_from_other_failures(said: str, reason: str | None) -> None:
    told = distrust(said)
    if reason is None:
        assert told is None
    else:
        assert told is not None
        assert f"({reason}" in told
        assert "SSL_CERT_FILE" in told
