"""The callable model: it takes the arguments of the original module, and returns outputs of the same structure."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.errors import PackageError, UsageError
from trtbuild.runtime.calls.arguments import Arguments, ArrayOperations, Decision
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.output_tree import restorer
from trtbuild.runtime.calls.state import State
from trtbuild.runtime.calls.stitching import StitchedParts
from trtbuild.runtime.memory.device_memory import Memory

#: The largest number of streams whose `Call` objects are cached for a set of shapes.
_MOST_STREAMS = 64


class Runner:
    """Runs a package for positional and keyword tensors. Calls from several threads are safe. For a model with state,
    each thread needs its own `session`.

    `device` is the device of inputs and outputs (``cpu``, ``cuda:0``). `target` is the name of the target whose engines
    run. It is None if the reference program runs.
    """

    def __init__(
        self,
        index: PackageIndex,
        stitched: StitchedParts,
        arrays: ArrayOperations,
        memory: Memory | None,
        target: str | None,
        state: State | None = None,
    ) -> None:
        self.index = index
        self.device = str(arrays.device)
        self.target = target
        self._arguments = Arguments(index, arrays)
        self._stitched: StitchedParts | None = stitched
        #: Name of a partition → the object that runs it.
        self.parts = stitched.parts
        self._memory = memory
        self._arrays = arrays
        self._state = state
        self._device = arrays.device
        self._restore = restorer(index.output_tree)
        #: The sessions that this runner has created. `close` closes them, too.
        self._sessions: weakref.WeakSet[Runner] = weakref.WeakSet()
        #: The runner that has created this session, or None.
        self._parent: Runner | None = None

    @property
    def is_reference(self) -> bool:
        """Whether the reference program computes the whole model, without engines."""
        return self.target is None

    @property
    def memory(self) -> Memory | None:
        """The memory of the GPU that the package runs on. It is None on the CPU."""
        return self._memory

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs of the original module. They are new tensors, except inputs that the module returns. On a
        GPU, the caller's stream may still be computing them when the call returns. Raises CallRefused for arguments that
        the model does not accept."""
        memory = self._memory
        if memory is None or memory.is_device_current():
            return self._restore(self._run(args, kwargs, memory))
        with memory.on_device():
            return self._restore(self._run(args, kwargs, memory))

    def flat_outputs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Compute the outputs as a sequence, in the order of the package's index."""
        memory = self._memory
        if memory is None or memory.is_device_current():
            return self._run(args, kwargs, memory)
        with memory.on_device():
            return self._run(args, kwargs, memory)

    def _run(self, args: Sequence[Any], kwargs: dict[str, Any], memory: Memory | None) -> Sequence[Any]:
        stitched = self._stitched
        if stitched is None:
            raise self._closed_error()
        stream = 0 if memory is None else memory.stream()
        try:
            inputs, decision, adopted = self._arguments.bind(args, kwargs, stream)
            call = decision.calls.get(stream)
            if call is None:
                call = self._new_call(decision, stream, stitched.is_one_part)
            if self._state is None:
                outputs = stitched(inputs, call)
            else:
                with self._state.call(stream) as state:
                    outputs = state.keep(inputs, stitched([*inputs, *state.arrays], call))
        except RuntimeError:  # torch's error for tensors without a shape or an address
            self._arguments.explain(args, kwargs)
            raise
        if adopted and memory is not None:  # keeps arrays of other libraries until the GPU has finished this call
            memory.record_call(stream)
        return outputs

    # -- state

    def session(self, *, advances: bool = True) -> Runner:
        """Return a runner of the same engines with its own state, which begins with the first values in the package.

        They are the values that the buffers had in the trace or, if the weights file has these buffers, the values in this
        file. If `advances` is False, calls do not change this state. Raises UsageError for a model without state."""
        state, stitched = self._own_state("session()"), self._stitched
        if stitched is None:
            raise self._closed_error()
        session = Runner(
            self.index, stitched, self._arrays, self._memory, self.target, state.new_session(advances=advances)
        )
        session._parent = self  # keeps this runner alive, so that `close` reaches sessions of sessions
        self._sessions.add(session)
        return session

    def reset_state(self) -> None:
        """Begin again with the first values of the state. Raises UsageError for a model without state, and CallRefused
        while another thread is in a call."""
        self._own_state("reset_state()").reset()

    def get_state(self) -> dict[str, Any]:
        """Return buffer name → a copy of its present value. Raises the errors of `reset_state`."""
        state = self._own_state("get_state()")
        with self._on_device() as stream:
            return state.get(stream)

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Copy `values` (buffer name → value) into the state. Other buffers keep their values. Raises the errors of
        `reset_state`, and CallRefused for an unknown name or a wrong dtype, shape or device."""
        state = self._own_state("set_state()")
        with self._on_device() as stream:
            try:
                state.set(values, stream)
            finally:
                if self._memory is not None:
                    self._memory.record_call(stream)  # keeps arrays of other libraries only until they are copied

    def _own_state(self, call: str) -> State:
        if self._state is None:
            raise UsageError(
                f"the model {self.index.model!r} has no state, so {call} has no effect",
                hint="to keep buffers between calls, declare them as `state` and build again",
            )
        return self._state

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[int]:
        """Make the GPU the current device in the block, and yield the caller's stream. On the CPU, yield 0."""
        if self._memory is None:
            yield 0
            return
        with self._memory.on_device():
            yield self._memory.stream()

    def _closed_error(self) -> PackageError:
        return PackageError(f"the package of {self.index.model!r} is closed", hint="load it again")

    def _new_call(self, decision: Decision, stream: int, is_one_part: bool) -> Call:
        if len(decision.calls) >= _MOST_STREAMS:
            decision.calls.clear()
        call = decision.calls[stream] = Call(
            decision.profile, decision.sizes, stream, self._device, has_fixed_shapes=is_one_part
        )
        return call

    def close(self) -> None:
        """Free the parts, and close all sessions. Later calls of this runner and of its sessions raise PackageError."""
        self._stitched, self.parts = None, {}
        for session in list(self._sessions):
            session.close()

    def __repr__(self) -> str:
        return f"<trtbuild {self.summary()}>"

    def summary(self) -> str:
        """Describe the model and its device, for messages."""
        name = repr(self.index.model)
        if self.is_reference:
            return f"{name} on the CPU: the reference program in {self.index.reference_library}, no engine"
        return f"{name} on {self.device}: engines of target {self.target!r}"


def as_torch_module(runner: Runner) -> Any:
    """Create a ``torch.nn.Module`` around `runner`. The module has no parameters, so it cannot be trained: the weights are
    in the engines or in the reference program."""
    return _module_class()(runner)


@functools.cache
def _module_class() -> type:
    import torch

    any_global_hook = torch.nn.modules.module._has_any_global_hook

    class PackageModule(torch.nn.Module):  # type: ignore[misc]
        """The module of a package, which calls `runner`."""

        def __init__(self, runner: Runner) -> None:
            super().__init__()
            self.runner = runner
            self.training = False
            self._call = runner.__call__

        @property
        def is_reference(self) -> bool:
            return self.runner.is_reference

        @property
        def device(self) -> torch.device:
            return torch.device(self.runner.device)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.runner(*args, **kwargs)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if (  # the same checks as in torch.nn.Module before `forward`, but a microsecond faster
                self._forward_hooks
                or self._forward_pre_hooks
                or self._backward_hooks
                or self._backward_pre_hooks
                or self._compiled_call_impl is not None
                or any_global_hook()
            ):
                return super().__call__(*args, **kwargs)
            return self._call(*args, **kwargs)

        def session(self) -> Any:
            return _module_class()(self.runner.session())

        def reset_state(self) -> None:
            self.runner.reset_state()

        def get_state(self) -> dict[str, Any]:
            return self.runner.get_state()

        def set_state(self, values: Mapping[str, Any]) -> None:
            self.runner.set_state(values)

        def to(self, *args: Any, **kwargs: Any) -> Any:
            device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
            if dtype is not None:
                raise self._cannot_move(f"to {dtype}", "build the model with another precision")
            if device is not None:
                self._check_device(device)
            return self

        def cuda(self, device: Any = None) -> Any:
            self._check_device(
                torch.device("cuda") if device is None else torch.device("cuda", torch.device(device).index)
            )
            return self

        def cpu(self) -> Any:
            self._check_device(torch.device("cpu"))
            return self

        def _check_device(self, device: torch.device) -> None:
            if device.type != self.device.type or device.index not in (None, self.device.index):
                raise self._cannot_move(f"to {device}", f'load the package with device="{device}"')

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            return self  # half() and similar methods call this, and so does a parent module that is moved

        def _cannot_move(self, destination: str, hint: str) -> PackageError:
            return PackageError(f"{self.runner.summary()}; it cannot be moved {destination}", hint=hint)

        def extra_repr(self) -> str:
            return self.runner.summary()

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, memo: Any) -> Any:
            if not self.runner.index.state:
                return self
            session = self.session()  # as in torch, the copy begins with the present state, and does not share it
            session.set_state(self.get_state())
            return session

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise PackageError(
                f"{self.runner.summary()}; it cannot be pickled, and torch.save pickles what it saves",
                hint="write a compiled module with save(PATH), and open it with trtbuild.load(PATH).module(); "
                "pass the path to other processes",
            )

    return PackageModule
