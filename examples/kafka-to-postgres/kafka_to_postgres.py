"""Orders from Kafka into PostgreSQL, with servers of its own; the table is checked with PostgreSQL's client.

    python examples/kafka-to-postgres/kafka_to_postgres.py [--orders N]

Starts Kafka and PostgreSQL (`make servers` fetches them), writes the states of N orders into a topic, runs
`pipeline.yaml` to its end, and compares each row with what it has to be. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import kafka_server, postgres_server

HERE = Path(__file__).resolve().parent
STATES = ("placed", "paid", "shipped")
PARTITIONS = 4


def items_of(order: int) -> list[dict[str, int]]:
    return [{"count": 1 + order % 3, "cents": 199 + order}, {"count": 2, "cents": 5}]


def expected(order: int) -> tuple[int, str, str, Decimal]:
    cents = sum(item["count"] * item["cents"] for item in items_of(order))
    return order, f"customer {order % 100}", STATES[order % 3], Decimal(cents) / 100


def produce(kafka: kafka_server.KafkaServer, orders: int) -> None:
    """The states of each order one after another, those of the third of all orders up to each of them."""
    kafka.create("orders", PARTITIONS)
    producer = kafka.producer()
    for number, state in enumerate(STATES):
        for order in range(orders):
            if order % 3 >= number:
                value = {
                    "id": order,
                    "customer": f"customer {order % 100}",
                    "state": state,
                    "items": items_of(order),
                }
                producer.produce("orders", json.dumps(value), key=str(order), partition=order % PARTITIONS)
    assert producer.flush(60) == 0, "Kafka did not take all orders"


async def main(orders: int) -> int:
    for why in (kafka_server.why_missing(), postgres_server.why_missing()):
        if why:
            sys.exit(why)
    with (
        tempfile.TemporaryDirectory() as directory,
        kafka_server.open_kafka(Path(directory) / "kafka") as kafka,
        postgres_server.open_postgres() as postgres,
    ):
        produce(kafka, orders)
        await postgres_server.Database(postgres, "postgres").execute("CREATE DATABASE shop")
        text = (HERE / "pipeline.yaml").read_text()
        text = text.replace("127.0.0.1:9092", kafka.brokers).replace("port: 5432", f"port: {postgres.port}")
        (Path(directory) / "pipeline.yaml").write_text(text)
        (Path(directory) / "order.py").write_text((HERE / "order.py").read_text())
        command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "--data-dir", "data"]
        ended = await asyncio.to_thread(subprocess.run, command, cwd=directory)
        if ended.returncode != 0:
            return ended.returncode
        shop = postgres_server.Database(postgres, "shop")
        found = await shop.rows("SELECT id, customer, state, total FROM orders ORDER BY id")
    wrong = [(row, wanted) for row, wanted in zip(found, map(expected, range(orders)), strict=False) if row != wanted]
    print(f"orders: {len(found)} of {orders} rows, {len(wrong)} of them wrong")
    for row, wanted in wrong[:5]:
        print(f"  {row} instead of {wanted}")
    return int(bool(wrong) or len(found) != orders)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=20_000)
    sys.exit(asyncio.run(main(parser.parse_args().orders)))
