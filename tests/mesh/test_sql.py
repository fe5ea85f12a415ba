"""The pipeline of the page about databases, as a user runs it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "connectors" / "sql.md"


@pytest.mark.guarantee("I1")
def test_the_pipeline_of_the_page_runs_from_a_table_into_another(tmp_path: Path) -> None:
    text = PAGE.read_text().partition('title="orders.yaml"\n')[2].partition("```")[0]
    (tmp_path / "orders.yaml").write_text(text)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, price INT)")
        shop.executemany("INSERT INTO orders (city, price) VALUES (?, ?)", [(f"c{n % 7}", n) for n in range(5000)])
    millstream = str(Path(sys.executable).with_name("millstream"))
    command = [millstream, "run", "orders.yaml", "--data-dir", str(tmp_path / "d")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "account: BALANCED" in done.stdout + done.stderr
    with closing(sqlite3.connect(tmp_path / "report.db")) as report:
        assert report.execute("SELECT city, price FROM cities ORDER BY city").fetchall() == [
            (f"c{n}", max(price for price in range(5000) if price % 7 == n)) for n in range(7)
        ]
        (last,) = report.execute("SELECT count(*) FROM millstream_positions").fetchall()
        assert last == (1,)
