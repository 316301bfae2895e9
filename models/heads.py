"""What was learnt, as numbers: a function for each question, and how far each can be trusted. Stored without pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fuseplan.errors import OptionError
from fuseplan.models import features
from fuseplan.models.conformal import Bands
from fuseplan.models.cost import NINE_OF_TEN
from fuseplan.models.features import Looking
from fuseplan.models.fit import Weights
from fuseplan.models.learners import Fitted, fitted_of
from fuseplan.models.machine import Machine
from fuseplan.models.model import Question
from fuseplan.models.roofline import Rates
from fuseplan.models.support import Support

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FORMAT = 1
HEADS = ("device", "host", "fails", "near", "error")
HOST_FLOOR_US = 0.5
"""Added to host times before their ratio is taken: on a CPU they are nothing."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions of many questions, as arrays in their order."""

    device_us: Floats
    host_us: Floats
    spread: Floats
    fails: Floats
    near: Floats
    novelty: Floats
    """What is above one is unsure: the error that is expected, or the distance to what was learnt from, if that is more."""
    error: Floats
    """The error that is expected, in log time."""


@dataclass(frozen=True, eq=False)
class Heads:
    """One fit: what it was fitted on is in `about`, for people."""

    machine: Machine
    rates: Rates
    functions: Mapping[str, Fitted]
    """By the names in HEADS: log ratios to the roofline, log odds, and the log of the error to expect."""
    support: Support
    bands: Bands
    pairs: Mapping[tuple[str, str], float]
    """By which factor of the errors to expect nine of ten differences inside a region are within, by two executors."""
    limit: float
    """The error to expect from which on an answer is unsure."""
    about: Mapping[str, Any]

    def answer(self, questions: Sequence[Question], looking: Looking) -> Answers:
        """All that is known of these questions."""
        import numpy as np

        table = QuestionTable.of(questions, looking, self.rates)
        ratio, scatter = map(_rounded, self.functions["device"].both(table.features))
        device = table.device_us * np.exp(ratio)
        error = np.exp(_rounded(self.functions["error"].predict(with_scatter(table.features, scatter, ratio))))
        factor = self.bands.all([executor for _, executor, _ in questions], device)
        called = np.exp(_rounded(self.functions["host"].predict(table.features)))
        return Answers(
            device,
            np.maximum((table.host_us + HOST_FLOOR_US) * called - HOST_FLOOR_US, 0.0),
            error * factor / NINE_OF_TEN,
            _odds(_rounded(self.functions["fails"].predict(table.features))),
            _odds(_rounded(self.functions["near"].predict(table.features))),
            np.maximum(error / self.limit, _rounded(self.support.distance(table.features))),
            error,
        )

    def pair(self, first: str, second: str) -> float:
        """The factor for a difference between two executors."""
        return self.pairs.get((min(first, second), max(first, second)), self.pairs[("", "")])

    def dump(self) -> bytes:
        """All of it as one NumPy archive without objects."""
        import numpy as np

        meta = {
            "format": FORMAT,
            "features": features.VERSION,
            "machine": asdict(self.machine),
            "device": {name: asdict(one) for name, one in self.rates.device.items()},
            "host": {name: asdict(one) for name, one in self.rates.host.items()},
            "variants": [[*choice, factor] for choice, factor in self.rates.variants.items()],
            "classes": [[*one, factor] for one, factor in self.bands.classes.items()],
            "executors": dict(self.bands.executors),
            "overall": self.bands.overall,
            "pairs": [[*one, factor] for one, factor in self.pairs.items()],
            "limit": self.limit,
            "about": dict(self.about),
        }
        arrays = {
            f"{head}/{name}": one
            for head, function in self.functions.items()
            for name, one in function.arrays().items()
        }
        arrays |= {f"support/{name}": one for name, one in self.support.arrays().items()}
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)
        return file.getvalue()

    @staticmethod
    def load(content: bytes) -> Heads:
        """What `dump` gave. Raises OptionError for anything else."""
        import zipfile

        import numpy as np

        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                parts: dict[str, dict[str, Any]] = {head: {} for head in (*HEADS, "support")}
                for key in file.files:
                    head, _, name = key.partition("/")
                    if name:
                        parts[head][name] = file[key]
            if (meta["format"], meta["features"]) != (FORMAT, features.VERSION):
                raise ValueError(f"format {meta['format']}, features {meta['features']}")
            functions = {head: fitted_of(parts[head]) for head in HEADS}
            return _heads(meta, functions, Support.of(parts["support"]))
        except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise OptionError(f"not a fitted model of this version: {error}") from error


@dataclass(frozen=True, eq=False)
class QuestionTable:
    """Questions as arrays: their features, and what the roofline says."""

    features: Any
    device_us: Floats
    host_us: Floats

    @staticmethod
    def of(questions: Sequence[Question], looking: Looking, rates: Rates) -> QuestionTable:
        """Look at all of `asked`."""
        import numpy as np

        seen = looking.at(questions)
        rows = np.frombuffer(b"".join([one.packed for one in seen]), np.float32).reshape(len(seen), -1)
        factors = np.array([rates.factor(*one) if one[2] != "default" else 1.0 for one in questions])
        device = np.array([one.device for one in seen], ndmin=2).reshape(len(seen), -1)
        host = np.array([one.host for one in seen], ndmin=2).reshape(len(seen), -1)
        device_us, host_us = np.zeros(len(seen)), np.zeros(len(seen))
        names = np.array([executor for _, executor, _ in questions])
        for executor in sorted(set(names.tolist())):
            mine = names == executor
            device_us[mine] = (device[mine] * rates.device_weights(executor).values).sum(axis=1)
            host_us[mine] = (host[mine] * rates.host_weights(executor).values).sum(axis=1)
        return QuestionTable(rows, device_us * factors, host_us)


def with_scatter(rows: Any, scatter: Floats, ratio: Floats) -> Any:
    """The features that the error to expect is learnt from: what is predicted, and how far apart its parts are, too."""
    import numpy as np

    return np.column_stack([rows, np.log(scatter + 1e-3), ratio]).astype(np.float32)


def _rounded(values: Floats) -> Floats:
    """Sums come out otherwise in the last digits where a question is asked among others: the answer must not."""
    return values.round(9)


def _odds(log_odds: Floats) -> Floats:
    import numpy as np

    found: Floats = 1.0 / (1.0 + np.exp(-np.clip(log_odds, -30.0, 30.0)))
    return found


def _heads(meta: Mapping[str, Any], functions: Mapping[str, Fitted], support: Support) -> Heads:
    machine = dict(meta["machine"])
    machine["matmul_tflops"] = tuple((str(dtype), float(rate)) for dtype, rate in machine["matmul_tflops"])
    rates = Rates(
        {name: _weights(one) for name, one in meta["device"].items()},
        {name: _weights(one) for name, one in meta["host"].items()},
        {(executor, variant): float(factor) for executor, variant, factor in meta["variants"]},
    )
    found = Bands(
        {(executor, int(size)): float(factor) for executor, size, factor in meta["classes"]},
        {name: float(factor) for name, factor in meta["executors"].items()},
        float(meta["overall"]),
    )
    pairs = {(first, second): float(factor) for first, second, factor in meta["pairs"]}
    limit = float(meta["limit"])
    return Heads(Machine(**machine), rates, functions, support, found, pairs, limit, meta["about"])


def _weights(fields: Mapping[str, Any]) -> Weights:
    doubt = tuple(tuple(map(float, row)) for row in fields["doubt"])
    return Weights(tuple(map(float, fields["values"])), doubt, float(fields["noise"]))
