"""Each example runs offline, is short, and prints what it says."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# what each prints; accuracies have room for the noise
PRINTS = {
    "budget": r"spent 1\.[45]\d\d of 2\n.*budget",
    "class_accuracy": r"balanced=True:\n(  \d: [01]\.\d\d \(.*\)\n){10}",
    "components": r"epsilon of both fits: 5\.\d\d",
    "embeddings_to_onnx": r"'model\.onnx'\]\n(.*\n)+.*InferenceSession",
    "error_bars": r"(class \d: score 0\.\d\d ± 0\.\d\d\n){5}",
    "first_head": r"0\.[89]\d* 0\.[89]\d*\n(1\.0|0\.99\d*) one row",
    "images_to_head": r"accuracy 0\.[89]\d+\nledger .*\.sqlite",
    "jax_arrays": r"accuracy 0\.[789]\d at epsilon 2\.000",
    "opacus_tutorial": r"accuracy 0\.[6789]\d at epsilon 8\.000\n",
    "own_accountant": r"own  0\.63\d+\npld     0\.64\d+\nrdp     0\.71.*\n.*\n.* 1\.43",
    "patients": r"at most 1 count: .*0\.[789].*\n.* at most 3 count: .*0\.[789]",
    "poisson_batches": r"accuracy 0\.[89].* 1800 nominal rows\npld 2\.\d+\nrdp 3\.\d+",
    # at epsilon 1, nine runs gave 0.18 to 0.42
    "regression": r"epsilon 1\.0: R² -?0\.\d\d\nepsilon 8\.0: R² 0\.[45]\d\n",
    "save_and_check": r"differentially private(.*\n)+- .*\nTrue",
    "several_labels": r"all three right: 0\.[789]\d+\n(\d \{'even'.*\n){5}",
}


def test_there_are_fifteen_examples_of_at_most_forty_lines():
    found = {path.stem: path.read_text() for path in ROOT.glob("examples/*.py")}
    assert set(found) == set(PRINTS)
    assert all(len(text.splitlines()) <= 40 for text in found.values())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PRINTS)
def test_an_example_runs_and_prints_its_results(name, tmp_path, monkeypatch, capsys):
    if name in ("images_to_head", "opacus_tutorial"):
        pytest.importorskip("timm", reason="needs PyTorch: pip install .[extract]")
    if name == "embeddings_to_onnx":
        for package in ("onnx", "onnxruntime", "onnxscript", "torch"):
            pytest.importorskip(package, reason="needs ONNX: pip install .[onnx]")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    printed = capsys.readouterr().out
    assert re.search(PRINTS[name], printed), printed


@pytest.mark.parametrize(
    "page, name",
    [("README.md", "first_head"), ("docs/opacus.md", "opacus_tutorial")],
)
def test_a_page_shows_its_example(page, name):
    code = (ROOT / f"examples/{name}.py").read_text().partition('"""\n\n')[2]
    text = (ROOT / page).read_text().replace("```py\n", "```python\n")
    assert f"```python\n{code}```" in text
