"""The models by themselves: they round-trip, cannot be changed, and pair fields that belong together."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from millstream.errors import MillstreamError
from millstream.plan import resolved
from millstream.plan.plan import plan_of
from millstream.spec.graph import Graph, decided, with_edges
from millstream.spec.models import Pipeline, Source
from millstream.spec.schema import schema
from millstream.spec.validation import validate
from millstream.spec.values import SpecModel
from millstream_connectors.delta.settings import DeltaSink, DeltaSource
from millstream_connectors.file.settings import FileSink, FileSource
from millstream_connectors.generator.settings import GeneratorSource
from tests.unit.spec.strategies import pipelines


@pytest.mark.slow
@settings(deadline=None)
@given(pipelines)
def test_a_valid_pipeline_survives_json(written: dict[str, Any]) -> None:
    pipeline = Pipeline.model_validate(written)
    assert Pipeline.model_validate(json.loads(json.dumps(pipeline.as_written()))) == pipeline
    again = resolved.load(resolved.dump(plan_of(Graph.of(pipeline)), Path("/data/flows")))
    # What the file leaves to the defaults of a version is written: which edges are chained.
    assert again.pipeline.spec.edges == decided(pipeline).spec.edges
    unchained = pipeline.spec.model_copy(update={"chain": False})
    assert with_edges(again.pipeline, pipeline.spec.edges) == pipeline.model_copy(update={"spec": unchained})
    assert (again.graph.order, again.graph.chains) == (Graph.of(pipeline).order, Graph.of(pipeline).chains)
    assert again.base_dir == Path("/data/flows")


@settings(deadline=None)
@given(pipelines)
def test_what_is_right_is_read_without_pydantic_and_as_it_reads_it(written: dict[str, Any]) -> None:
    pipeline = Pipeline.read(written)
    with_pydantic = validate(Pipeline, written)
    assert pipeline == with_pydantic
    assert pipeline.as_written(given_only=True) == with_pydantic.as_written(given_only=True)


@settings(deadline=None)
@given(pipelines)
def test_no_field_is_written_in_two_ways(written: dict[str, Any]) -> None:
    """The attribute names are not accepted in files."""
    written["spec"]["limits"]["read_batch_size"] = 3
    with pytest.raises(ValidationError, match="read_batch_size"):
        Pipeline.model_validate(written)


def test_models_cannot_be_changed() -> None:
    generator = GeneratorSource()
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(generator, "rpu", 7)  # noqa: B010 - a plain assignment is refused by the type checker already


def test_a_resolved_pipeline_of_another_format_or_none_is_refused() -> None:
    for text in (json.dumps({"format": 99}), "{}", "[]", "not json", json.dumps({"format": 1, "pipeline": {}})):
        with pytest.raises(MillstreamError):
            resolved.load(text)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"value": 1, "valueBlob": "aGk="}, "together"),
        ({"valueBlob": "a"}, "not base64"),
        ({"lateShare": 0.1}, "has no effect without `lateBy`"),
        ({"outOfOrderBy": "1s"}, "has no effect without `outOfOrderShare`"),
        ({"lateShare": 1.5, "lateBy": "1s"}, "less than or equal to 1"),
        ({"start": "yesterday"}, "is not a time"),
        ({"start": "2024-01-01T00:00:00Z", "rpu": 0}, "needs a step of event time"),
        ({"msgSize": 0}, "greater than or equal to 1"),
    ],
)
def test_generators_that_make_no_sense(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        GeneratorSource.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "kind", "bounded"),
    [
        ({"generator": {}}, "generator", False),
        ({"generator": {"records": 0}}, "generator", True),
        ({"file": {"paths": ["a"]}}, "file", True),
        ({"file": {"paths": ["a"], "follow": True}}, "file", False),
        ({"http": {}}, "http", False),
        ({"udsource": {"python": "a:b"}}, "udsource", None),
    ],
)
def test_sources_know_whether_they_end(settings: dict[str, Any], kind: str, bounded: bool | None) -> None:
    source = Source.model_validate(settings)
    assert (source.kind, source.bounded) == (kind, bounded)


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (FileSource, lambda url: {"paths": [url]}),
        (DeltaSource, lambda url: {"path": url}),
        (FileSink, lambda url: {"path": url}),
        (DeltaSink, lambda url: {"path": url}),
    ],
)
@pytest.mark.parametrize(
    ("url", "store", "problem"),
    [
        ("az://c/t", {"accessKey": "a", "secretKey": "b"}, "`accessKey` has no effect on Azure"),
        ("s3://b/t", {"accountKey": "a"}, "`accountKey` has no effect on S3"),
        ("s3://b/t", {"serviceAccountKey": "a"}, "`serviceAccountKey` has no effect on S3"),
        ("gs://b/t", {"region": "eu-west-1"}, "`region` has no effect on Google Cloud Storage"),
        ("gs://b/t", {"account": "a"}, "`account` has no effect on Google Cloud Storage"),
        ("s3://b/t", {"region": "r", "accessKey": "a", "secretKey": "b", "sessionToken": "c"}, ""),
        ("az://c/t", {"account": "a", "sasToken": "b"}, ""),
    ],
)
def test_a_field_for_another_store_is_refused(
    model: type[SpecModel], place: Callable[[str], dict[str, Any]], url: str, store: dict[str, str], problem: str
) -> None:
    written = {**place(url), "store": store}
    if problem:
        with pytest.raises(ValidationError, match=problem):
            model.model_validate(written)
    else:
        model.model_validate(written)


@pytest.mark.parametrize(
    ("sink", "kind", "problem"),
    [
        ({"columns": [{"name": "n"}], "format": "csv"}, "deadLetter", "the envelope of a record has no `n`"),
        ({"columns": [{"name": "n"}], "format": "parquet"}, "deadLetter", "has no `n`"),
        ({"columns": [{"name": "n"}], "format": "csv"}, "data", ""),
        ({"columns": [{"name": "reason"}], "format": "csv"}, "deadLetter", ""),
        ({"columns": [{"name": "n"}], "format": "lines"}, "data", "`columns` has no effect with `format: lines`"),
    ],
)
def test_columns_of_dead_letters_are_those_of_their_envelope(sink: dict[str, Any], kind: str, problem: str) -> None:
    written = {
        "apiVersion": "millstream.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "p"},
        "spec": {
            "vertices": [
                {"name": "in", "source": {"generator": {}}},
                {"name": "out", "sink": {"file": {"path": "out", **sink}}},
                {"name": "all", "sink": {"log": {}}},
            ],
            "edges": [{"from": "in", "to": "out", "kind": kind}, {"from": "in", "to": "all"}],
        },
    }
    if problem:
        with pytest.raises(ValidationError, match=problem):
            Pipeline.model_validate(written)
    else:
        Pipeline.model_validate(written)
    written["spec"]["vertices"][1]["sink"]["envelope"] = False  # type: ignore[index]  # a plain dictionary
    if "lines" not in problem:
        Pipeline.model_validate(written)


@pytest.mark.slow
def test_no_field_takes_a_text_or_a_number_for_true() -> None:
    schema()  # imports every connector
    lax = {
        f"{model.__module__}.{model.__qualname__}.{name}"
        for model in _models(SpecModel)
        for name, hint in get_type_hints(model, include_extras=True).items()
        if not name.startswith("_") and get_origin(hint) is not ClassVar and _takes_any_bool(hint)
    }
    assert lax == set()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"accessKey": "a"}, "`accessKey` and `secretKey` belong together"),
        ({"secretKey": {"env": "S"}}, "`accessKey` and `secretKey` belong together"),
        ({"sessionToken": {"env": "T"}}, "`sessionToken` has no effect without `accessKey`"),
        ({"accessKey": "a", "secretKey": {"env": "S"}, "sessionToken": {"env": "T"}}, ""),
        ({}, ""),
    ],
)
def test_credentials_of_aws_are_whole_wherever_they_are_given(given: dict[str, Any], problem: str) -> None:
    schema()  # imports every connector
    required = {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q", "region": "eu-west-1", "service": "es"}
    models = [model for model in _models(SpecModel) if "access_key" in model.model_fields]
    assert {model.__name__ for model in models} >= {"AwsService", "ObjectStore", "SqsQueue", "SqsSource"}
    for model in models:
        named = {field.alias for field in model.model_fields.values()}
        written = {name: value for name, value in required.items() if name in named} | given
        if problem:
            with pytest.raises(ValidationError, match=problem):
                model.model_validate(written)
        else:
            model.model_validate(written)


def _models(base: type[SpecModel]) -> Iterator[type[SpecModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _takes_any_bool(hint: object) -> bool:
    """Whether a type has `bool` that is not annotated as strict."""
    if get_origin(hint) is Annotated:
        inner = get_args(hint)[0]
        return inner is not bool and _takes_any_bool(inner)
    if {bool, int, str} <= set(get_args(hint)):
        # Each of them is taken as what it is.
        return False
    return hint is bool or any(_takes_any_bool(part) for part in get_args(hint))
