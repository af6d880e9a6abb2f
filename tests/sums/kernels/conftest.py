"""Every test of this folder runs with each library that this processor can run."""

from ctypes import c_double, c_int64, c_void_p
from pathlib import Path

import numpy as np
import pytest

from dphead.sums import kernels

LIBRARIES = {
    Path(found._name).name.split(".")[0]: found for found in kernels.libraries()
}


@pytest.fixture(scope="module", autouse=True, params=LIBRARIES)
def library(request):
    best = kernels.library
    kernels.library = LIBRARIES[request.param]
    yield
    kernels.library = best


@pytest.fixture(scope="session")
def call():
    """Call any function of the library, with arrays and numbers."""

    def argument(value):
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous
            return c_void_p(value.ctypes.data)
        return c_double(value) if isinstance(value, float) else c_int64(value)

    def called(function, *values):
        return getattr(kernels.library, function)(*map(argument, values))

    return called
