"""Graph algorithms over named nodes: components, back edges, order. Pure, iterative, deterministic.

Nodes are given in the order of the file and arcs as (from, to) pairs; every answer depends only on
those, so that all processes of a pipeline agree on it.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

Arc = tuple[str, str]


def reachable(starts: Iterable[str], arcs: Iterable[Arc]) -> set[str]:
    """The starts and everything that can be reached from them."""
    following = _following(arcs)
    seen = set(starts)
    open_ = list(seen)
    while open_:
        for node in following[open_.pop()]:
            if node not in seen:
                seen.add(node)
                open_.append(node)
    return seen


def components(nodes: Sequence[str], arcs: Sequence[Arc]) -> list[tuple[str, ...]]:
    """Strongly connected components, each in file order, in a topological order of the whole.

    Among components that could come next, the one whose first node is first in the file does.
    """
    member_of = _component_of(nodes, arcs)
    members: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        members[member_of[node]].append(node)
    groups = {group[0]: tuple(group) for group in members.values()}
    first_of = {node: first for first, group in groups.items() for node in group}
    between = [(first_of[a], first_of[b]) for a, b in arcs if first_of[a] != first_of[b]]
    return [groups[first] for first in ordered_acyclic(list(groups), between)]


def back_arcs(nodes: Sequence[str], arcs: Sequence[Arc]) -> set[Arc]:
    """The arcs whose removal leaves no cycle: those that lead to a node that a depth-first walk has
    entered and not left. The walk of a component begins where data enters it."""
    backs: set[Arc] = set()
    for group in components(nodes, arcs):
        inside = set(group)
        entered = {b for a, b in arcs if b in inside and a not in inside}
        starts = [node for node in group if node in entered] + list(group)
        inner = [(a, b) for a, b in arcs if a in inside and b in inside]
        backs |= _walk(starts, _following(inner))[1]
    return backs


def ordered(nodes: Sequence[str], arcs: Sequence[Arc]) -> list[str]:
    """Nodes in topological order without back arcs; the members of a cycle are adjacent."""
    backs = back_arcs(nodes, arcs)
    forward = [arc for arc in arcs if arc not in backs]
    result: list[str] = []
    for group in components(nodes, arcs):
        inside = set(group)
        result += ordered_acyclic(group, [(a, b) for a, b in forward if a in inside and b in inside])
    return result


def ordered_acyclic(nodes: Sequence[str], arcs: Iterable[Arc]) -> list[str]:
    """Kahn's order of an acyclic graph, earliest in the file first among equals."""
    rank = {node: index for index, node in enumerate(nodes)}
    arcs = set(arcs)
    following = _following(arcs)
    waiting = dict.fromkeys(nodes, 0)
    for _, target in arcs:
        waiting[target] += 1
    ready = [rank[node] for node in nodes if waiting[node] == 0]
    heapq.heapify(ready)
    result = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        result.append(node)
        for target in following[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, rank[target])
    return result


def _following(arcs: Iterable[Arc]) -> Mapping[str, list[str]]:
    following: dict[str, list[str]] = defaultdict(list)
    for origin, target in arcs:
        following[origin].append(target)
    return following


def _component_of(nodes: Sequence[str], arcs: Sequence[Arc]) -> dict[str, str]:
    """For each node, the representative of its component (Kosaraju)."""
    finished, _ = _walk(nodes, _following(arcs))
    preceding = _following((b, a) for a, b in arcs)
    member_of: dict[str, str] = {}
    for root in reversed(finished):
        open_ = [root] if root not in member_of else []
        while open_:
            node = open_.pop()
            if node not in member_of:
                member_of[node] = root
                open_ += [other for other in preceding[node] if other not in member_of]
    return member_of


def _walk(starts: Sequence[str], following: Mapping[str, list[str]]) -> tuple[list[str], set[Arc]]:
    """Walks depth first. Returns the nodes in the order in which they are left, and the arcs that lead to a node which
    was entered and not left."""
    left: list[str] = []
    backs: set[Arc] = set()
    entered: set[str] = set()
    for start in starts:
        if start in entered:
            continue
        entered.add(start)
        inside = {start}
        walk = [(start, iter(following[start]))]
        while walk:
            node, rest = walk[-1]
            for target in rest:
                if target in inside:
                    backs.add((node, target))
                elif target not in entered:
                    entered.add(target)
                    inside.add(target)
                    walk.append((target, iter(following[target])))
                    break
            else:
                inside.discard(node)
                left.append(node)
                walk.pop()
    return left, backs
