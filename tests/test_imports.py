"""What an import must not load: `import dphead` and `dphead --help` stay light."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "jax", "jaxlib", "sklearn", "scipy"}


def loaded_after(code: str) -> set[str]:
    """Top-level modules in sys.modules after `code` ran in a fresh interpreter."""
    script = (
        f"{code}\nimport json, sys\nprint(json.dumps(sorted({{m.split('.')[0] for m in "
        "sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code, forbidden",
    [
        ("import dphead; dir(dphead); dphead.__version__", HEAVY | {"numpy", "h5py"}),
        ("import dphead.analysis.metrics", HEAVY),
        ("import dphead.fit.ledgers", {"torch", "jax", "sklearn"}),
        ("from dphead import DPLeastSquaresClassifier", {"torch", "jax"}),
        ("import dphead_extract.features.format", HEAVY),
        (
            "import dphead_extract.importing, dphead.cli.features",
            HEAVY | {"PIL", "rich"},
        ),
        ("import dphead_extract.backbones.families", HEAVY | {"PIL", "numpy"}),
        ("import dphead.planning.registry as r; r.method_names()", HEAVY | {"numpy"}),
        (
            "import dphead.cli.fit, dphead.cli.account, dphead.cli.plan",
            HEAVY | {"numpy", "rich"},
        ),
        (
            "from dphead.analysis.profiles import all_profiles\n"
            "from dphead.privacy.accounting import GaussianEvent\n"
            "all_profiles([GaussianEvent(3.0)], 1e-5)",
            {"dp_accounting"},
        ),
        (
            "from click.testing import CliRunner; import dphead.cli\n"
            "result = CliRunner().invoke(dphead.cli.cli, ['--help'])\n"
            "assert result.exit_code == 0, result.output",
            HEAVY,
        ),
        (
            "from dphead_extract.backbones.base import BackboneOptions\n"
            "from dphead_extract.backbones.registry import load_backbone\n"
            "from dphead_extract.vectors import WholeVectors\n"
            "options = BackboneOptions('test_vit', random_weights=True)\n"
            "backbone = load_backbone(options, (32, 32), True)\n"
            "with WholeVectors():\n"
            "    backbone.module(backbone.mean.expand(1, 3, 160, 160))",
            {"sympy"},  # of torch's compiler
        ),
    ],
    ids=[
        "dphead",
        "metrics",
        "ledgers",
        "estimators",
        "dphead_extract.features.format",
        "dphead_extract.importing",
        "families",
        "methods",
        "options",
        "full batches",
        "help",
        "a backbone of timm",
    ],
)
def test_an_import_stays_light(code, forbidden):
    assert loaded_after(code) & forbidden == set()


def test_every_public_name_is_imported_on_first_use():
    import dphead

    assert {"DPAutoClassifier", "DPPCA", "cross_validate"} <= set(dphead.__all__)
    for name in dphead.__all__:
        assert name in dir(dphead)
        assert getattr(dphead, name)
    pytest.importorskip("torch")
    from dphead.finetune.estimator import DPFinetuneClassifier

    assert "DPFinetuneClassifier" in dir(dphead)
    assert "DPFinetuneClassifier" not in dphead.__all__  # `import *` without PyTorch
    assert dphead.DPFinetuneClassifier is DPFinetuneClassifier
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dphead.nothing
