"""From rows to a network's scores and clipped gradient sums: the block sum that
`release` is given.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dphead.endtoend.augment import AUGMENTATIONS, MOST_VIEWS, row_keys, views_of
from dphead.endtoend.gradients import (
    ModelGradient,
    Part,
    PerExample,
    clipped,
    squared_norms,
)
from dphead.endtoend.models import (
    ModelSpec,
    Scale,
    count_parameters,
    flat,
    refuse_moving,
    trained,
)
from dphead.privacy.contract import Block
from dphead.privacy.query import Params, Query
from dphead.privacy.transform import RowTransform, transformed
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import Ask
from extract.threads import one_thread
from extract.vectors import WholeVectors, are_alike

MOST_ROWS = 256  # of a chunk: more were no faster on a CPU; tried, no row is stored
# standard deviation of weights at which places are tried, beside the start: chosen, as
# far as some steps of noise lead
TRIED_BESIDE = 0.05
# numbers that go through the network at a time: 682 images of 3 x 32 x 32; chosen
SCORED_NUMBERS = 2**21


@dataclass(frozen=True)
class StepParams(Params):
    """`weights`: the flat parameters (size,) float32. step: whose views are taken."""

    step: int = 0


@dataclass(frozen=True)
class NetworkSpec:
    """A network and what it is fed: everything that decides the statistic of a row, all
    of it public.

    shape: (channels, h, w) of an image. pixels: rows are 8-bit images, divided by 255,
    augmented, (x - mean) / std, numbers for all channels or one each; otherwise rows
    are feature maps, taken as the release's transform left them.
    views: De22's augmentation multiplicity K, 0 for none; augment: "none", "crop",
    "rrc", "ours" or "simclr".
    """

    model: ModelSpec
    shape: tuple[int, int, int]
    n_classes: int
    pixels: bool = True
    mean: Scale = 0.5
    std: Scale = 0.25
    views: int = 0
    augment: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.augment != "none" and self.augment not in AUGMENTATIONS:
            raise ValueError(
                f"augment must be none or one of {sorted(AUGMENTATIONS)}, got "
                f"augment={self.augment!r}."
            )
        if (self.augment == "none") != (self.views == 0):
            raise ValueError(
                f"views and an augmentation belong together, got views={self.views}, "
                f"augment={self.augment!r}. Give both, or neither."
            )
        if self.augment != "none" and not self.pixels:
            raise ValueError(
                f"feature maps are not augmented, got augment={self.augment!r}. Leave "
                "it out."
            )

    def check_vote(self, vote: int) -> None:
        """ValueError for a vote of the views of a network that has none, or of so many
        that there cannot be.
        """
        if not 0 <= vote <= MOST_VIEWS:
            raise ValueError(
                f"a vote must be of 0 to {MOST_VIEWS} views, got {vote=}. Correct it."
            )
        if vote and self.augment == "none":
            raise ValueError(
                "a vote needs a network trained on views, got augment='none', "
                f"{vote=}. Leave --vote out."
            )

    def query(self, model: nn.Module) -> ModelGradient:
        """What is released at each step."""
        words = (
            f"{self.model.name} {self.model.norm} groups={self.model.groups} "
            f"ws={self.model.standardise}"
        )
        return ModelGradient(
            self.n_classes, count_parameters(model), words, self.views, self.augment
        )

    def inputs(
        self,
        x: np.ndarray,
        step: int,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """(k, views, channels, h, w) on `device` of rows x (k, channels h w) float32.

        A row's views follow its own numbers, never its place: under add_remove, and in
        a sample, the place of a row tells of others.
        """
        images = torch.from_numpy(x).to(device).reshape(-1, *self.shape)
        if not self.pixels:
            return images[:, None]
        keys = row_keys(x) if self.views else np.zeros(len(x), np.uint64)
        views = views_of(images / 255, keys, self.views, self.augment, self.seed, step)
        mean, std = (
            torch.tensor(value, device=device).view(-1, 1, 1)
            for value in (self.mean, self.std)
        )
        return (views - mean) / std


class Network:
    """A network on a device.

    weights: flat, from the model's own initial ones (`start`).
    """

    def __init__(
        self, spec: NetworkSpec, device: str = "cpu", bf16: bool = False
    ) -> None:
        self.spec, self.device, self.bf16 = spec, torch.device(device), bf16
        self.model = spec.model.build(spec.n_classes).to(self.device)
        try:
            refuse_moving(self.model, spec.shape, self.device)
        # what timm and torch say of a wrong size
        except (AssertionError, RuntimeError) as error:
            reason = str(error).split("\n")[0]
            raise ValueError(
                f"the model must take images of shape={spec.shape}, got "
                f"name={spec.model.name!r}: {reason} Choose another --image-size or "
                "model."
            ) from error
        self.query = spec.query(self.model)
        self.start = flat(self.model).double().cpu().numpy()

    def scores(self, weights: np.ndarray, x: np.ndarray, vote: int = 0) -> np.ndarray:
        """Scores (n, n_classes) float32 of rows x (n, ...).

        vote: number of augmented views that vote [TAN23 4.2].

        The scores of a vote are the shares of the views, plus a thousandth of their
        mean probabilities to break ties.
        """
        self.spec.check_vote(vote)
        PerExample(self.model).set(torch.from_numpy(weights).to(self.device))
        spec = replace(
            self.spec, views=vote, augment=self.spec.augment if vote else "none"
        )
        out = np.empty((len(x), self.spec.n_classes), np.float32)
        batch = max(1, SCORED_NUMBERS // (max(1, vote) * int(np.prod(spec.shape))))
        with torch.inference_mode():
            for i in range(0, len(x), batch):
                rows = np.ascontiguousarray(x[i : i + batch], np.float32)
                views = spec.inputs(rows, 0, self.device)
                scores = (
                    self.model(views.flatten(0, 1))
                    .float()
                    .unflatten(0, views.shape[:2])
                )
                out[i : i + batch] = (
                    (_votes(scores) if vote else scores[:, 0]).cpu().numpy()
                )
        return out


def _votes(scores: Tensor) -> Tensor:
    """(k, n_classes) shares of the views (k, views, n_classes) that choose each
    class.
    """
    choices = torch.nn.functional.one_hot(scores.argmax(dim=2), scores.shape[2]).float()
    return choices.mean(dim=1) + 1e-3 * scores.softmax(dim=2).mean(dim=1)


class TorchSums:
    """The `BlockSum` of a network: chunks of a fixed number of rows, whatever the
    sample holds, on one thread of the CPU.

    Several threads divide a chunk's work at places that need not be between rows: the
    same row then has other bits at another place of the chunk.

    memory: bytes that a chunk may take; batch: rows expected of a pass, of which a
    chunk takes a quarter (and 32 where there are as many), since the last chunk is
    filled up. chunk: rows as computed here by another process; None takes so many that
    torch rounds each alike, or on a CPU one, if a trial finds that its bits follow its
    place.
    """

    parallel = False

    def __init__(
        self,
        network: Network,
        memory: int = 2 << 30,
        chunk: int | None = None,
        batch: int = MOST_ROWS,
    ) -> None:
        self.network = network
        most = chunk_rows(network, memory)
        wanted = min(batch, max(32, batch // 4))
        with one_thread():
            self._gradients = PerExample(network.model, network.bf16)
            with WholeVectors() as seen:
                self._try()
            self.chunk = chunk or seen.rounded(wanted, most)
            if chunk is None and not self._places_are_equal():
                self.chunk = 1
        self._params: StepParams | None = None  # those that the network has
        self._heads = CpuSums()

    def _try(self) -> None:
        """ValueError unless a row of zeros has a gradient: to be found before a
        charge.
        """
        spec = self.network.spec
        device = self.network.device
        row = np.zeros((1, int(np.prod(spec.shape))), np.float32)
        y = torch.zeros(1, dtype=torch.long, device=device)
        try:
            parts = self._gradients.parts(spec.inputs(row, 0, device), y)
            clipped(parts, y == 0, 1.0)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            reason = str(error).split("\n")[0]
            raise ValueError(
                "the model must allow per-example gradients (torch.func), got "
                f"name={spec.model.name!r}: {reason} Choose another model."
            ) from error

    def _places_are_equal(self) -> bool:
        """Whether one random row has the same gradient and norm, bit by bit, at every
        place of a chunk, at the start and at weights beside it: at the start a head of
        zeros hides what lies below it. Not asked on a GPU, where one row at a time
        would take days.
        """
        spec = self.network.spec
        device = self.network.device
        if self.chunk == 1 or device.type != "cpu":
            return True
        rng = np.random.default_rng(0)
        row = rng.random((1, int(np.prod(spec.shape))), np.float32)
        row *= 255 if spec.pixels else 1
        inputs = spec.inputs(row.repeat(self.chunk, 0), 0, device)
        y = torch.zeros(self.chunk, dtype=torch.long)
        start = torch.from_numpy(self.network.start)
        beside = start + TRIED_BESIDE * torch.from_numpy(
            rng.standard_normal(len(start))
        )
        equal = True
        for weights in (beside, start):
            self._gradients.set(weights)
            parts = self._gradients.parts(inputs, y)
            alike = [are_alike(squared_norms(parts)), *(p.is_alike() for p in parts)]
            equal = equal and all(alike)
        return equal

    def is_compared(self, query: Query) -> bool:
        """Heads' queries are; a network's rows have no second way that gives the same
        bits.
        """
        return not isinstance(query, ModelGradient)

    def rows(self, ask: Ask, block: Block) -> Any:
        """The block itself, for a network."""
        return self._heads.rows(ask, block) if self.is_compared(ask.query) else block

    def norms(self, ask: Ask, block: Block) -> np.ndarray:
        """Norms (k,) of what is clipped."""
        if self.is_compared(ask.query):
            return self._heads.norms(ask, block)
        self._take(ask)
        found = []
        with one_thread():
            for part in self._chunks(ask, block):
                parts, _ = self._parts(ask, part, part.index >= 0)
                norms = squared_norms(parts).sqrt()
                norms = torch.where(torch.isfinite(norms), norms, 0.0)
                found.append(norms.cpu().numpy())
        return np.concatenate(found)[: len(block.x)]

    def add(
        self, ask: Ask, rows: Any, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Add the rows' clipped gradients to `out` (size,) int64."""
        if self.is_compared(ask.query):
            return self._heads.add(ask, rows, y, used, out)
        self._take(ask)
        with one_thread():
            for i, part in enumerate(self._chunks(ask, rows)):
                keep = used[i * self.chunk : (i + 1) * self.chunk]
                keep = np.pad(keep, (0, self.chunk - len(keep)))
                if keep.any():
                    out += self._added(ask, part, keep)
        return out

    def _added(self, ask: Ask, part: Block, used: np.ndarray) -> np.ndarray:
        """What a chunk's rows add to the sum: (size,) int64."""
        parts, keep = self._parts(ask, part, used)
        counted = torch.from_numpy(keep).to(self.network.device)
        return clipped(parts, counted, ask.clip_norm).cpu().numpy().astype(np.int64)

    def _take(self, ask: Ask) -> None:
        """Give the network the weights that are asked at."""
        params, weights = own_step(self.network, ask)
        if params is not self._params:
            self._gradients.set(torch.from_numpy(weights).to(self.network.device))
            self._params = params

    def _chunks(self, ask: Ask, block: Block) -> Iterator[Block]:
        """The block's rows transformed, `chunk` at a time; missing ones are filled up
        with zeros.
        """
        x = network_rows(ask.params.transform, block.x)
        for i in range(0, len(x), self.chunk):
            part = slice(i, i + self.chunk)
            missing = self.chunk - len(x[part])
            index = np.pad(block.index[part], (0, missing), constant_values=-1)
            y = np.pad(block.y[part], (0, missing), constant_values=-1)
            padded = np.pad(x[part], ((0, missing), (0, 0)))
            yield Block(index, padded, y)

    def _parts(
        self, ask: Ask, part: Block, used: np.ndarray
    ) -> tuple[list[Part], np.ndarray]:
        """A chunk's gradients, and (chunk,) bool: its rows that count."""
        spec = self.network.spec
        device = self.network.device
        keep = (
            used
            & (part.y >= 0)
            & (part.y < spec.n_classes)
            & np.isfinite(part.x).all(axis=1)
        )
        x = np.where(keep[:, None], part.x, np.float32(0))
        assert isinstance(ask.params, StepParams)
        inputs = spec.inputs(x, ask.params.step, device)
        labels = np.where(keep, part.y, 0).astype(np.int64)
        parts = self._gradients.parts(inputs, torch.from_numpy(labels).to(device))
        return parts, keep


def own_step(network: Network, ask: Ask) -> tuple[StepParams, np.ndarray]:
    """A step and its weights; ValueError unless it is one of this network's."""
    params = ask.params
    if (
        ask.query != network.query
        or not isinstance(params, StepParams)
        or params.weights is None
    ):
        raise ValueError(
            f"the query must be the network's own, got {ask.query}. This is a defect "
            "in the solver."
        )
    return params, params.weights


def network_rows(transform: RowTransform, x: np.ndarray) -> np.ndarray:
    """Rows (k, n_features) float32 as a network is fed; not finite where a row is
    not.
    """
    if not transform.unit_norm and transform.center is None and transform.scale is None:
        return x
    rows = transformed(transform, x)
    values = rows.integers * rows.scale[:, None]
    return np.where(rows.finite[:, None], values, np.nan).astype(np.float32)


def chunk_rows(network: Network, memory: int) -> int:
    """Rows of a chunk that keep its gradients and activations within `memory` bytes (an
    estimate, at least 1).

    A row has its gradients in float32, the largest of them a few times more, and three
    floats and a half for each activation of each view.
    """
    model = network.model
    views = max(1, network.spec.views)
    outputs = [0]
    hooks = [
        m.register_forward_hook(
            lambda _, __, o: outputs.append(o.numel() if isinstance(o, Tensor) else 0)
        )
        for m in model.modules()
        if not list(m.children())
    ]
    with torch.no_grad():
        model(torch.zeros((1, *network.spec.shape), device=network.device))
    for hook in hooks:
        hook.remove()
    sizes = [p.numel() for _, p in trained(model)]
    row = 4 * (2 * sum(sizes) + 4 * max(sizes)) + 14 * views * sum(outputs)
    return int(np.clip(memory // row, 1, max(1, MOST_ROWS // views)))
