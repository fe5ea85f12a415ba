from dataclasses import dataclass, field


@dataclass
class Line:
    item: str
    pieces: int
    price: float = 0.0


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)


@dataclass
class Total:
    order: int
    amount: float


def process(order: Order) -> Total | None:
    if not order.lines:
        return None  # filtered
    return Total(order.id, sum(line.pieces * line.price for line in order.lines))
