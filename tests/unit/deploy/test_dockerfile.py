"""The Dockerfile, as far as it can be checked without a container engine: read, and its build steps done by hand."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
SERVICES = ("vertex", "vertex-reduce", "spark-driver", "broker", "runner", "runner-reduce", "udf-python")
USER = "10001:10001"


@dataclass(slots=True)
class Stage:
    name: str
    parent: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        return [value for name, value in self.instructions if name == instruction]


@dataclass(slots=True)
class Dockerfile:
    arguments: dict[str, str]
    stages: dict[str, Stage]

    def ancestors(self, stage: Stage) -> list[Stage]:
        line = [stage]
        while line[-1].parent in self.stages:
            line.append(self.stages[line[-1].parent])
        return line


def parse(text: str) -> Dockerfile:
    parsed = Dockerfile({}, {})
    stage: Stage | None = None
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        value = " ".join(rest.split())
        if instruction == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", value)
            assert match, line
            assert match[2] not in parsed.stages, line
            stage = parsed.stages[match[2]] = Stage(name=match[2], parent=match[1])
        elif stage is None:
            assert instruction == "ARG", line
            name, _, default = value.partition("=")
            parsed.arguments[name] = default
        else:
            assert instruction in {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "LABEL", "RUN", "USER", "WORKDIR"}, line
            stage.instructions.append((instruction, value))
    return parsed


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return parse(DOCKERFILE.read_text())


def in_context(path: str) -> bool:
    """Whether `.dockerignore` leaves a path of the repository in the build context; the last pattern that fits wins."""
    kept = True
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            parts = path.split("/")
            if pattern.startswith("**/"):
                fits = any(fnmatch(part, pattern.removeprefix("**/")) for part in parts)
            else:
                fits = any(fnmatch("/".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1))
            if fits:
                kept = line.startswith("!")
    return kept


def copies(stage: Stage) -> list[tuple[list[str], str]]:
    """What a stage takes from the build context: sources and target."""
    found = []
    for value in stage.values("COPY"):
        *sources, target = value.split()
        if not value.startswith("--"):
            found.append((sources, target))
    return found


def test_every_service_is_a_stage_and_the_last_one_is_chosen(dockerfile: Dockerfile) -> None:
    assert set(SERVICES) <= set(dockerfile.stages)
    assert dockerfile.arguments["SERVICE"] in SERVICES
    assert list(dockerfile.stages.values())[-1].parent == "${SERVICE}"
    table = re.findall(r"^\| `([a-z-]+)` \|", (REPOSITORY / "deploy/README.md").read_text(), flags=re.MULTILINE)
    assert tuple(table) == SERVICES


def test_the_base_is_pinned_by_tag(dockerfile: Dockerfile) -> None:
    bases = {stage.parent for stage in dockerfile.stages.values()} - set(dockerfile.stages) - {"${SERVICE}"}
    assert bases == {"${PYTHON_IMAGE}", "${WHEELS_IMAGE}"}
    assert dockerfile.arguments["WHEELS_IMAGE"] == "${PYTHON_IMAGE}"
    assert dockerfile.stages["wheels"].parent == "${WHEELS_IMAGE}"
    assert re.fullmatch(r"python:3\.\d+[\w.-]*-slim-\w+", dockerfile.arguments["PYTHON_IMAGE"])
    label = "org.opencontainers.image.base.name=${PYTHON_IMAGE}"
    assert dockerfile.stages["base"].values("LABEL") == [label], "each image says what it was built on"
    assert dockerfile.stages["base"].instructions[0] == ("ARG", "PYTHON_IMAGE"), "else the label is empty"
    minimum = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["requires-python"]
    assert dockerfile.arguments["PYTHON_IMAGE"].startswith(f"python:{minimum.removeprefix('>=')}-")


def test_every_stage_and_argument_is_used(dockerfile: Dockerfile) -> None:
    text = DOCKERFILE.read_text()
    for argument in dockerfile.arguments:
        assert text.count(f"FROM ${{{argument}}}") == 1, argument
    used = {stage.parent for stage in dockerfile.stages.values()} | {"image", *SERVICES}
    used |= set(re.findall(r"COPY --from=(\S+)", text))
    assert set(dockerfile.stages) == used & set(dockerfile.stages)


def test_what_is_copied_exists(dockerfile: Dockerfile) -> None:
    earlier: set[str] = set()
    for stage in dockerfile.stages.values():
        for sources, _ in copies(stage):
            for source in sources:
                assert (REPOSITORY / source).exists(), source
                assert in_context(source), source
        for value in stage.values("COPY"):
            if value.startswith("--from="):
                giver, source, _ = value.removeprefix("--from=").split()
                assert giver in earlier, value
                assert source in " ".join(dockerfile.stages[giver].values("RUN")), value
        earlier.add(stage.name)


def test_the_build_context_holds_nothing_else() -> None:
    for path in ("tests/unit/deploy/test_dockerfile.py", ".git", ".venv", "millstream/spec/__pycache__/values.pyc"):
        assert not in_context(path), path


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_runs_without_rights(dockerfile: Dockerfile, service: str) -> None:
    stage = dockerfile.stages[service]
    names = [name for name, _ in stage.instructions]
    assert stage.values("USER") == [USER]
    assert set(names[names.index("USER") :]) == {"USER", "ENTRYPOINT", "CMD"}
    (creates,) = dockerfile.stages["base"].values("RUN")
    assert "--gid 10001 " in creates
    assert "--uid 10001 " in creates


@pytest.mark.process
@pytest.mark.parametrize("service", SERVICES)
def test_an_image_starts_a_program_that_exists(dockerfile: Dockerfile, service: str, tmp_path: Path) -> None:
    (entry,) = dockerfile.stages[service].values("ENTRYPOINT")
    (arguments,) = dockerfile.stages[service].values("CMD")
    words = [*re.findall(r'"([^"]*)"', entry), *re.findall(r'"([^"]*)"', arguments)]
    if words[0] == "python":
        command = [sys.executable, *words[1:]]
    elif words[0] == "nats-server":
        configuration = tmp_path / "nats-server.conf"
        configuration.write_text((REPOSITORY / "deploy" / "nats" / "nats-server.conf").read_text())
        # The operator who runs the image mounts the users.
        (tmp_path / "users").mkdir()
        (tmp_path / "users" / "accounts.conf").touch()
        assert words[1:] == ["--config", "/etc/nats/nats-server.conf"]
        command = [str(Path(sys.executable).parent / words[0]), "-t", "--config", str(configuration)]
    else:
        assert words[0] in {script.name for script in importlib.metadata.distribution("millstream").entry_points}
        command = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert ("is valid" if service == "broker" else "usage") in (run.stdout + run.stderr).lower()


def test_packages_come_from_the_locks_with_their_hashes(dockerfile: Dockerfile) -> None:
    for stage in dockerfile.stages.values():
        for run in stage.values("RUN"):
            for step in run.split(" && "):
                if "pip install" in step:
                    assert "--require-hashes" in step or "--no-index" in step, step
                assert "://" not in step, step
                assert "curl" not in step, step
                assert "apt-get" not in step, step


@pytest.fixture(scope="module")
def wheels(dockerfile: Dockerfile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step that builds the wheels, done with only the files that the image's build would see."""
    context = tmp_path_factory.mktemp("context")
    for sources, target in copies(dockerfile.stages["wheels"]):
        for source in sources:
            destination = context / target.removeprefix("/")
            if (REPOSITORY / source).is_dir():
                shutil.copytree(
                    REPOSITORY / source, destination, ignore=shutil.ignore_patterns("__pycache__", ".*_cache")
                )
            else:
                destination = destination / source if target.endswith("/") else destination
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / source, destination)
    build = dockerfile.stages["wheels"].values("RUN")[-1].replace(" /build/", f" {context}/build/")
    assert build.startswith("/build/venv/bin/pip wheel ")
    command = [sys.executable, "-m", *build.removeprefix("/build/venv/bin/").split(), "--no-index", "--quiet"]
    subprocess.run(command, check=True, timeout=100)
    return context / "build" / "wheels"


@pytest.mark.process
def test_the_wheels_hold_every_package(wheels: Path) -> None:
    held = {}
    for path in wheels.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
        held[path.name.partition("-")[0]] = {name.partition("/")[0] for name in names if ".dist-info" not in name}
        assert any(name.endswith("/LICENSE") for name in names)
        assert any(name.endswith("py.typed") for name in names)
    folders = (*REPOSITORY.glob("services/*/millstream_*"), *REPOSITORY.glob("connectors/millstream_*"))
    others = {path.name for path in folders} - {"millstream_udf"}
    assert held == {"millstream": {"millstream", *others}, "millstream_udf": {"millstream_udf"}}


@pytest.mark.process
def test_the_sdk_runs_from_its_wheel_alone(wheels: Path, tmp_path: Path) -> None:
    (wheel,) = wheels.glob("millstream_udf-*.whl")
    (tmp_path / "shout.py").write_text("def process(value):\n    return value.upper()\n")
    program = (
        f"import sys; sys.path.insert(0, {str(wheel)!r})\n"
        "sys.modules['millstream'] = None  # any import of the mesh fails\n"
        "import millstream_udf\n"
        "from millstream_udf.loading import load\n"
        "print(millstream_udf.__file__, load('shout.py:process'))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(wheel))
