"""Run one fit on many processes by `jax.distributed`.

Messages go through its key-value store, sums through gloo. They carry private values:
sums without noise, and each process's own sample. Nothing is encrypted
(docs/many-hosts.md).
"""

import io
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from dphead.fit.connect import Place, connect, die, explain_aborts
from dphead.privacy import statistics
from dphead.privacy.contract import ReleaseSpec, Rows
from dphead.privacy.query import Params, Statistic
from dphead.privacy.transform import RowTransform
from dphead.solvers.head import AccuracyEstimate, LinearHead
from dphead.sums.caches import KeptRows
from dphead.sums.parts import PartAsk, serve
from dphead.sums.reference import BlockSum, GramAndSums

NO_TIMEOUT_MS = 10**9  # eleven days, for waits without a limit of their own
# time for the other processes to read why a run ends; a choice, not measured
REASON_READ_SECONDS = 2.0
QUERIES = {
    name: c
    for name, c in vars(statistics).items()
    if isinstance(c, type) and issubclass(c, Statistic)
}
QUERIES["GramAndSums"] = GramAndSums


class LostProcess(OSError):
    """Report that another process of the run is gone."""


class Group:
    """Join the processes of a run: the first asks, the others serve.

    Use it as a context manager. An exception inside ends the run on all processes with
    the exception's text. It ends this process with exit code 1 or 2.
    """

    def __init__(self, place: Place, only_cpu: bool) -> None:
        self._store, self.count, self.index, self.address = connect(place, only_cpu)
        self._over, self._asked, self._transforms = threading.Lock(), 0, 0
        self._transform: RowTransform | None = None
        self._head: LinearHead | None = None
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def first(self) -> bool:
        """Return whether this is the first process.

        It holds the ledger, draws the sample and the noise, and writes the run folder.
        """
        return self.index == 0

    def agree(self, facts: dict[str, str]) -> None:
        """Check that all processes hold the same facts, and connect them all.

        Raises
        ------
        ValueError
            With the first field that differs. It gives no value of "features".
        """
        host = socket.gethostname()
        self._store.key_value_set(
            f"facts/{self.index}", json.dumps(facts | {"host": host})
        )
        for i in range(1, self.count) if self.first else ():
            theirs = json.loads(
                self._store.blocking_key_value_get(f"facts/{i}", NO_TIMEOUT_MS)
            )
            for name, ours in facts.items():
                if theirs[name] != ours:
                    values = "" if name == "features" else f"{ours} and {theirs[name]} "
                    raise ValueError(
                        f"all processes must have the same {name}, got {values}on "
                        f"process 0 ({host}) and process {i} ({theirs['host']}). Give "
                        "them the same file, settings and software."
                    )
        if self.first:
            self._store.key_value_set("agreed", "")
        self._store.blocking_key_value_get("agreed", NO_TIMEOUT_MS)
        sys.stdout.flush()
        out = os.dup(1)
        os.dup2(2, 1)  # gloo prints on standard output that it has connected
        for i in range(1, self.count):  # a first transfer, before anything is charged
            self._send(i, np.zeros(1, np.int64))
        os.dup2(out, 1)
        os.close(out)

    def ask(self, process: int, ask: PartAsk) -> None:
        """Send a request for a partial sum to a process (`parts.Processes.ask`)."""
        t = ask.params.transform
        if t is not self._transform:
            self._transform, self._transforms = t, self._transforms + 1
        facts = {
            "query": type(ask.query).__name__,
            "fields": asdict(ask.query),
            "spec": ask.spec.row(),
            "clip_norm": ask.clip_norm,
        }
        facts |= {
            "n_rows": ask.n_rows,
            "transform": [self._transforms, t.unit_norm, t.append],
        }
        arrays = {
            "center": t.center,
            "scale": t.scale,
            "weights": ask.params.weights,
            "indices": ask.indices,
        }
        self._tell(process, facts, arrays)

    def receive(self, process: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return a process's partial sum (`parts.Processes.receive`)."""
        return self._send(process, np.zeros(shape, np.int64))

    def next(self) -> PartAsk | None:
        """Return the first process's next request, or None (`parts.Asked.next`).

        None means that the first process sent the head.
        """
        key = f"ask/{self.index}/{self._asked}"
        self._asked += 1
        facts, arrays = _unpack(
            self._store.blocking_key_value_get_bytes(key, NO_TIMEOUT_MS)
        )
        self._store.key_value_delete(key)
        if "loss" in facts:
            self._head = _unpack_head(facts, arrays)
            return None
        number, unit_norm, append = facts["transform"]
        # reuse the same object, so that rows kept for this transform are reused
        if number != self._transforms:
            self._transform = RowTransform(
                unit_norm, arrays.get("center"), arrays.get("scale"), append
            )
            self._transforms = number
        assert self._transform is not None
        params = Params(self._transform, arrays.get("weights"))
        query = QUERIES[facts["query"]](**facts["fields"])
        spec = ReleaseSpec(**facts["spec"])
        return PartAsk(
            query,
            params,
            spec,
            facts["clip_norm"],
            facts["n_rows"],
            arrays.get("indices"),
        )

    def answer(self, value: np.ndarray) -> None:
        """Send this process's partial sum to the first one (`parts.Asked.answer`)."""
        for i in range(1, self.count):  # every process takes part in every transfer
            self._send(i, value)

    def serve(self, own: Rows, block_sum: BlockSum, kept: KeptRows) -> LinearHead:
        """Sum this process's part of the rows until the first process has the head."""
        serve(self, own, block_sum, kept)
        assert self._head is not None
        return self._head

    def end(self, head: LinearHead) -> None:
        """Send the head to all other processes and let them end.

        Only the first process calls it.
        """
        t = head.transform
        estimate = None if head.estimate is None else asdict(head.estimate)
        facts = {
            "loss": head.loss,
            "feature_clip": head.feature_clip,
            "transform": [t.unit_norm, t.append],
            "estimate": estimate,
        }
        for i in range(1, self.count):
            self._tell(
                i,
                facts,
                {"weights": head.weights, "intercept": head.intercept} | _of(t),
            )

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and not isinstance(error, Exception):
            self._tell_end(1, f"process {self.index} of {self.count} was interrupted")
            return
        if error is not None:
            self._fail(error)
        import jax

        self._over.acquire()
        if self.first:
            self._store.key_value_set("stop", "")
        self._watcher.join()
        jax.distributed.shutdown()
        explain_aborts(False)

    def _tell(
        self, process: int, facts: dict[str, Any], arrays: dict[str, Any]
    ) -> None:
        """Send facts and arrays to one process."""
        if process == 1:
            self._asked += 1
        self._store.key_value_set_bytes(
            f"ask/{process}/{self._asked - 1}", _pack(facts, arrays)
        )

    def _send(self, process: int, value: np.ndarray) -> np.ndarray:
        """Return a process's int64 value on the first process.

        All processes must make the same calls.
        """
        try:
            return _to_first(process, value, self.index, self.count)
        except Exception as error:  # jax's own error class has no public name
            lost = process if self.first else 0
            raise LostProcess(
                f"process {lost} of {self.count} was lost "
                f"({str(error).splitlines()[0][:200]}). What was charged stays "
                "charged: give the same command again, and it continues under that "
                "charge."
            ) from error

    def _fail(self, error: BaseException) -> None:
        """Tell all processes why the run ends, and end this one."""
        code = (
            1
            if isinstance(error, LostProcess)
            or not isinstance(error, ValueError | OSError)
            else 2
        )
        text = str(error) or type(error).__name__
        if not self.first and not isinstance(error, LostProcess):
            text = (
                f"process {self.index} of {self.count} ({socket.gethostname()}) ended "
                f"the run: {text}"
            )
        self._tell_end(code, text)
        die(code, text)

    def _tell_end(self, code: int, text: str) -> None:
        """Tell all other processes why the run ends."""
        self._over.acquire()
        with suppress(Exception):  # another one said it before, or process 0 is gone
            self._store.key_value_set("stop", json.dumps([code, text]))
            time.sleep(REASON_READ_SECONDS)

    def _watch(self) -> None:
        """End this process when another one ends the run, whatever it is doing."""
        try:
            said = self._store.blocking_key_value_get("stop", NO_TIMEOUT_MS)
        except Exception:
            said = json.dumps(
                [1, f"process 0 of {self.count} ({self.address}) was lost."]
            )
        if said and self._over.acquire(blocking=False):
            time.sleep(
                REASON_READ_SECONDS if self.first else 0
            )  # the others must read it too
            die(*json.loads(said))


def _to_first(source: int, value: np.ndarray, index: int, count: int) -> np.ndarray:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices: dict[int, Any] = {}
    for device in jax.devices("cpu"):
        devices.setdefault(device.process_index, device)
    mesh = Mesh(np.array([devices[i] for i in range(count)]), ("process",))
    one_each = PartitionSpec("process")

    def move(x: Any) -> Any:
        return jax.lax.ppermute(x, "process", [(source, 0)])

    with jax.enable_x64(True):
        mine = jax.device_put(value[None], devices[index])
        whole = jax.make_array_from_single_device_arrays(
            (count, *value.shape),
            NamedSharding(mesh, one_each),
            [mine],
            dtype=value.dtype,
        )
        moved = jax.jit(
            jax.shard_map(move, mesh=mesh, in_specs=one_each, out_specs=one_each)
        )(whole)
        return np.asarray(moved.addressable_data(0))[0]


def software() -> dict[str, str]:
    """Return the versions that must be equal on all processes.

    Then one command means one thing. Processors may differ: a row's integers do not
    depend on them.
    """
    from importlib.metadata import version

    return {
        "version": " ".join(
            f"{name} {version(name)}" for name in ("dphead", "numpy", "jax")
        )
    }


def _pack(facts: dict[str, Any], arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    given = {k: v for k, v in arrays.items() if v is not None}
    np.savez(buffer, allow_pickle=False, facts=np.array(json.dumps(facts)), **given)
    return buffer.getvalue()


def _unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = dict(file)
    return json.loads(str(arrays.pop("facts"))), arrays


def _of(t: RowTransform) -> dict[str, Any]:
    """Return a transform's arrays by name."""
    return {"center": t.center, "scale": t.scale}


def _unpack_head(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> LinearHead:
    unit_norm, append = facts["transform"]
    transform = RowTransform(
        unit_norm, arrays.get("center"), arrays.get("scale"), append
    )
    estimate = (
        None if facts["estimate"] is None else AccuracyEstimate(**facts["estimate"])
    )
    return LinearHead(
        arrays["weights"],
        arrays["intercept"],
        transform,
        facts["loss"],
        estimate,
        feature_clip=facts["feature_clip"],
    )
