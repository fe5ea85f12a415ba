"""The lanes of a pipeline: their ids, owners and inputs. Pure.

Lanes follow from the plan alone, so every process computes the same ones.
"""

from millstream.record import BufferId, LaneId
from millstream.spec.graph import Network
from millstream.spec.models import Edge


def lanes_of(network: Network, vertex: str) -> tuple[LaneId, ...]:
    """The lanes of a vertex: one per input edge and partition, or one per partition, as its kind says."""
    step = network.vertex(vertex)
    one = step.definition.lane_input
    inputs = [one] if one is not None else [edge.name for edge in network.edges_in[vertex]]
    return tuple(LaneId(vertex, name, partition) for name in inputs for partition in range(step.partitions))


def all_lanes(network: Network) -> tuple[LaneId, ...]:
    """The lanes of every vertex, in topological order of the vertices."""
    return tuple(lane for vertex in network.order for lane in lanes_of(network, vertex))


def replica_of(network: Network, lane: LaneId) -> int:
    """The number of the replica that owns a lane, from 0."""
    return lane.partition % network.vertex(lane.vertex).replicas


def owned_lanes(network: Network, vertex: str, replica: int) -> tuple[LaneId, ...]:
    """The lanes that one replica of a vertex owns. Errors: ValueError if there is no such replica."""
    replicas = network.vertex(vertex).replicas
    if not 0 <= replica < replicas:
        raise ValueError(f"vertex {vertex} has replicas 0 to {replicas - 1}, not {replica}")
    return tuple(lane for lane in lanes_of(network, vertex) if replica_of(network, lane) == replica)


def inputs_of(network: Network, lane: LaneId) -> tuple[BufferId, ...]:
    """The buffers that a lane reads: none for a source's, one per edge for a reduce's, else one."""
    inputs = [edge.name for edge in network.edges_in[lane.vertex]]
    read = [lane.input] if lane.input in inputs else inputs
    return tuple(BufferId(name, lane.partition) for name in read)


def buffers_of(network: Network, edge: Edge) -> tuple[BufferId, ...]:
    """The buffers of an edge: one per partition of the vertex that reads it, none inside a chain."""
    if edge.chain:
        return ()
    return tuple(BufferId(edge.name, p) for p in range(network.vertex(edge.to).partitions))


def upstream_lanes(network: Network, buffer: BufferId) -> tuple[LaneId, ...]:
    """The lanes that may write into a buffer: all of the vertex upstream of its edge."""
    return lanes_of(network, network.edge(buffer.edge).from_)
