import subprocess
import sys

# a fresh interpreter: another test may have imported the compiler
CODE = """
import sys
from importlib import import_module
from dphead_extract.backbones import timm_import

timm_import.import_timm()
assert "torch._dynamo" not in sys.modules
assert timm_import._disable(lambda x: x + 1)(1) == 2
import torch._dynamo as compiler
operation = import_module("torchvision.ops.roi_align")
assert operation.is_compile_supported("cpu") in (True, False)
assert timm_import._StandIn("torch._dynamo").config is compiler.config
"""


def test_timm_imports_the_compiler_when_a_function_needs_it():
    subprocess.run([sys.executable, "-c", CODE], check=True)
