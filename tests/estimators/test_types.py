"""What pyright says of a user's script, and of five mistakes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("user_script.py")
MISTAKES = {
    "from dphead import Nonsense": "unknown import symbol",
    "DPAutoClassifier(epsilom=1.0)": 'No parameter named "epsilom"',
    "DPAutoClassifier(relation='nothing')": "cannot be assigned to parameter",
    "head.fit(X, y, weights=[1])": 'No parameter named "weights"',
    "head.coefs_": 'attribute "coefs_"',
}


def test_a_users_script_has_no_errors_and_each_mistake_is_one(tmp_path):
    pytest.importorskip("pyright", reason="needs pyright: pip install .[dev]")
    wrong = tmp_path / "wrong.py"
    lines = [*SCRIPT.read_text().splitlines(), *MISTAKES]
    wrong.write_text("\n".join(lines))
    command = [sys.executable, "-m", "pyright", "--outputjson", SCRIPT, wrong]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True
    )
    if not done.stdout:
        pytest.skip(f"pyright cannot start, and may need the network: {done.stderr}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(one["file"]).name for one in found} == {"wrong.py"}, found
    said = {lines[one["range"]["start"]["line"]]: one["message"] for one in found}
    assert list(said) == list(MISTAKES)
    for line, words in MISTAKES.items():
        assert words in said[line]
