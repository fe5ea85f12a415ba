"""Conformance tests for a source or sink of a package, which its author runs.

    class TestMine(SinkConformance):
        def settings(self, place): return {"sqlite": {"path": "out.db"}}
        def arrived(self, place): ...

Each class has its tests as methods named `test_...`, so pytest finds them in your class that inherits from it, without
a plug-in. They use the connector as a vertex does, by its name in the registry, in this process and in processes that
are killed.

Above it: tests of our connectors and of those in packages. Below it: readers and writers.
"""

from millstream_testing.sinks import SinkConformance
from millstream_testing.sources import SourceConformance

__all__ = ["SinkConformance", "SourceConformance"]
