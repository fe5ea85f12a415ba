"""What a source or sink of a package has to keep to, as tests that its author runs.

    class TestMine(SinkConformance):
        def settings(self, place): return {"sqlite": {"path": "out.db"}}
        def arrived(self, place): ...

Each class has its tests as methods named `test_...`, so pytest finds them in a class of yours that inherits from it,
and needs no plug-in for them. They use the connector as a vertex does, by its name in the registry, in this process
and in processes that are killed.

Above it: tests of connectors, ours and those of packages. Below it: readers and writers.
"""

from millstream.testing.sinks import SinkConformance
from millstream.testing.sources import SourceConformance

__all__ = ["SinkConformance", "SourceConformance"]
