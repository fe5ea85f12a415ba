"""Valid pipelines, as plain values of a file, for property tests."""

from typing import Any

from hypothesis import strategies as st

names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=8)
paths = texts.filter(lambda text: "://" not in text)
"""Of local files. Hypothesis also tries texts from our code, such as that one."""
durations = st.sampled_from(["1ms", "250ms", "1s", "1h30m", 3, 0.5])
sizes = st.sampled_from(["1Mi", "512MiB", "64M", 4096])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


backoffs = some(
    interval=durations, steps=st.integers(1, 9), factor=st.floats(1, 4), cap=durations, jitter=st.floats(0, 1)
)
env = st.lists(texts, unique=True, max_size=2).map(lambda keys: [{"name": key, "value": "v"} for key in keys])
programs = st.one_of(
    st.fixed_dictionaries({"command": st.lists(texts, min_size=1)}, optional={"env": env, "workingDir": texts}),
    st.fixed_dictionaries({"python": st.sampled_from(["a.b:f", "dir/a.py:f"])}, optional={"env": env}),
    st.fixed_dictionaries({"container": st.fixed_dictionaries({"image": texts}, optional={"env": env})}),
)
builtins = st.one_of(
    st.just({"name": "cat"}),
    st.fixed_dictionaries(
        {"name": st.just("filter"), "kwargs": st.fixed_dictionaries({"field": texts, "equals": st.integers() | texts})}
    ),
).map(lambda builtin: {"builtin": builtin})
udfs = st.builds(
    lambda program, more: program | more,
    programs | builtins,
    some(
        concurrency=st.integers(1, 9),
        retryStrategy=some(backoff=backoffs, onFailure=st.sampled_from(["drop", "retry"])),
    ),
)
spans = st.sampled_from(["1s", "1m30s", "1h", 5])
windows = st.one_of(
    st.fixed_dictionaries({"length": spans}, optional={"streaming": st.booleans()}).map(lambda w: {"fixed": w}),
    st.fixed_dictionaries({"length": spans, "slide": spans}).map(lambda w: {"sliding": w}),
    st.fixed_dictionaries({"timeout": spans}, optional={"streaming": st.booleans()}).map(lambda w: {"session": w}),
    st.fixed_dictionaries(
        {"trigger": st.one_of(st.fixed_dictionaries({"count": st.integers(1, 9)}), st.just({"every": "1h"}))},
        optional={"accumulate": st.booleans()},
    ).map(lambda w: {"global": w}),
)
roomy = st.sampled_from(["1GiB", "2000M"])
storages = st.one_of(
    some(volumeSize=roomy, accessMode=st.just("ReadWriteMany")).map(lambda claim: {"persistentVolumeClaim": claim}),
    some(sizeLimit=roomy).map(lambda limit: {"emptyDir": limit}),
    st.just({"no_store": {}}),
)
values = st.one_of(
    st.just({"fields": "n INT"}),
    st.just({"format": "csv", "fields": "n INT", "delimiter": ";"}),
    st.just({"format": "avro", "avroSchema": "{}"}),
    st.just({"format": "raw"}),
)
reduce_programs = st.one_of(
    st.fixed_dictionaries({"command": st.lists(texts, min_size=1)}, optional={"env": env, "workingDir": texts}),
    st.fixed_dictionaries({"python": st.just("a.b:Sum")}, optional={"workingDir": texts}),
    st.fixed_dictionaries({"query": texts}, optional={"value": values}).map(lambda sql: {"sql": sql}),
    st.sampled_from(["unix:/a/b", "host:50051", "[::1]:80"]).map(lambda address: {"address": address}),
)


def _may_keep_input(window: dict[str, Any]) -> bool:
    return "count" not in window.get("global", {}).get("trigger", {})


reduces = st.builds(
    lambda program, window, more, strategy: {
        **program,
        "groupBy": {"window": window, "keyed": True, **(more if _may_keep_input(window) else {})},
        **strategy,
    },
    reduce_programs,
    windows,
    some(allowedLateness=durations, storage=storages, keepInput=st.just(True), onLate=st.just("drop")),
    some(retryStrategy=some(backoff=backoffs, onFailure=st.sampled_from(["drop", "retry"]))),
)
sources = st.one_of(
    some(rpu=st.integers(1, 9), duration=durations, records=st.integers(0, 9), jitter=durations).map(
        lambda generator: {"generator": generator}
    ),
    st.fixed_dictionaries({"paths": st.lists(paths, min_size=1)}, optional={"follow": st.booleans()}).map(
        lambda file: {"file": file, "eventTime": {"field": "a.b", "format": "epoch_ms"}, "keys": ["k"]}
    ),
    some(port=st.integers(0, 65535), idTtl=st.just("1h")).map(lambda http: {"http": http}),
    programs.map(lambda program: {"udsource": program, "onInvalid": "drop"}),
)
sinks = st.one_of(
    st.just({"log": {}}),
    st.just({"blackhole": {}}),
    st.fixed_dictionaries({"path": paths}, optional={"rolling": some(maxBytes=sizes, maxAge=durations)}).map(
        lambda file: {"file": file}
    ),
    programs.map(lambda program: {"udsink": program, "fallback": {"log": {}}}),
    st.just({"http": {"url": "http://h:1/x"}, "retryStrategy": {"onFailure": "fallback"}, "fallback": {"log": {}}}),
)


def chains(draw: st.DrawFn) -> dict[str, Any]:
    """Sources into a row of maps, with forward and backward edges among those, into sinks; a reduce before some."""
    ids = draw(st.lists(names, min_size=3, max_size=8, unique=True))
    count = draw(st.integers(1, len(ids) - 2))
    maps = ids[1 : 1 + count]
    partitions = st.integers(1, 4)
    vertices: list[dict[str, Any]] = [{"name": ids[0], "source": draw(sources)}]
    vertices += [{"name": name, "udf": draw(udfs), "partitions": draw(partitions)} for name in maps]
    ends = ids[1 + count :]
    vertices += [{"name": name, "sink": draw(sinks), "partitions": draw(partitions)} for name in ends]
    pairs = list(zip(ids[: 1 + count], maps, strict=False)) + [(maps[-1], end) for end in ends]
    extra = draw(st.lists(st.tuples(st.sampled_from(maps), st.sampled_from(maps)), max_size=4))
    pairs = list(dict.fromkeys(pairs + extra))
    for end in ends:
        if draw(st.booleans()):
            vertices.append({"name": f"r-{end}", "udf": draw(reduces), "partitions": draw(partitions)})
            pairs += [(maps[0], f"r-{end}"), (maps[-1], f"r-{end}"), (f"r-{end}", end)]
    pairs = list(dict.fromkeys(pairs))
    edges = [
        {
            "from": a,
            "to": b,
            "name": f"e-{index}",
            "onFull": draw(st.sampled_from(["retryUntilSuccess", "discardLatest"])),
        }
        for index, (a, b) in enumerate(pairs)
    ]
    spec = {
        "vertices": draw(st.permutations(vertices)),
        "edges": edges,
        "limits": draw(some(bufferMaxBytes=sizes, readTimeout=durations)),
    }
    return {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}, "spec": spec}


pipelines = st.composite(chains)()
