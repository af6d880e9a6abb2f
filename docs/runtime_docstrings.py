"""Show the estimators' completed docstrings on the site, as `help` does."""

import inspect
from typing import Any

import griffe

import dphead


class RuntimeDocstrings(griffe.Extension):
    """Replace the docstrings in the source, which `documented` completes at import."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Replace the docstring of a class that `dphead` exports."""
        if cls.name.startswith("DP") and cls.name in dir(dphead):
            text = inspect.getdoc(getattr(dphead, cls.name))
            cls.docstring = griffe.Docstring(text or "", parent=cls)
