"""Small types of the fake: enumerations, ``Dims``, base classes, and the exception for the end of a process."""

from __future__ import annotations

import enum
import operator
from typing import Any


class ProcessEnded(BaseException):
    """The real TensorRT would end the process here. `status` is negative for a signal: -11 for SIGSEGV.

    This is not a subclass of Exception, so that ``except Exception`` does not catch it.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"a real process ends here with {status}")
        self.status = status


class Dims:
    """A shape as TensorRT's Python module returns it, without ``__iter__``. None stands for an unknown shape: then ``len``
    raises ValueError, because ``__len__`` returns -1."""

    def __init__(self, sizes: tuple[int, ...] | None) -> None:
        self._sizes = sizes

    def __len__(self) -> int:
        return -1 if self._sizes is None else len(self._sizes)

    def __getitem__(self, index: Any) -> Any:
        if self._sizes is None:
            raise IndexError
        if isinstance(index, slice):
            return self._sizes[index]
        return self._sizes[operator.index(index)]

    def __str__(self) -> str:
        return "(0)" if self._sizes is None else str(self._sizes)


class DataType(enum.Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8 = range(6)


class Mode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class Location(enum.Enum):
    DEVICE, HOST = range(2)


class Severity(enum.Enum):
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __str__(self) -> str:
        return f"Severity.{self.name}"


class Logger:
    INTERNAL_ERROR, ERROR, WARNING = Severity.INTERNAL_ERROR, Severity.ERROR, Severity.WARNING

    def __init__(self) -> None:
        pass

    def log(self, severity: Any, text: str) -> None:
        raise NotImplementedError


class Base:
    """The base of Python classes whose methods TensorRT calls."""

    def __init__(self) -> None:
        pass


#: torch's name of an element type → the member of `DataType`.
DTYPES = {"float32": "FLOAT", "float16": "HALF", "int32": "INT32", "bool": "BOOL", "uint8": "UINT8"}
