"""Compute a network's scores and the clipped gradient sums of a `release`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from dphead_extract.backbones.weights import first_line
from dphead_extract.threads import one_thread
from dphead_extract.vectors import WholeVectors, are_alike
from torch import Tensor, nn

from dphead.finetune.augment import row_keys, views_of
from dphead.finetune.gradients import (
    ModelGradient,
    Part,
    PerExample,
    clipped,
    refuse_memory,
    squared_norms,
)
from dphead.finetune.models import (
    NetworkLoss,
    RowLoss,
    bits,
    build_network,
    flat,
    is_users,
    loss_of,
    of_scores,
    refuse_moving,
    trained,
    unchanged,
)
from dphead.finetune.options import Scale
from dphead.finetune.settings import ModelSpec, code_name
from dphead.fit.memory import DEFAULT_BYTES, available
from dphead.privacy.contract import Block, SumTask
from dphead.privacy.statistic_base import Params, Statistic
from dphead.privacy.transform import RowTransform, transformed
from dphead.sums.cpu import CpuSums

# Images per pass. More images were no faster on a CPU (times not stored).
_CPU_IMAGES = 256
_GPU_IMAGES = 4096  # chosen, not measured
# On a CPU, the fastest chunk has about as many rows as fit in these bytes, and a
# multiple of 8 rows. A CNN, WRN-10-1 with 4 to 16 views and WRN-16-4 were fastest at 8
# to 32 rows (times not stored).
_CPU_BYTES, _CPU_ROWS = 160 * 2**20, 8
# Standard deviation of the noise added to the initial weights for a second comparison
# of places in a chunk. Chosen: about the effect of some noisy steps.
_TRIED_BESIDE = 0.05
# Numbers per pass through the network: 682 images of 3 x 32 x 32; chosen.
_SCORED_NUMBERS = 2**21


@dataclass(frozen=True)
class StepParams(Params):
    """Hold the public values that a step's gradients depend on.

    Parameters
    ----------
    weights : ndarray of shape (size,), float32
        The flat trained parameters.
    step : int, default 0
        Index of the step, which seeds the views.
    """

    step: int = 0


@dataclass(frozen=True)
class NetworkSpec:
    """Describe a network and its inputs by public values.

    A row's statistic depends only on these values, the network, its loss, the row, the
    released transform of rows, the weights and the step.

    Parameters
    ----------
    model : ModelSpec
        The network.
    shape : tuple of int
        (channels, h, w) of an image, or the shape of another kind of row.
    n_classes : int
        Number of public classes.
    pixels : bool, default True
        True for 8-bit images, which are divided by 255, augmented, then standardized as
        (x - mean) / std. False for feature maps, which only go through the release's
        transform. False too for tokens (`ModelSpec.vocabulary`), and for other rows.
    mean, std : float or tuple of float, default 0.5 and 0.25
        One number for all channels, or one for each.
    views : int, default 0
        De22's augmentation multiplicity K; 0 for none.
    augment : str, default "none"
        "none", "crop", "rrc", "ours" or "simclr".
    images : int, default 0
        Largest number of images of a group, if a row is a group: its gradient is the
        mean over its images, taken before the clip. 0 if a row is one image.

    Raises
    ------
    ValueError
        If only one of `views` and `augment` is set, if rows are augmented that are not
        images, or if images have a vocabulary.
    """

    model: ModelSpec
    shape: tuple[int, ...]
    n_classes: int
    pixels: bool = True
    mean: Scale = 0.5
    std: Scale = 0.25
    views: int = 0
    augment: str = "none"
    images: int = 0

    def __post_init__(self) -> None:
        if (self.augment == "none") != (self.views == 0):
            raise ValueError(
                "--views and --augment need each other. Pass both or neither."
            )
        if self.pixels and self.model.vocabulary is not None:
            raise ValueError(
                f"--vocabulary {self.model.vocabulary} applies to tokens, not to "
                "images. Drop --vocabulary, or pass rows of tokens."
            )
        if self.augment != "none" and not self.pixels:
            raise ValueError(
                "--augment applies to images, not to other rows such as feature maps. "
                "Drop --augment and --views."
            )

    @property
    def n_features(self) -> int:
        """Return the number of values of a row, as in `ImageRows`."""
        size = math.prod(self.shape)
        return self.images * (size + 1) or size

    def random(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return public random rows (n, n_features), float32.

        The images of groups have random classes.
        """
        x = rng.random((n, self.n_features), np.float32)
        if self.pixels:
            x *= 255
        if self.model.vocabulary is not None:
            x[:] = rng.integers(self.model.vocabulary, size=x.shape)
            # the largest token raises an error if a table of embeddings is smaller
            x[:, 0] = self.model.vocabulary - 1
        if self.images:
            images = x.reshape(n, self.images, -1)
            images[..., -1] = rng.integers(self.n_classes, size=(n, self.images))
        return x

    def readable(self, x: np.ndarray) -> np.ndarray:
        """Return whether each row (..., size) has only values that the network takes.

        A token outside the vocabulary would stop the network with an error.
        """
        most = self.model.vocabulary
        known = np.isfinite(x)
        if most is not None:
            known &= (x >= 0) & (x < most) & (x == np.floor(x))
        return np.asarray(known.all(axis=-1))

    def unpacked(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the images (k, images, size) of rows, and their labels (k, images)."""
        if not self.images:
            return x[:, None], y[:, None]
        rows = x.reshape(len(x), self.images, x.shape[1] // self.images)
        labels = np.where(np.isfinite(rows[..., -1]), rows[..., -1], -1)
        return rows[..., :-1], labels.astype(np.int64)

    def inputs(
        self,
        x: np.ndarray,
        step: int,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Return the network's inputs for the rows x of a step.

        A row's views depend on its content, never on its place in x: under add/remove
        and in samples, this place depends on other rows.

        Parameters
        ----------
        x : ndarray of shape (k, channels h w), float32
            The rows.
        step : int
            Index of the step, which seeds the views.
        device : torch.device or str, default "cpu"
            Device of the inputs.

        Returns
        -------
        Tensor of shape (k, views, channels, h, w)
            The views of each row; one view without augmentation.
        """
        images = torch.from_numpy(x).to(device).reshape(-1, *self.shape)
        if self.model.vocabulary is not None:
            images = images.long()
        if not self.pixels:
            return images[:, None]
        keys = row_keys(x) if self.views else np.zeros(len(x), np.uint64)
        views = views_of(images / 255, keys, self.views, self.augment, step)
        mean, std = (
            torch.tensor(value, dtype=torch.float32, device=device).view(-1, 1, 1)
            for value in (self.mean, self.std)
        )
        return (views - mean) / std


class Network:
    """Hold a network on a device.

    Parameters
    ----------
    spec : NetworkSpec
        The network and its inputs.
    device : str, default "cpu"
        Device of the network.
    bf16 : bool, default False
        Whether products of the gradients are computed in bfloat16.
    module : nn.Module, optional
        The user's own network, instead of the one that `spec` names.
    loss : callable, default `loss_of`
        Loss to train with, of scores (k, n_classes) and labels (k,).
    row_loss : callable, optional
        Loss of one row instead, of the module, the row's views and their labels. The
        module need not return scores.

    Attributes
    ----------
    statistic : ModelGradient
        The statistic that each step releases.
    start : ndarray of shape (size,), float64
        The model's initial weights, flat.
    gradients : PerExample
        The gradients of rows.
    public : Tensor of shape (3, views, channels, h, w)
        Random rows for trials.

    Raises
    ------
    ValueError
        As `build_network` does, and for a user's code as `refuse_memory` does. Also if
        the loss calls layers of `module` itself. Without `row_loss`, also if the model
        does not accept rows of this shape, does not return a score for each class, or
        mixes rows.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        device: str = "cpu",
        bf16: bool = False,
        module: nn.Module | None = None,
        loss: NetworkLoss = loss_of,
        row_loss: RowLoss | None = None,
    ) -> None:
        self.spec, self.device = spec, torch.device(device)
        self.loss = row_loss or of_scores(loss, bf16)
        self.model = build_network(spec.model, spec.n_classes, spec.shape[0], module)
        self.model.to(self.device)
        self.gradients = PerExample(self.model, self.loss)
        self.public = self._random(0)
        if row_loss is None:
            self._check_scores()
        given = row_loss or loss
        named, errors = spec.model, self.gradients.errors
        errors.watched = given is not loss_of or is_users(named)
        if errors.watched:
            refuse_memory(self.gradients, self.public)
        # the loop may change the mode of its own layers between steps
        layers = () if module is None else module.modules()
        if not self.gradients.called.isdisjoint(layers):
            raise ValueError(
                "The loss calls layers of your own module, but dphead trains a copy. "
                "Call the module that the loss gets, or a `copy.deepcopy` of yours."
            )
        words = named.model
        if named.is_wide:
            words += f" {named.norm} groups={named.groups} ws={named.standardize}"
        if named.batch_norm != "refuse":
            words += f" batch_norm={named.batch_norm}"
        if named.adapter != "none":
            words += f" adapter={named.adapter} rank={named.rank}"
        if given is not loss_of:
            words += f" loss={code_name(given)}"
        if spec.images:
            words += f" mean of at most {spec.images} images of a group"
        self.start = flat(self.model).double().cpu().numpy()
        self.statistic = ModelGradient(
            spec.n_classes, len(self.start), words, spec.views, spec.augment
        )

    def _random(self, seed: int) -> Tensor:
        """Return three public random rows (3, views, ...)."""
        spec = replace(self.spec, images=0)
        return spec.inputs(spec.random(np.random.default_rng(seed), 3), 0, self.device)

    def _check_scores(self) -> None:
        """Raise ValueError unless the model returns one score per class for an image.

        Also if the model mixes images, or does not accept images of this shape.
        """
        spec, name = self.spec, self.spec.model.model
        try:
            other = self._random(1)
            if spec.model.vocabulary is not None:
                other[:] = 0  # often padding: a mask then changes the number of tokens
            scores = refuse_moving(self.model, self.public[:, 0], other[:, 0])
        # types that timm and torch raise for a wrong image size or unknown tokens
        except (AssertionError, RuntimeError, IndexError) as error:
            what, size = "images", "image size (--image-size)"
            if not spec.pixels:
                what = "rows"
                size = "shape (--shape) or --vocabulary, or pass images as uint8"
            raise ValueError(
                f"--model {name} does not accept {what} of shape {spec.shape} "
                f"({first_line(error)}). Choose another model or {size}."
            ) from error
        if scores.shape != (3, spec.n_classes):
            raise ValueError(
                f"the model must return {spec.n_classes} scores for an image, one per "
                f"class, got scores of shape {tuple(scores.shape[1:])} from {name}. "
                "Change its last layer."
            )

    def digest(self) -> str:
        """Return a SHA-256 of all parameters and buffers, with their names."""
        found = sha256()
        for name, value in self.model.state_dict().items():
            found.update(repr((name, value.dtype, tuple(value.shape))).encode())
            found.update(bits(value))
        return found.hexdigest()

    def device_name(self) -> str:
        """Return "cpu", or the name of the GPU."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return self.device.type

    def scores(self, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the scores of rows.

        Parameters
        ----------
        weights : ndarray of shape (size,)
            The flat trained parameters.
        x : ndarray of shape (n, ...)
            The rows.

        Returns
        -------
        ndarray of shape (n, n_classes), float32
            NaN for a row that is not finite, or has unknown tokens.
        """
        self.gradients.set(torch.from_numpy(weights).to(self.device))
        # single images, without augmentation
        spec = replace(self.spec, views=0, augment="none", images=0)
        out = np.empty((len(x), self.spec.n_classes), np.float32)
        batch = max(1, _SCORED_NUMBERS // math.prod(spec.shape))
        with torch.inference_mode():
            for i in range(0, len(x), batch):
                with np.errstate(over="ignore"):
                    rows = np.array(x[i : i + batch], np.float32, order="C")
                known = spec.readable(rows.reshape(len(rows), -1))
                rows[~known] = 0
                inputs = spec.inputs(rows, 0, self.device)[:, 0]
                # otherwise a layer could store test rows in the network's buffers
                with unchanged(self.model.modules()):
                    found = self.model(inputs)
                out[i : i + batch] = found.float().cpu().numpy()
                out[i : i + batch][~known] = np.nan
        return out


class TorchSums:
    """Implement `BlockSum` for a network's clipped gradients.

    Other statistics, such as those of a normalization, are left to `CpuSums`.

    Rows go through the network in chunks of a fixed size, for any sample. On the CPU
    only one thread is used. Several threads can divide a chunk in the middle of a row,
    so the bits of a row would depend on its place in the chunk.

    Parameters
    ----------
    network : Network
        The network.
    memory : int, optional
        Bytes that a chunk may use. Default: what is available on a CPU, at most 2 GiB;
        half of a GPU's free memory.
    chunk : int, optional
        Rows per chunk, from another process. None chooses a size at which torch rounds
        each row equally. On a CPU, it chooses 1 if a trial finds that a row's bits
        depend on its position in the chunk.
    batch : int, default 256
        Expected rows of a batch. A chunk has at most about this number of rows. If it
        has more than 32 rows, it has at most a quarter of the batch, because the last
        chunk is padded. On a CPU, a chunk of more than 8 rows takes at most about 160
        MiB.

    Raises
    ------
    ValueError
        If the model does not allow per-example gradients.
    MemoryError or torch.OutOfMemoryError
        If the gradient of one row does not fit in memory.
    """

    parallel = False

    def __init__(
        self,
        network: Network,
        memory: int | None = None,
        chunk: int | None = None,
        batch: int = _CPU_IMAGES,
    ) -> None:
        self.network = network
        self._gradients = network.gradients
        with one_thread():
            with WholeVectors() as seen:
                self._fits(1)
            most, fastest = _chunk_rows(network, memory)
            wanted = min(max(1, batch), max(32, batch // 4), fastest)
            self.chunk = chunk or seen.rounded(wanted, most)
            if chunk is None:
                while network.device.type == "cuda" and not self._fits(self.chunk):
                    self.chunk //= 2
                if not self._places_are_equal():
                    self.chunk = 1
        self._heads = CpuSums()

    def _fits(self, rows: int) -> bool:
        """Return whether the gradients of this number of rows fit in memory.

        The trial runs before any charge, so that an unusable model spends no budget.
        Raises ValueError if the gradients cannot be computed, and the memory error if
        those of a single row do not fit.
        """
        spec = self.network.spec
        # random rows, because a loss may raise an error for a row of zeros
        x, y = spec.random(np.random.default_rng(0), rows), np.zeros(rows, np.int64)
        try:
            parts, keep = self._parts(x, y, y == 0)
            clipped(parts, torch.from_numpy(keep).to(self.network.device), 1.0)
        except (MemoryError, torch.OutOfMemoryError):
            if rows == 1:
                raise
            return False
        except Exception as error:  # layers and losses raise any type
            raise ValueError(
                "torch.func cannot compute per-example gradients of --model "
                f"{spec.model.model} ({first_line(error)}). Choose another model or "
                "loss."
            ) from error
        return True

    def probe(self) -> str:
        """Return a SHA-256 of a chunk's sum for random images and the initial weights.

        It is equal on all processes if they compute equal gradients. On a GPU, return
        "", because some operations of a GPU do not repeat their bits.
        """
        network, spec = self.network, self.network.spec
        if network.device.type != "cpu":
            return ""
        rng = np.random.default_rng(0)
        x = spec.random(rng, self.chunk)
        y = np.arange(self.chunk) % spec.n_classes
        block = Block(np.arange(self.chunk), x, y)
        params = StepParams(RowTransform(), network.start.astype(np.float32))
        out = np.zeros(len(network.start), np.int64)
        ask = SumTask(network.statistic, params, 1.0)
        total = self.add(ask, block, y, y >= 0, out)
        return sha256(total.tobytes()).hexdigest()

    def _places_are_equal(self) -> bool:
        """Return whether a random row has the same bits in every place of a chunk.

        The test compares the gradient and its norm at the initial weights and at
        weights near them, because a head of zeros hides the layers below. On a GPU it
        returns True without a test, because chunks of one row would take days.
        """
        spec = self.network.spec
        if self.chunk == 1 or self.network.device.type != "cpu":
            return True
        rng = np.random.default_rng(0)
        x = spec.random(rng, 1).repeat(self.chunk, 0)
        y = np.zeros(self.chunk, np.int64)
        start = torch.from_numpy(self.network.start)
        beside = start + _TRIED_BESIDE * torch.from_numpy(
            rng.standard_normal(len(start))
        )
        equal = True
        for weights in (beside, start):
            self._gradients.set(weights)
            parts, _ = self._parts(x, y, y == 0)
            columns = (one for part in parts for one in part.columns)
            equal &= all(map(are_alike, (squared_norms(parts), *columns)))
        return equal

    def is_compared(self, statistic: Statistic) -> bool:
        """Return whether a second computation checks the sum: for all but gradients.

        No second way to compute a network's gradient gives the same bits.
        """
        return not isinstance(statistic, ModelGradient)

    def rows(self, ask: SumTask, block: Block) -> Any:
        """Return what `add` reads: the block, or the rows of `CpuSums`."""
        return (
            self._heads.rows(ask, block) if self.is_compared(ask.statistic) else block
        )

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Return the gradients' norms (k,) before the clip; 0 if they are not finite.

        For other statistics, return the norms of `CpuSums`.
        """
        if self.is_compared(ask.statistic):
            return self._heads.norms(ask, block)
        params = self._take(ask)
        found = []
        with one_thread():
            for part in self._chunks(ask, block):
                norms = np.zeros(self.chunk)
                for parts, keep in self._computed(part, part.index >= 0, params.step):
                    each = squared_norms(parts).sqrt().nan_to_num(0.0, 0.0)
                    norms[keep] = each.cpu().numpy()[keep]
                found.append(norms)
        return np.concatenate(found)[: len(block.x)]

    def add(
        self, ask: SumTask, rows: Any, y: np.ndarray, used: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Add the clipped gradients of the `used` rows to `out` (size,) int64.

        For other statistics, add the sum of `CpuSums`.
        """
        if self.is_compared(ask.statistic):
            return self._heads.add(ask, rows, y, used, out)
        params = self._take(ask)
        # float64 adds whole numbers below 2**53 exactly, so the sum stays on the device
        # and is copied to the host once per block
        total = torch.zeros(len(out), dtype=torch.float64, device=self.network.device)
        with one_thread():
            for i, part in enumerate(self._chunks(ask, rows)):
                keep = used[i * self.chunk : (i + 1) * self.chunk]
                keep = np.pad(keep, (0, self.chunk - len(keep)))
                if keep.any():
                    for parts, known in self._computed(part, keep, params.step):
                        counted = torch.from_numpy(known).to(self.network.device)
                        total += clipped(parts, counted, ask.clip_norm)
        out += total.cpu().numpy().astype(np.int64)
        return out

    def _take(self, ask: SumTask) -> StepParams:
        """Set the network to the weights of the request, and return its parameters.

        Raises ValueError unless the request is for this network's own gradient.
        """
        params, network = ask.params, self.network
        if (
            ask.statistic != network.statistic
            or not isinstance(params, StepParams)
            or params.weights is None
        ):
            raise ValueError(
                f"Internal error: a solver requested {ask.statistic.name}, which is "
                "not its network's gradient. Please report it."
            )
        self._gradients.set(torch.from_numpy(params.weights).to(network.device))
        return params

    def _chunks(self, ask: SumTask, block: Block) -> Iterator[Block]:
        """Yield the block's transformed rows in chunks, the last padded with zeros."""
        x = network_rows(ask.params.transform, block.x)
        for i in range(0, len(x), self.chunk):
            part = slice(i, i + self.chunk)
            missing = self.chunk - len(x[part])
            yield Block(
                np.pad(block.index[part], (0, missing), constant_values=-1),
                np.pad(x[part], ((0, missing), (0, 0))),
                np.pad(block.y[part], (0, missing), constant_values=-1),
            )

    def _computed(
        self, part: Block, used: np.ndarray, step: int, filled: bool = False
    ) -> Iterator[tuple[list[Part], np.ndarray]]:
        """Yield (gradients, whether to add each one), with each row at most once.

        A row whose computation raises an error adds zero, because the error would
        reveal the row. If a chunk raises one, its used rows are computed again, with
        copies of a used row in the free places. If this fails too, each half of the
        rows is computed in this way.
        """
        slots = np.arange(len(used))
        place = np.where(used, slots, used.argmax()) if filled else slots
        try:
            x, y = part.x[place], part.y[place]
            parts, known = self._parts(x, y, used | filled, step)
        except (MemoryError, torch.OutOfMemoryError):
            raise  # the machine lacks memory, whatever the rows are
        except Exception:  # layers and losses raise any type
            parts, known = [], used
        rows = np.flatnonzero(used)
        if parts:
            yield parts, known & used
        # the first retry has all rows: an empty place may have caused the error
        elif len(rows) > 1 or not filled:
            for half in np.array_split(rows, 2 if filled else 1):
                yield from self._computed(part, np.isin(slots, half), step, True)

    def _parts(
        self, x: np.ndarray, y: np.ndarray, used: np.ndarray, step: int = 0
    ) -> tuple[list[Part], np.ndarray]:
        """Return a chunk's gradients, and (chunk,) bool: whether each row is used."""
        spec = self.network.spec
        device = self.network.device
        used = used & (y >= 0)
        images, y = spec.unpacked(x, y)
        known = used[:, None] & (y >= 0) & (y < spec.n_classes) & spec.readable(images)
        if spec.images:
            # unused places repeat an image of their own group: zeros could give NaN
            rows = np.arange(len(y))[:, None]
            firsts = known.argmax(axis=1)[:, None]
            place = np.where(known, np.arange(spec.images), firsts)
            images, y = images[rows, place], y[rows, place]
        filled = np.asarray(known.any(axis=1))[:, None]
        images = np.where(filled[:, :, None], images, np.float32(0))
        inputs = spec.inputs(images.reshape(-1, images.shape[2]), step, device)
        labels = torch.from_numpy(np.where(filled, y, 0).astype(np.int64)).to(device)
        if not spec.images:
            return self._gradients.parts(inputs, labels[:, 0]), known[:, 0]
        counts = known.sum(axis=1, keepdims=True)
        share = (known / np.maximum(counts, 1)).astype(np.float32)
        weights = torch.from_numpy(share).to(device)
        views = inputs.unflatten(0, known.shape)
        return self._gradients.parts(views, labels, weights), counts[:, 0] > 0


def network_rows(transform: RowTransform, x: np.ndarray) -> np.ndarray:
    """Return rows (k, n_features) in float32, as the network reads them.

    Without a transform, this is `x`. A transformed row that is not finite becomes NaN.
    """
    if not transform.unit_norm and transform.center is None and transform.scale is None:
        return x
    rows = transformed(transform, x)
    values = rows.integers * rows.scale[:, None]
    return np.where(rows.finite[:, None], values, np.nan).astype(np.float32)


@one_thread()  # as in `try_rows`
def _chunk_rows(network: Network, memory: int | None) -> tuple[int, int]:
    """Return the most rows of a chunk in `memory` bytes, and the fastest number.

    The memory of a row is an estimate: twice its float32 gradients, four times the
    largest of them, and three and a half floats for each activation of each view.
    """
    model, device = network.model, network.device
    views, images = max(1, network.spec.views), _CPU_IMAGES
    views *= max(1, network.spec.images)
    if device.type == "cuda":
        images = _GPU_IMAGES
        memory = memory or torch.cuda.mem_get_info(device)[0] // 2
    outputs = [0]
    with torch.no_grad(), unchanged(network.gradients.called):  # removes the hooks
        for m in model.modules():
            if not list(m.children()):
                m.register_forward_hook(
                    lambda _, __, o: outputs.append(
                        o.numel() if isinstance(o, Tensor) else 0
                    )
                )
        view = network.public[0, :1].clone()  # a loss may change its input
        network.loss(model, view, torch.zeros(1, dtype=torch.long, device=device))
    sizes = [p.numel() for _, p in trained(model)]
    row = 4 * (2 * sum(sizes) + 4 * max(sizes)) + 14 * views * sum(outputs)
    memory = memory or min(DEFAULT_BYTES, available())
    most = int(np.clip(memory // row, 1, max(1, images // views)))
    if device.type == "cuda":
        return most, most
    return most, max(1, _CPU_BYTES // row // _CPU_ROWS) * _CPU_ROWS
