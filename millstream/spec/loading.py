"""Loads a pipeline file: the result is a pipeline, or a list of all problems.

    bytes ─► text ─► YAML with places ─► sift Numaflow's own fields ─► models
                                                   └─► outline ─► graph checks
    all findings together ─► problems with file, line and column

Creates the problems that users see. It reads only the one file; `checks` examines what the pipeline refers to.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from millstream import codes
from millstream.codes.code import Code
from millstream.nearest import near_file
from millstream.plan.plan import Plan, plan_of
from millstream.spec import numaflow, yaml_text
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline, Vertex
from millstream.spec.notes import notes_of
from millstream.spec.problems import Finding, Note, Path, Problem, SpecError, path_text
from millstream.spec.references import placeholders
from millstream.spec.shape_checks import outline_of, shape_findings

FILE_BYTES_MAX = 4 << 20
"""Maximum size of a pipeline file."""


@dataclass(frozen=True, slots=True)
class _ReadFile:
    """A pipeline file that was read."""

    path: FilePath
    """The path of the file, as given."""
    document: yaml_text.Document
    """The values of the file with their places, for problems that are found later."""

    @property
    def base_dir(self) -> FilePath:
        """Absolute directory of the file, to which its paths are relative."""
        return self.path.absolute().parent

    def problem(self, finding: Finding) -> Problem:
        """A finding as a problem of this file."""
        place = self.document.place_of(finding.path, key=finding.code is codes.UNKNOWN_FIELD)
        where = str(self.path), place.line, place.column, path_text(finding.path)
        return Problem(finding.code, *where, finding.what, finding.expected, finding.detail)

    def note(self, path: Path, what: str) -> Note:
        """A note on a place in this file."""
        place = self.document.place_of(path, key=True)
        return Note(str(self.path), place.line, place.column, path_text(path), what)


@dataclass(frozen=True, slots=True)
class LoadedPipeline(_ReadFile):
    """A valid pipeline file."""

    plan: Plan
    """What runs and is stored of it."""
    notes: tuple[Note, ...]
    """Fields without effect, and other notes."""

    @property
    def pipeline(self) -> Pipeline:
        """Its contents."""
        return self.plan.pipeline

    @property
    def graph(self) -> Graph:
        """Its graph."""
        return self.plan.graph

    @property
    def sound(self) -> Mapping[int, Vertex]:
        """The vertices, by their place in the file."""
        return dict(enumerate(self.pipeline.spec.vertices))


@dataclass(frozen=True, slots=True)
class Partial(_ReadFile):
    """The valid parts of a file with problems, so that one problem does not hide others."""

    sound: Mapping[int, Vertex]
    """The vertices that are valid, by their place in the file."""


class FileError(SpecError):
    """A pipeline file with problems."""

    def __init__(self, problems: Sequence[Problem], partial: Partial | None = None) -> None:
        super().__init__(problems)
        self.partial = partial
        """The parts that can be checked anyway; None if the file cannot be read at all."""


def load(path: FilePath | str) -> LoadedPipeline:
    """Read and check a pipeline file. Errors: FileError with every problem."""
    file = FilePath(path)
    return load_text(_text_of(file), file)


def load_text(text: str, path: FilePath | str) -> LoadedPipeline:
    """Check the text of a pipeline file that is, or would be, at `path`. Errors: FileError."""
    file = str(FilePath(path))
    try:
        document = yaml_text.parse(text)
    except yaml_text.UnreadableError as problem:
        raise FileError([_text_problem(file, problem.problem)]) from None
    sifted = numaflow.sift(document.value)
    pipeline, findings = _validated(sifted)
    outline = outline_of(sifted.value)
    if outline is not None:
        findings += shape_findings(outline)
    problems = [_text_problem(file, problem) for problem in document.problems]
    read = _ReadFile(FilePath(path), document)
    problems += [read.problem(finding) for finding in findings]
    if problems or pipeline is None:
        unique = dict.fromkeys(problems)
        partial = Partial(read.path, document, _sound_vertices(sifted.value))
        raise FileError(sorted(unique, key=lambda problem: (problem.line, problem.column, problem.path)), partial)
    graph = Graph.of(pipeline)
    notes = [read.note(place, what) for place, what in (*sifted.notes, *notes_of(sifted.value, graph))]
    notes.sort(key=lambda note: (note.line, note.column))
    return LoadedPipeline(read.path, document, plan_of(graph), tuple(notes))


def _text_of(file: FilePath) -> str:
    def refusal(code: Code, what: str, expected: str) -> FileError:
        return FileError([Problem(code, str(file), 0, 0, "", what, expected)])

    try:
        if file.is_dir():
            raise refusal(codes.NOT_YAML, "this is a directory", "a pipeline file in it, such as pipeline.yaml")
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        expected = "an existing file; `millstream init` creates a working example"
        raise refusal(codes.NO_SUCH_FILE, f"there is no such file{near_file(file)}", expected) from None
    except OSError as problem:
        raise refusal(
            codes.FILE_UNUSABLE, f"the file cannot be read: {problem.strerror}", "a file that you may read"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise refusal(codes.FILE_TOO_LARGE, "the file is too large", f"at most {FILE_BYTES_MAX} bytes of YAML")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        column = problem.start - (data.rfind(b"\n", 0, problem.start) + 1) + 1
        refused = Problem(codes.NOT_YAML, str(file), line, column, "", "the text is not UTF-8", "a file in UTF-8")
        raise FileError([refused]) from None


def _validated(sifted: numaflow.SiftedPipeline) -> tuple[Pipeline | None, list[Finding]]:
    findings = list(sifted.problems)
    findings += _empty_groups(sifted.value)
    findings += placeholders(sifted.value)
    if not isinstance(sifted.value, dict):
        findings.append(Finding(codes.NOT_YAML, (), "the file is not a mapping", "a Pipeline: `apiVersion: ...`"))
        return None, findings
    if {"inputs", "outputs"} <= sifted.value.keys() and "spec" not in sifted.value:
        what = "the file is a test case, not a pipeline"
        return None, [Finding(codes.FIELD_MISSING, (), what, "a pipeline file; `millstream test` runs test cases")]
    try:
        return Pipeline.model_validate(sifted.value), findings
    except ValueError as failure:
        # Imported only for a file with problems, because they are pydantic's.
        from millstream.spec.messages import findings_of

        explained = {finding.path[:-1] for finding in sifted.problems}
        findings += findings_of(failure, sifted.value, explained)
        return None, findings


def _sound_vertices(value: Any) -> dict[int, Vertex]:
    sound = {}
    for index, written in enumerate(numaflow.vertices_in(value)):
        with suppress(ValueError):
            sound[index] = Vertex.model_validate(written)
    return sound


def _empty_groups(value: Any) -> Iterator[Finding]:
    """An empty `groupBy` would leave a map where a reduce was intended."""
    for index, vertex in enumerate(numaflow.vertices_in(value)):
        udf = vertex.get("udf") if isinstance(vertex, dict) else None
        if isinstance(udf, dict) and "groupBy" in udf and udf["groupBy"] is None:
            path = ("spec", "vertices", index, "udf", "groupBy")
            yield Finding(
                codes.FIELD_EMPTY, path, "`groupBy` is empty", "its window, such as `window: {fixed: {length: 60s}}`"
            )


def _text_problem(file: str, problem: yaml_text.TextProblem) -> Problem:
    place, text = problem.place, path_text(problem.path)
    return Problem(problem.code, file, place.line, place.column, text, problem.what, problem.expected)
