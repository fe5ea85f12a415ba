"""Changes of a table of PostgreSQL into Kafka, with servers of its own; the topic is checked with Kafka's client.

    python examples/cdc-to-kafka/cdc_to_kafka.py [--customers N]

Starts Kafka and PostgreSQL (`make servers` fetches them), runs `pipeline.yaml`, and changes the table while it runs:
customers are added, change and go. When the topic has the last change, the pipeline is drained, and what its records
add up to is compared with the table. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import kafka_server, postgres_server

HERE = Path(__file__).resolve().parent
LIMIT_S = 120.0
LAST = "the last one"
FILL = """
INSERT INTO customers (name, email)
SELECT 'customer ' || n, 'c' || n || '@example' || n % 7 || '.org' FROM generate_series(1, {}) n
"""


async def change(shop: postgres_server.Database, customers: int) -> None:
    """What happens to a table in a day."""
    await shop.execute(
        FILL.format(customers // 2),
        "UPDATE customers SET name = name || ' (moved)' WHERE id % 3 = 0",
        "DELETE FROM customers WHERE id % 10 = 0",
        "BEGIN; UPDATE customers SET name = 'rolled back'; ROLLBACK",
        f"INSERT INTO customers (name, email) VALUES ('{LAST}', 'last@example.org')",
    )


async def arrived(kafka: kafka_server.KafkaServer, running: asyncio.subprocess.Process, name: str) -> bool:
    """Whether the topic has a customer whose name begins like that, in time."""
    deadline_s = time.monotonic() + LIMIT_S
    while running.returncode is None and time.monotonic() < deadline_s:
        values = await asyncio.to_thread(kafka.values, "customers")
        if any(json.loads(value).get("name", "").startswith(name) for value in reversed(values)):
            return True
        await asyncio.sleep(0.2)
    print(f"no customer {name!r} arrived")
    return False


def folded(changes: list[dict[str, Any]]) -> tuple[dict[int, tuple[str, str]], list[str]]:
    """What changes add up to, and what is wrong with them."""
    rows: dict[int, tuple[str, str]] = {}
    faults = [] if len({tuple(item["at"]) for item in changes if item["op"] != "r"}) == sum(
        item["op"] != "r" for item in changes
    ) else ["a change came twice"]  # fmt: skip
    for item in changes:
        if (item["op"] in "cr") == (item["id"] in rows):
            faults.append(f"{item} does not follow what came before")
        if item["op"] == "d":
            rows.pop(item["id"], None)
        else:
            rows[item["id"]] = (item["name"], item["domain"])
    return rows, faults


async def main(customers: int) -> int:
    for why in (kafka_server.why_missing(), postgres_server.why_missing()):
        if why:
            sys.exit(why)
    with (
        tempfile.TemporaryDirectory() as directory,
        kafka_server.open_kafka(Path(directory) / "kafka") as kafka,
        postgres_server.open_postgres(wal_level="logical", max_slot_wal_keep_size="1GB") as postgres,
    ):
        kafka.create("customers")
        await postgres_server.Database(postgres, "postgres").execute("CREATE DATABASE shop")
        shop = postgres_server.Database(postgres, "shop")
        await shop.execute(
            "CREATE TABLE customers (id bigserial PRIMARY KEY, name text, email text)", FILL.format(customers)
        )
        text = (HERE / "pipeline.yaml").read_text()
        text = text.replace("127.0.0.1:9092", kafka.brokers).replace("port: 5432", f"port: {postgres.port}")
        (Path(directory) / "pipeline.yaml").write_text(text)
        (Path(directory) / "customer.py").write_text((HERE / "customer.py").read_text())
        command = [sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "--data-dir", "data"]
        running = await asyncio.create_subprocess_exec(*command, cwd=directory)
        # The first rows of the snapshot are there, and the rest is read while the table changes.
        if await arrived(kafka, running, ""):
            await change(shop, customers)
            await arrived(kafka, running, LAST)
        if running.returncode is None:
            running.send_signal(signal.SIGINT)
        code = await running.wait()
        changes = [json.loads(value) for value in kafka.values("customers")]
        wanted = {
            number: (name, email.partition("@")[2])
            for number, name, email in await shop.rows("SELECT id, name, email FROM customers")
        }
    rows, faults = folded(changes)
    print(
        f"customers: {len(changes)} changes in the topic; they make {len(rows)} rows, and the table has {len(wanted)}"
    )
    for fault in faults[:5]:
        print(f"  {fault}")
    return code or int(rows != wanted or bool(faults))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--customers", type=int, default=10_000)
    sys.exit(asyncio.run(main(parser.parse_args().customers)))
