"""The rule for the fields `accessKey`, `secretKey` and `sessionToken`, wherever AWS's credentials are given."""

from __future__ import annotations

from collections.abc import Iterator

from millstream import codes
from millstream.spec.values import ShapeProblem


def access_key_problems(access_key: object, secret_key: object, session_token: object) -> Iterator[ShapeProblem]:
    """Rejects an access key without its secret and the reverse, and a token without both."""
    if (access_key is None) != (secret_key is None):
        absent = "accessKey" if access_key is None else "secretKey"
        what = "`accessKey` and `secretKey` belong together"
        yield ShapeProblem(codes.FIELD_MISSING, (absent,), what, "both, or none for those of the environment")
    elif session_token is not None and access_key is None:
        what = "`sessionToken` has no effect without `accessKey`"
        yield ShapeProblem(codes.FIELDS_CONFLICT, ("sessionToken",), what, "all three, or none")
