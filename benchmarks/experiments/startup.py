"""Measure the CPU seconds of a process up to the first sum of gradients.

`python -m benchmarks.experiments.startup CASE FOLDER` runs one case, and ends the
process where the first step would read rows. Each case needs a process of its own, and
`mobilenet` a file FOLDER/weights.safetensors of timm's mobilenetv2_100 with 10 classes.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

# of `dphead finetune`
MODELS = {
    "command": "--model wrn-10-1",
    "mobilenet": "--model mobilenetv2_100 --batch-norm freeze "
    "--layers ^blocks[.]6,^conv_head,^classifier --weights weights.safetensors",
}


def stop(*_: Any, **__: Any) -> None:
    """Print the CPU seconds of this process, and end it."""
    print(sys.argv[1], time.process_time(), flush=True)
    os._exit(0)


def main(case: str, folder: Path) -> None:
    """Run a case: torch, command, mobilenet, loop or classifier."""
    from torch import nn

    if case == "torch":
        stop()
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (1000, 32, 32, 3)).astype(np.uint8)
    y = rng.integers(0, 10, 1000)
    if case in MODELS:
        from dphead import cli
        from dphead.finetune import network

        network.TorchSums.add = stop  # pyright: ignore[reportAttributeAccessIssue]
        np.savez(folder / "images.npz", images=x, label=y)
        words = f"finetune images.npz -o run --classes 10 {MODELS[case]} --epsilon 8 "
        words += "--batch-size 128 --steps 100 --ledger run.sqlite -y"
        os.chdir(folder)
        sys.argv[2:] = words.split()
        cli.cli(words.split())
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers += [conv, nn.GroupNorm(8, outputs), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))
    given: Any = {"classes": range(10), "epsilon": 8.0, "delta": 1e-5, "steps": 100}
    if case == "loop":
        from dphead import PrivateTraining
        from dphead.finetune import network

        network.TorchSums.add = stop  # pyright: ignore[reportAttributeAccessIssue]
        training = PrivateTraining(
            model,
            lambda model, x, y: nn.functional.cross_entropy(model(x), y),
            (x.transpose(0, 3, 1, 2), y),
            sampling_prob=0.128,
            **given,
        )
        with training:
            next(training)
    from dphead import DPFinetuneClassifier
    from dphead.finetune import network

    network.TorchSums.add = stop  # pyright: ignore[reportAttributeAccessIssue]
    DPFinetuneClassifier(model=model, batch_size=128, **given).fit(x, y)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
