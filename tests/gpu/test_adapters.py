"""Adapters of one name: listed apart, and each can be chosen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PYTHON_PATH, require_adapter

LAVAPIPE = "lvp_icd.x86_64.json"
PROGRAM = """
import json, sys
from llmgpu.gpu.adapters import list_adapters, select_adapter
from llmgpu.errors import DeviceError
names = [info.name for info in list_adapters()]
chosen = {}
for wanted in sys.argv[1:]:
    try:
        chosen[wanted] = select_adapter(wanted).name
    except DeviceError as error:
        chosen[wanted] = str(error)
print(json.dumps([names, chosen]))
"""


@pytest.mark.slow
def test_two_adapters_of_one_name(tmp_path: Path) -> None:
    """The driver is listed twice, so there are two adapters, each of which opens."""
    require_adapter()
    folders = [Path(folder) for folder in ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")]
    found = [path for folder in folders if (path := folder / LAVAPIPE).exists()]
    if not found:
        pytest.skip("the software driver lavapipe is not installed")
    for name in ("one.json", "two.json"):
        shutil.copy(found[0], tmp_path / name)
    drivers = os.pathsep.join(str(tmp_path / name) for name in ("one.json", "two.json"))
    environment = os.environ | {
        "VK_DRIVER_FILES": drivers,
        "VK_ICD_FILENAMES": drivers,
        "PYTHONPATH": PYTHON_PATH,
        "LLMGPU_DRIVER": "wgpu",
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    wanted = ("gpu", "gpu:0", "gpu:1", "gpu:2", "none:1", "llvm", "LLVM:1", "pipe (")
    names, chosen = json.loads(run("-c", PROGRAM, *wanted))
    first, second = names
    assert (first[-2:], second[-2:]) == (":0", ":1") and first[:-2] == second[:-2]
    assert [chosen[name] for name in ("gpu", "gpu:0", "llvm", "pipe (")] == [first] * 4
    assert chosen["gpu:1"] == chosen["LLVM:1"] == second
    assert chosen["gpu:2"].startswith("there is no adapter 'gpu:2', the last is 'gpu:1': use gpu")
    assert chosen["none:1"].startswith("no adapter's name contains 'none:1': use gpu")
    for name in ("gpu:2", "none:1"):
        assert ": use gpu for the best one" in chosen[name]
        assert ", with :0, :1 and so on to choose among several: " in chosen[name]
        assert chosen[name].endswith(f": {first!r}, {second!r}")
    (tmp_path / "text").write_text("ab ab ab abc")
    options = ("--vocab-size", "258", "-o", str(tmp_path / "v.bin"), "--json", "-q")
    made = run("-m", "llmgpu", "bpe-train", str(tmp_path / "text"), "--device", second, *options)
    assert json.loads(made)["device"].startswith(second)
