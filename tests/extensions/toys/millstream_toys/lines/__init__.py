"""A UDF protocol: lines of JSON over a unix socket."""
