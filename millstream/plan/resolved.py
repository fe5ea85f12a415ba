"""A valid pipeline as JSON, for the processes of its vertices.

The runner writes it once, and every process reads the same text. No process reads the user's file again, which may have
changed.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.errors import UserError
from millstream.json_parser import parse_json
from millstream.plan.plan import Plan, plan_of
from millstream.spec.graph import Graph, decided
from millstream.spec.models import Pipeline

FORMAT = 1
"""Number of the format; text with another number is refused."""


@dataclass(frozen=True, slots=True)
class ResolvedPipeline:
    """A valid pipeline and the directory of its relative paths."""

    plan: Plan
    """What runs and is stored of it."""
    base_dir: Path
    """Absolute directory of the relative paths in the pipeline."""

    @property
    def graph(self) -> Graph:
        """The pipeline as its users see it."""
        return self.plan.graph

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline."""
        return self.plan.graph.pipeline


def dump(plan: Plan, base_dir: Path) -> str:
    """The JSON text; base_dir is made absolute."""
    contents = {
        "format": FORMAT,
        "baseDir": str(base_dir.absolute()),
        # Fields that the user omitted stay omitted: some defaults have less effect than the same value if it is
        # written. Only which edges are chained is written, because stored data depends on it.
        "pipeline": decided(plan.graph.pipeline).as_written(given_only=True),
        **({"ledgers": dict(plan.ledgers)} if plan.ledgers else {}),
        "formerKeys": sorted(plan.former_keys),
    }
    return json.dumps(contents, indent=1)


def load(text: str) -> ResolvedPipeline:
    """The result of `dump`. Errors: UserError for anything else."""
    try:
        contents = parse_json(text)
        if contents["format"] != FORMAT:
            raise UserError(
                codes.RESOLVED_PIPELINE,
                f"the resolved pipeline has format {contents['format']}, but this program reads format {FORMAT}: "
                "restart the pipeline with one version of Millstream for all its processes",
            )
        # Versions that chained no edge by default did not write which are.
        contents["pipeline"]["spec"].setdefault("chain", False)
        pipeline = Pipeline.model_validate(contents["pipeline"])
        # Versions that knew only the former texts of keys did not write which sources have them.
        former_keys = contents.get("formerKeys", [vertex.name for vertex in pipeline.spec.vertices])
        plan = plan_of(Graph.of(pipeline), contents.get("ledgers", {}), former_keys)
        return ResolvedPipeline(plan, Path(contents["baseDir"]))
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(
            codes.RESOLVED_PIPELINE,
            f"this is not a resolved pipeline: {problem}. `millstream compile pipeline.yaml` creates one",
        ) from problem
