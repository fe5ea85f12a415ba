"""From what a pipeline says of its Spark to the settings of a driver."""

from __future__ import annotations

from pathlib import Path

from millstream.spec.models import Pipeline
from millstream.spec.references import resolve
from millstream_reduce.spark.settings import DRIVER_MEMORY_BYTES, SparkSettings


def settings_of(pipeline: Pipeline, base_dir: Path, directory: Path) -> SparkSettings:
    """What a pipeline says of its Spark, with what it refers to. `directory` is for temporary files."""
    spark = pipeline.spec.spark
    conf = {
        name: resolve(value, base_dir, f"`{name}` in spec.spark.conf")
        for name, value in (spark.conf if spark is not None else {}).items()
    }
    return SparkSettings(
        directory=directory,
        master=spark.master if spark is not None else None,
        remote=spark.remote if spark is not None else None,
        token=resolve(spark.token, base_dir, "`token` in spec.spark") if spark is not None and spark.token else "",
        encryption=spark is not None and spark.encryption,
        driver_memory_bytes=int(spark.driver_memory) if spark is not None else DRIVER_MEMORY_BYTES,
        conf=conf,
        name=pipeline.name,
        functions=any(
            vertex.group_by is not None and vertex.udf is not None and vertex.udf.python is not None
            for vertex in pipeline.spec.vertices
        ),
    )
