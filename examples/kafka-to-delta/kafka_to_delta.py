"""Orders from Kafka, summed by minute on Spark, into a Delta table, which is checked with deltalake's reader.

    python examples/kafka-to-delta/kafka_to_delta.py [--orders N]

Starts Kafka (`make servers` fetches it), writes N orders into a topic, runs `pipeline.yaml` to its end, and compares
each row with what it has to be. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from deltalake import DeltaTable

from tests.support import kafka_server

HERE = Path(__file__).resolve().parent
BEGIN = datetime(2024, 5, 1, 23, 45, tzinfo=UTC)
MINUTES = 30
SHOPS = 5
PARTITIONS = 4


def order_of(number: int, orders: int) -> tuple[str, datetime, int]:
    """Its shop, its time and what it costs; the times are in half an hour around midnight."""
    return f"shop {number % SHOPS}", BEGIN + timedelta(minutes=MINUTES) * number / orders, 100 + number % 7


def produce(kafka: kafka_server.KafkaServer, orders: int) -> None:
    kafka.create("orders", PARTITIONS)
    producer = kafka.producer()
    for number in range(orders):
        shop, time, cents = order_of(number, orders)
        producer.produce(
            "orders",
            json.dumps({"id": number, "cents": cents}),
            key=shop,
            partition=number % PARTITIONS,
            timestamp=int(time.timestamp() * 1000),
        )
    assert producer.flush(60) == 0, "Kafka did not take all orders"


def expected(orders: int) -> dict[tuple[str, datetime], tuple[int, int]]:
    counts, cents = Counter[tuple[str, datetime]](), Counter[tuple[str, datetime]]()
    for number in range(orders):
        shop, time, price = order_of(number, orders)
        counts[shop, time.replace(second=0, microsecond=0)] += 1
        cents[shop, time.replace(second=0, microsecond=0)] += price
    return {group: (count, cents[group]) for group, count in counts.items()}


def main(orders: int) -> int:
    if why := kafka_server.why_missing():
        sys.exit(why)
    with (
        tempfile.TemporaryDirectory() as directory,
        kafka_server.open_kafka(Path(directory) / "kafka") as kafka,
    ):
        produce(kafka, orders)
        text = (HERE / "pipeline.yaml").read_text().replace("127.0.0.1:9092", kafka.brokers)
        (Path(directory) / "pipeline.yaml").write_text(text)
        command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "--data-dir", "data"]
        ended = subprocess.run(command, cwd=directory, check=False)
        if ended.returncode != 0:
            return ended.returncode
        table = DeltaTable(str(Path(directory) / "sales"))
        rows = table.to_pyarrow_table().to_pylist()
        days = sorted({row["dt"] for row in rows})
        commits = table.version()
    wanted = expected(orders)
    found = {(row["shop"], row["minute"]): (row["orders"], row["cents"]) for row in rows}
    wrong = [group for group in wanted.keys() | found.keys() if wanted.get(group) != found.get(group)]
    print(f"sales: {len(rows)} of {len(wanted)} rows, {len(wrong)} of them wrong; {commits} commits, days {days}")
    for group in wrong[:5]:
        print(f"  {group}: {found.get(group)} instead of {wanted.get(group)}")
    return int(bool(wrong) or len(rows) != len(wanted))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=20_000)
    sys.exit(main(parser.parse_args().orders))
