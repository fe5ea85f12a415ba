"""The users of a broker: an account for each pipeline, with a user for each vertex that has the permissions it needs.

Above it: `millstream broker config`. Below it: the plan, and the names of streams, buckets and subjects. Pure.

A vertex writes its own ledger and its own OT store. It reads the ledgers of its upstream vertices, and the OT stores of
its neighbours and of vertices that read the same frames. It receives answers in a separate inbox. It cannot create or
change streams, because a stream can be configured to copy any other stream of its account. So the user of the pipeline,
who may do everything in the account, creates the ledgers beforehand (`millstream broker prepare`). Read-only commands
have a user who may read every ledger and OT store, but cannot commit, trim or remove anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from millstream.buffers.jetstream.ot_store import bucket_name
from millstream.buffers.jetstream.server_config import SETTINGS_SUBJECT, SYSTEM_ACCOUNT
from millstream.ledger.subjects import stream_name
from millstream.nats.access import INBOX
from millstream.plan.plan import Plan
from millstream.record import WINDOW_INPUT, changelog_of, inbox_of
from millstream.spec.models import Edge

VIEWER = "_view"
"""The user of read-only commands."""
_READ = ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")
"""Requests about one stream that change nothing."""


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """A user of one pipeline's account."""

    name: str
    """`<pipeline>.<vertex>`, `<pipeline>._view` for the read-only user, or `<pipeline>` for the user who may do
    everything in the account."""
    inbox: str
    """Prefix of the subjects for answers."""
    publish: tuple[str, ...] | None = None
    """Subjects to which the user may publish, including those of requests; None for all."""
    subscribe: tuple[str, ...] | None = None
    """Subjects to which the user may subscribe; None for all."""

    @property
    def file_name(self) -> str:
        """Base name of the user's access file and password file, in the directory of the pipeline."""
        return self.name.partition(".")[2] or "_pipeline"


def users_of(plan: Plan) -> list[BrokerUser]:
    """The users of a pipeline: one who prepares it, one who reads it, and one for each vertex. The vertices of a chain
    share the user of the first."""
    pipeline = plan.pipeline.name
    return [
        BrokerUser(pipeline, f"{INBOX}.{pipeline}"),
        _viewer(plan),
        *(_vertex_user(plan, vertex.name) for vertex in plan.vertices),
    ]


def accounts_text(pipelines: Mapping[str, Iterable[BrokerUser]], passwords: Mapping[str, str]) -> str:
    """The part of a server's configuration with its accounts.

    `passwords`: for each user, the name of the environment variable with the password.
    """
    exported = ", ".join(pipelines)
    lines = [
        "# Made by `millstream broker config`: change the pipelines, and run it again.",
        f"system_account: {SYSTEM_ACCOUNT}",
        "accounts {",
        "  # It has no users. It provides the server's settings, in which vertices see that commits are fsynced.",
        f'  {SYSTEM_ACCOUNT} {{ exports: [{{service: "{SETTINGS_SUBJECT}", accounts: [{exported}]}}] }}',
    ]
    for pipeline, users in pipelines.items():
        lines += [
            f"  {pipeline} {{",
            "    jetstream: enabled",
            f'    imports: [{{service: {{account: {SYSTEM_ACCOUNT}, subject: "{SETTINGS_SUBJECT}"}}}}]',
            "    users: [",
            *(line for user in users for line in _user_lines(user, passwords[user.name])),
            "    ]",
            "  }",
        ]
    return "\n".join([*lines, "}", ""])


def _user_lines(user: BrokerUser, password: str) -> Iterator[str]:
    head = f"      {{user: {json.dumps(user.name)}, password: ${password}"
    if user.publish is None or user.subscribe is None:
        yield f"{head}}}"
        return
    yield f"{head}, permissions: {{"
    for what, subjects in (("publish", user.publish), ("subscribe", user.subscribe)):
        yield f"        {what}: {{allow: ["
        yield from (f"          {json.dumps(subject)}" for subject in subjects)
        yield "        ]}"
    yield "      }}"


def _viewer(plan: Plan) -> BrokerUser:
    pipeline = plan.pipeline.name
    # No vertex can have this name.
    inbox = f"{INBOX}.{pipeline}.{VIEWER}"
    publish = []
    for vertex in plan.vertices:
        stream = stream_name(pipeline, vertex.name)
        publish += [
            f"$JS.API.{what}.{name}" for name in (stream, f"KV_{bucket_name(pipeline, vertex.name)}") for what in _READ
        ]
        names = [*_names(plan, plan.edges_out[vertex.name]), *_of_states(plan, vertex.name)]
        if names:
            publish.append(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*")
        publish += [_consumer(stream, name) for name in names]
    return BrokerUser(f"{pipeline}.{VIEWER}", inbox, (*publish, SETTINGS_SUBJECT), (f"{inbox}.>",))


def _consumer(stream: str, edge: str) -> str:
    """Subject of the request that creates a consumer of one edge's frames."""
    return f"$JS.API.CONSUMER.CREATE.{stream}.*.{stream}.*.*.d.{edge}.*"


def _vertex_user(plan: Plan, vertex: str) -> BrokerUser:
    pipeline = plan.pipeline.name
    own, bucket = stream_name(pipeline, vertex), bucket_name(pipeline, vertex)
    upstream = {edge.from_: None for edge in plan.edges_in[vertex]}
    downstream = {edge.to: None for edge in plan.edges_out[vertex]}
    # A vertex in a cycle reads the marks of all vertices in it, to detect that the cycle is empty.
    around = next(group for group in plan.sccs if vertex in group)
    ledgers = dict.fromkeys([vertex, *upstream, *around])
    stores = dict.fromkeys([vertex, *upstream, *downstream, *around, *_reading_with(plan, vertex)])
    inbox = f"{INBOX}.{pipeline}.{vertex}"
    publish = [f"{own}.>", f"$KV.{bucket}.>"]
    publish += [f"$JS.API.{what}.{stream_name(pipeline, name)}" for name in ledgers for what in _READ]
    # A lane removes frames that it has stored apart for a commit that was refused.
    publish.append(f"$JS.API.STREAM.MSG.DELETE.{own}")
    publish += [f"$JS.API.{what}.KV_{bucket_name(pipeline, name)}" for name in stores for what in _READ]
    for name, inputs in _read_buffers(plan, vertex).items():
        stream = stream_name(pipeline, name)
        publish += [_consumer(stream, input_) for input_ in inputs]
        publish += [f"$JS.API.{what}.{stream}.*" for what in ("CONSUMER.MSG.NEXT", "CONSUMER.DELETE")]
        # The reader of a buffer trims it.
        publish.append(f"$JS.API.STREAM.PURGE.{stream}")
    publish.append(SETTINGS_SUBJECT)
    subscribe = [f"{inbox}.>", *(f"$KV.{bucket_name(pipeline, name)}.>" for name in stores)]
    return BrokerUser(f"{pipeline}.{vertex}", inbox, tuple(publish), tuple(subscribe))


def _names(plan: Plan, edges: Iterable[Edge]) -> Iterable[str]:
    """The names under which frames of these edges may be stored: the edges' own names, and those of the copies that
    they may share."""
    return dict.fromkeys(name for edge in edges for name in (edge.name, plan.copy_of(edge)) if name is not None)


def _reading_with(plan: Plan, vertex: str) -> Iterator[str]:
    """The vertices that read the same copies. Their progress decides which frames may be trimmed."""
    for edge in plan.edges_in[vertex]:
        for edges in plan.same_frames(edge.from_).values():
            if edge.name in edges:
                yield from (plan.edge(other).to for other in edges)


def _read_buffers(plan: Plan, vertex: str) -> dict[str, list[str]]:
    """The buffers that a vertex reads frame by frame: the first part of their names, by the vertex whose ledger holds
    them."""
    buffers: dict[str, list[str]] = {}
    for edge in plan.edges_in[vertex]:
        buffers.setdefault(edge.from_, []).extend(_names(plan, [edge]))
    if plan.keeps_input(vertex):
        # A reduce vertex that can rebuild its log reads its milestones from its own ledger.
        buffers.setdefault(vertex, []).append(WINDOW_INPUT)
    buffers.setdefault(vertex, []).extend(_of_states(plan, vertex))
    return {name: inputs for name, inputs in buffers.items() if inputs}


def _of_states(plan: Plan, vertex: str) -> Iterator[str]:
    """The buffers in which a vertex that remembers something reads its state, and edits of it, in its own ledger."""
    step = plan.vertex(vertex)
    if step.definition.remembers(step.settings):
        yield changelog_of(vertex)
        yield inbox_of(vertex)
