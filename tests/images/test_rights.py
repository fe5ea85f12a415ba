"""What a container of ours may do: nothing but run."""

from __future__ import annotations

import json

import pytest

from tests.images.conftest import Images, podman

WHAT_IT_MAY = """\
import json, os
written = []
for path in ("/opt/millstream/x", "/tmp/x", "/x"):
    try:
        open(path, "w")
        written.append(path)
    except OSError:
        pass
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
rights = [int(status["CapEff"], 16), int(status["NoNewPrivs"])]
print(json.dumps([os.getuid(), os.getgid(), os.getgroups(), written, *rights]))
"""

pytestmark = pytest.mark.timeout(7200)


@pytest.mark.parametrize("service", ["broker", "vertex", "udf-python"])
def test_it_runs_without_rights_and_writes_nowhere(images: Images, service: str) -> None:
    said = podman(
        "run",
        "--rm",
        "--pull=never",
        "--network",
        "none",
        "--read-only",
        "--read-only-tmpfs=false",
        "--cap-drop",
        "all",
        "--security-opt",
        "no-new-privileges",
        "--ulimit",
        "nofile=1024:4096",
        "--ulimit",
        "nproc=1000:2000",
        "--entrypoint",
        "python",
        images[service],
        "-c",
        WHAT_IT_MAY,
    )
    assert json.loads(said) == [10001, 10001, [10001], [], 0, 1]


def test_it_says_which_base_it_was_built_on(images: Images) -> None:
    labels = json.loads(podman("image", "inspect", "--format", "{{json .Labels}}", images["vertex"]))
    assert labels["org.opencontainers.image.base.name"] == images.base
    assert "@sha256:" in images.base
