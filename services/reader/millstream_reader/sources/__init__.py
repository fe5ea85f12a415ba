"""Where records come from: one module per kind of source, and `open_source` for all of them."""

from millstream_reader.sources.opening import open_source

__all__ = ["open_source"]
