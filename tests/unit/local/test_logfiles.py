"""Logs of a run: bounded, complete, and never a reason to stop."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from millstream.buffers.jetstream.technology import TECHNOLOGY as JETSTREAM
from millstream.buffers.redis.technology import TECHNOLOGY as REDIS
from millstream.ledger.protocol import DurabilityLevel
from millstream.telemetry.logging import NOTICE
from millstream_runner.local.logfiles import (
    LogFile,
    format_entry,
    level_of,
    older,
    parse_line,
    short_entry,
)


def test_rotation_keeps_one_older_file_and_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "map-0.jsonl"
    with LogFile(path, bytes_max=1000) as log:
        for number in range(500):
            log.write(f"line {number:05}".encode())
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, older(path).name]
    assert path.stat().st_size <= 1000
    assert older(path).stat().st_size <= 1000
    lines = (older(path).read_text() + path.read_text()).splitlines()
    assert lines == [f"line {number:05}" for number in range(500 - len(lines), 500)]
    assert len(lines) > 90


def test_a_second_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "map-0.jsonl"
    for text in (b"one", b"two"):
        with LogFile(path) as log:
            log.write(text)
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_log_that_cannot_be_written_counts_what_it_lost(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with LogFile(blocked / "map-0.jsonl") as log:
        log.write(b"lost")
        assert log.lines_lost == 1


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "full"
    os.symlink("/dev/full", path)
    with LogFile(path) as log:
        log.write(b"lost")
        assert log.lines_lost == 1


def test_a_line_that_is_no_log_line_becomes_a_message() -> None:
    assert parse_line(b"Segmentation fault", "map-0") == {"message": "Segmentation fault", "process": "map-0"}
    assert parse_line(b"17", "map-0")["message"] == "17"
    foreign = b'{"level": "ERROR", "msg": "a form of its own"}'
    assert parse_line(foreign, "map-0") == {"message": foreign.decode(), "process": "map-0"}


def test_lines_of_redis_become_log_lines(tmp_path: Path) -> None:
    server = REDIS.server(tmp_path, durability=DurabilityLevel.FSYNC, port=None, buffers=0)
    line = b"5304:M 21 Nov 2026 11:58:46.015 # Error writing to the AOF file: No space left on device"
    entry = parse_line(server.log_entry(line) or b"", "broker")
    assert (level_of(entry), entry["message"]) == (
        "WARNING",
        "Error writing to the AOF file: No space left on device",
    )
    assert server.log_entry(b"           _.-``    `.  `_.  ''-._           Valkey 9.1.2") is None


def test_lines_of_the_broker_become_log_lines(tmp_path: Path) -> None:
    server = JETSTREAM.server(tmp_path, durability=DurabilityLevel.FSYNC, port=None, buffers=0)
    line = b"[5304] 2026/11/21 11:58:46.015732 [ERR] Filestore: no space left on device"
    entry = parse_line(server.log_entry(line) or b"", "broker")
    moment = datetime(2026, 11, 21, 11, 58, 46, 15732).astimezone(UTC)
    assert (level_of(entry), entry["message"]) == ("ERROR", "Filestore: no space left on device")
    assert datetime.fromisoformat(entry["time"]) == moment
    assert server.log_entry(b"goroutine 1 [running]:") == b"goroutine 1 [running]:"


def test_entries_for_people() -> None:
    line = {"time": "2026-01-05T09:00:00.000001+00:00", "level": "warning", "message": "slow", "lane": "in-map.0"}
    entry = parse_line(json.dumps({**line, "vertex": "map", "exception": "Traceback"}).encode(), "map-0")
    assert level_of(entry) == "WARNING"
    assert short_entry(entry) == "warning: map-0: slow"
    failed = {**entry, "level": "error", "code": "MS-5002"}
    whole = "\n    (the whole traceback: `millstream logs map`)"
    assert short_entry(failed) == f"error[MS-5002]: map-0: slow{whole}"
    assert short_entry({**failed, "exception": ""}) == "error[MS-5002]: map-0: slow"
    assert short_entry({**entry, "level": "info", NOTICE: True}) == "map-0: slow"
    text = format_entry(entry)
    assert text.startswith("2026-01-05T09:00:00.000001+00:00 WARNING map-0")
    assert text.endswith("slow  [lane=in-map.0]\n    Traceback")


def test_the_banner_of_the_broker_is_no_log(tmp_path: Path) -> None:
    server = JETSTREAM.server(tmp_path, durability=DurabilityLevel.FSYNC, port=None, buffers=0)
    begin = b"[7] 2026/01/31 12:00:00.000001 [INF] "
    banner = (
        b"    _ ___ _____",
        b"_ | | __|_   _/ __|_",
        rb" \__/|___| |_| |_|_\___/_/ \_\_|",
        b"",
        b"---- JETSTREAM ----",
        b"----",
    )
    assert all(server.log_entry(begin + line) is None for line in (*banner, b"         https://docs.nats.io/jetstream"))
    assert all(server.log_entry(begin + line) for line in (b"Server is ready", b"  Max Storage: 55 GB", b"- x"))
    assert server.log_entry(b"----") == b"----"
