import subprocess
import sys

# a fresh interpreter: another test may have imported the compiler
CODE = """
import sys
from importlib import import_module

import torch
from dphead_extract import compiler as own
from torch import nn

from dphead.finetune.gradients import PerExample

def gradients():
    torch.manual_seed(0)
    x, y = torch.randn(2, 1, 3), torch.tensor([0, 1])
    return PerExample(nn.Linear(3, 2)).parts(x, y)[0].columns[0]

own.import_timm()
before = gradients()
assert not {"torch._dynamo", "sympy"} & sys.modules.keys()
with own.without_compiler():
    assert own._disable(lambda x: x + 1)(1) == 2
import torch._dynamo as compiler
operation = import_module("torchvision.ops.roi_align")
assert operation.is_compile_supported("cpu") in (True, False)
assert own._StandIn("torch._dynamo").config is compiler.config
assert own._AUTOGRAD.compiled_autograd_enabled is False
with own.without_compiler():
    assert torch._dynamo is compiler
assert torch.equal(gradients(), before)
"""


def test_timm_and_gradients_import_the_compiler_when_a_function_needs_it():
    subprocess.run([sys.executable, "-c", CODE], check=True)
