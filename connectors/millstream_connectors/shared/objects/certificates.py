"""Whether a client of an object store trusts the server's certificate, by what its error says.

Above it: connectors. The clients (obstore, deltalake, pyarrow) have no setting for authorities; all of them take those
in the file that `SSL_CERT_FILE` names, in place of the system's.
"""

from __future__ import annotations

import re

# pyarrow 20 does not give the result of OpenSSL, only the code of curl.
_DISTRUST = re.compile(
    r"InvalidCertificate\(\s*(\w+)|invalid peer certificate:?\s+(.{1,100})|"
    r"(?:OpenSSL verify result:|curlCode: 60,(?!.*OpenSSL verify result)) ([\w ,/-]{1,100})"
)


def distrust(said: str) -> str | None:
    """What is wrong with the certificate, and what to do; None for an error of another kind."""
    found = _DISTRUST.search(said)
    if found is None:
        return None
    reason = next(group for group in found.groups() if group is not None).strip()
    return (
        f"its certificate is not accepted ({reason}). If an authority of your own has issued it, set SSL_CERT_FILE in "
        "the environment of the pipeline to a file with the certificates of the authorities to trust"
    )
