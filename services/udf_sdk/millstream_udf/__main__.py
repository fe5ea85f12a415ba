"""`python -m millstream_udf module:function` or `python -m millstream_udf path/file.py:function`."""

from __future__ import annotations

import sys

from millstream_udf import checking, debugging, imported, logs, settings
from millstream_udf.failures import describe
from millstream_udf.loading import LoadError, load

USAGE = "usage: python -m millstream_udf module:function | path/file.py:function"


def main() -> None:
    """Serve one function. Ends the process, with exit code 2 if there is no such function."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(USAGE, file=sys.stderr)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    # Before the import of the function, which may log and so configure logging with defaults.
    logs.configure()
    # Nothing that the function's module starts should have its secrets.
    settings.take_environment()
    debugging.wait_for_debugger()
    if not checking.asked():
        # gRPC and protobuf, before the user's folder is searched, which may have a file of one of these names. A check
        # does not need them.
        import millstream_udf.server  # noqa: F401
    try:
        definition = load(sys.argv[1])
    except LoadError as error:
        imported.list_failed(error)
        if checking.asked():
            checking.report_unusable(error, found=error.found)
        print(f"millstream_udf: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:  # noqa: BLE001  # the user's module may raise anything
        imported.list_failed(error)
        if checking.asked():
            checking.report_raised(error)
        print(describe(error), file=sys.stderr)
        # A restart would fail in the same way.
        sys.exit(2)
    if checking.asked():
        checking.check(definition)
    from millstream_udf.server import run

    run(definition)


if __name__ == "__main__":
    main()
