"""`millstream run --dry-run`: what a changed pipeline requires of the data of its last run. Nothing is changed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from millstream.errors import UserError
from millstream.plan import resolved
from millstream.plan.diff import Difference, Effect, diff, settings_changed
from millstream.plan.shape import as_stored, shape_of
from millstream.spec.loading import LoadedPipeline
from millstream_runner.local.directory import HOME, DataDirectory, read_json

_MEANINGS = {
    Effect.RESTART: "a restart is enough",
    Effect.DRAIN: "only where no records wait: drain the pipeline first (Ctrl-C)",
    Effect.REFUSED: "never fits what is stored: undo it, or start over (--fresh, or another --data-dir)",
}


def dry_run(loaded: LoadedPipeline, arguments: argparse.Namespace) -> int:
    """Prints the differences. Returns the exit code of `run` if it would refuse one of them, and 0 otherwise."""
    directory = DataDirectory(arguments.data_dir or HOME / loaded.pipeline.name)
    differences = None if arguments.fresh else _differences(directory, loaded, arguments.forget)
    refused = any(one.effect is Effect.REFUSED for one in differences or ())
    if arguments.json:
        listed = [{"effect": one.effect.value, "what": one.what} for one in differences or ()]
        print(json.dumps({"starts_over": differences is None, "differences": listed}))
    elif differences is None:
        stored = (
            f"removes what is stored in {directory.root}" if arguments.fresh else f"finds nothing in {directory.root}"
        )
        print(f"the run {stored}, and starts from the beginning")
    elif not differences:
        print(f"nothing differs from the last run in {directory.root}")
    else:
        for one in differences:
            print(f"{one.effect.value:<8} {one.what}")
        print()
        for effect in dict.fromkeys(one.effect for one in differences):
            print(f"{effect.value}: {_MEANINGS[effect]}")
    return UserError.exit_code if refused else 0


def _differences(
    directory: DataDirectory, loaded: LoadedPipeline, forget: Sequence[str]
) -> Sequence[Difference] | None:
    """None if nothing is stored. Raises `DamageError` if what is stored cannot be read."""
    before = read_json(directory.shape)
    if before is None:
        return None
    loaded, _ = as_stored(loaded, before)
    found = [*diff(before, shape_of(loaded.plan), forget=forget).differences]
    if directory.pipeline.exists():
        found += settings_changed(resolved.load(directory.read_pipeline()).pipeline, loaded.pipeline)
    return found
