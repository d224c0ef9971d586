"""A program of the user's own while it is followed without data: where it ends, and what it must not do meanwhile.

A file of tensors that have no data would replace the user's own file by nothing, so none is written. Ranks are
processes of their own, which are not followed.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from inspect import isfunction
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes
from torch.optim.optimizer import register_optimizer_step_pre_hook

from runners.simulation.late_imports import Adaptation, adapted
from runners.simulation.torch_replaced import intercepted
from runners.simulation.torch_saved_models import SavedModels, write_holes
from runners.simulation.torch_tracer import MetaTracer
from runners.simulation.torch_unwritten_files import UnwrittenFiles, lacks_data
from runners.workloads import python_program
from runners.workloads.python_program import Ended, go_on_as

HOOK = Path(python_program.__file__).parent / "program_hook"
CHILDREN = "SWEEPER_PROGRAM_CHILDREN"  # the hook reads it
META = torch.device("meta")
NEVER_REACHED = {"tolerance_grad": -1.0, "tolerance_change": -math.inf}
LAUNCHES = "accelerate.commands.launch"
# Methods that write a model as a folder.
SAVES_A_MODEL = {
    "transformers.modeling_utils": "PreTrainedModel.save_pretrained",
    "peft.peft_model": "PeftModel.save_pretrained",
    "diffusers.models.modeling_utils": "ModelMixin.save_pretrained",
    "sentence_transformers.SentenceTransformer": "SentenceTransformer.save",
}


class OptimizerSteps:
    """Counts the steps of the optimizer that steps first, and ends the program before one more than `most` of them."""

    def __init__(self, most: int | None, end: Callable[[], None]) -> None:
        """`end` is called where the program ends. Without `most` the program goes on to its own end."""
        self.count = 0
        self.over = False
        self._most, self._end = most, end
        self._first: weakref.ref[Any] | None = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        handle = register_optimizer_step_pre_hook(self._begins)
        try:
            yield
        finally:
            handle.remove()

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._first() is not optimizer:
            return
        if self.over or self.count == self._most:
            if not self.over:
                self._end()
            self.over = True
            raise Ended(0, at_once=False)
        self.count += 1


class FollowedProgram:
    """Entered around a program, inside its device."""

    def __init__(self, tracer: MetaTracer) -> None:
        self._tracer = tracer
        self._unwritten = UnwrittenFiles()
        self._models = SavedModels()
        self._offloaded = _BytesAtOnce()
        self._processes = 0  # of multiprocessing, that import the program anew
        self._children = ""  # the folder of their reports

    def notes(self) -> list[str]:
        """What happened otherwise than on a real device, or is not determined there."""
        found = [note] if (note := self._unwritten.note()) is not None else []
        if self._processes:
            found.append(f"processes of multiprocessing that were started, and are not followed: {self._processes}")
        if threads := self._tracer.unordered_threads:
            found.append(
                f"threads that allocate while others do: {threads}; their order varies, and one of them is shown"
            )
        if self._offloaded.most:
            found.append(f"torch.autograd.graph.save_on_cpu kept up to {self._offloaded.most} bytes on the host")
        return found

    @contextmanager
    def followed(self) -> Iterator[None]:
        with ExitStack() as stack:

            def intercept(function: Any, by: Callable[..., Any]) -> None:
                stack.enter_context(intercepted(function, by))

            stack.enter_context(self._unwritten.entered())
            intercept(torch.save, self._save)
            intercept(torch.load, self._load)
            intercept(torch._utils._rebuild_tensor, _rebuilt)
            intercept(torch.optim.LBFGS.step, self._to_its_last_iteration)
            intercept(sys.modules[torch.optim.LBFGS.__module__]._strong_wolfe, _line_search)
            if not self._tracer.counts_host:
                intercept(torch.autograd.graph.save_on_cpu.__init__, self._offload)
            for name in ("export", "draft_export"):  # PyTorch 2.5 lacks the second
                if hasattr(torch.export, name):
                    intercept(getattr(torch.export, name), self._refuse_export)
            if torch.distributed.is_available():
                intercept(torch.distributed.init_process_group, self._refuse_ranks)
            intercept(start_processes, self._refuse_ranks)
            intercept(multiprocessing.process.BaseProcess.start, self._start_process)
            stack.enter_context(adapted(self._libraries()))
            yield

    def _libraries(self) -> Mapping[str, Adaptation]:
        """What is intercepted of modules that the program may import."""
        safetensors: dict[str, Callable[..., Any]] = {
            "save_file": self._save_safetensors,
            "load_file": self._load_safetensors,
            "save_model": self._save_elsewhere,
        }
        found: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
            LAUNCHES: self._launching_here,
            "safetensors.torch": partial(_intercepting, safetensors),
            **{name: partial(_intercepting, {method: self._save_model}) for name, method in SAVES_A_MODEL.items()},
        }
        return {name: Adaptation(nullcontext, imported) for name, imported in found.items()}

    def _launching_here(self, module: Any) -> AbstractContextManager[None]:
        """Have `accelerate launch` run one process's program in this process. Its other launchers start ranks."""
        launchers = {name for name, each in vars(module).items() if name.endswith("_launcher") and isfunction(each)}
        by: dict[str, Callable[..., Any]] = dict.fromkeys(launchers, self._refuse_ranks)
        return _intercepting({**by, "simple_launcher": self._launch}, module)

    def _launch(self, launch: Any, args: Any) -> None:
        if max(args.num_processes or 1, args.num_machines or 1) > 1:
            self._refuse_ranks(launch)
        go_on_as(*sys.modules[LAUNCHES].prepare_simple_launcher_cmd_env(args))

    @contextmanager
    def children_reported(self) -> Iterator[None]:
        """Have the Python processes that the program starts report what they do that is not calculated.

        Enter inside `followed`, in the process in which the program runs: `followed` may be entered in a template.
        """
        before = {name: os.environ.get(name) for name in ("PYTHONPATH", CHILDREN)}
        owner = os.getpid()
        folder = mkdtemp(prefix="sweeper-")  # no TemporaryDirectory: what runs at the end of a program would remove it
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOOK), before["PYTHONPATH"]]))
        os.environ[CHILDREN] = self._children = folder
        try:
            yield
        finally:
            if os.getpid() == owner:
                self._models.remove()
                self._read_reports(Path(folder))
                shutil.rmtree(folder, ignore_errors=True)
                for name, value in before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value

    def _read_reports(self, folder: Path) -> None:
        for report in sorted(folder.iterdir()):
            command, _, what = report.read_text(errors="replace").rpartition("\n")
            self._tracer.unavailable(f"a process that the program started {what}, which is not calculated: {command}")

    def _start_process(self, start: Any, process: Any) -> None:
        """Start a process of multiprocessing. Workers of data loaders do nothing else than prepare data."""
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
        target = getattr(process, "_target", None)
        if method != "fork" and not str(getattr(target, "__module__", "")).startswith("torch.utils.data"):
            self._processes += 1
        start(process)

    def _refuse_ranks(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if self._tracer.is_elsewhere:  # in a process that the program has forked
            text = f"{multiprocessing.current_process().name}\nis one of several ranks"
            Path(self._children, f"{os.getpid()}.txt").write_text(text)
        raise self._tracer.unavailable(
            f"{function.__module__}.{function.__name__}: the ranks of a program are processes of their own, which are "
            "not calculated"
        )

    def _to_its_last_iteration(self, step: Any, optimizer: Any, closure: Any) -> Any:
        """Its tolerances are compared with numbers that are not calculated: none of them ends it early."""

        def evaluated() -> Any:
            with self._tracer.assumptions.without_bound():
                return closure()

        group = optimizer.param_groups[0]
        tolerances = {name: group[name] for name in NEVER_REACHED}
        group.update(NEVER_REACHED)
        bound = f"at most max_iter={group['max_iter']} iterations"
        try:
            with self._tracer.assumptions.within("torch.optim.LBFGS", bound):
                return step(optimizer, evaluated)
        finally:
            group.update(tolerances)

    def _offload(self, init: Any, hooks: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        """torch.autograd.graph.save_on_cpu, which nobody reads on the host: no numbers are assumed for it there."""

        def keep(tensor: torch.Tensor) -> tuple[Any, torch.Tensor]:
            if not tensor.is_cuda:
                return tensor.device, tensor
            kept = torch.empty(tensor.size(), dtype=tensor.dtype)  # its pages are never touched
            self._offloaded.add(kept)
            return tensor.device, kept

        def bring(packed: tuple[Any, torch.Tensor]) -> torch.Tensor:
            device, kept = packed
            return kept.to(device, non_blocking=pin_memory)

        torch.autograd.graph.saved_tensors_hooks.__init__(hooks, keep, bring)

    def _refuse_export(self, export: Any, *_: Any, **__: Any) -> Any:
        raise self._tracer.unavailable(
            f"torch.export.{export.__name__} cannot be traced without data: it follows the program itself, on tensors "
            "of its own that have no memory; the module that it was given can be called instead"
        )

    def _save(self, save: Any, what: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, io.BytesIO) or not lacks_data(what):  # what is in memory replaces nothing
            return save(what, file, *args, **kwargs)
        if self._models.takes(file):
            return save(what, file, *args, **kwargs)
        self._unwritten.save(save, what, file, *args, **kwargs)
        return None

    def _load(self, load: Any, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self._unwritten.has(file):
            file = self._unwritten.open(file)
            kwargs.pop("mmap", None)
        return load(file, partial(_located, map_location), *args, **kwargs)

    def _save_safetensors(self, save: Any, tensors: Any, filename: Any, metadata: Any = None) -> Any:
        if not lacks_data(tensors):
            return save(tensors, filename, metadata)
        if self._models.takes(filename):
            write_holes(tensors, filename, metadata)
            return None
        self._unwritten.save(torch.save, dict(tensors), filename)
        return None

    def _load_safetensors(self, load: Any, filename: Any, device: Any = "cpu") -> Any:
        if not self._unwritten.has(filename):
            return load(filename, device)
        return torch.load(filename, map_location=torch.device(device), weights_only=True)

    def _save_model(self, save: Any, what: Any, *args: Any, **kwargs: Any) -> Any:
        name = next((each for each in ("save_directory", "path") if each in kwargs), None)
        folder = args[0] if args else kwargs[name] if name else None
        if not isinstance(folder, (str, os.PathLike)) or os.path.isfile(folder) or not lacks_data(what):
            return save(what, *args, **kwargs)
        if not self._models.takes(folder):
            self._unwritten.name(folder)

        def save_to(other: str) -> Any:
            if args:
                return save(what, other, *args[1:], **kwargs)
            return save(what, **{**kwargs, str(name): other})

        return self._models.save(save_to, os.fspath(folder))

    def _save_elsewhere(self, save: Any, what: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        """By a library that loads it with code of its own."""
        if not lacks_data(what):
            return save(what, file, *args, **kwargs)
        self._unwritten.name(file)
        return None


@contextmanager
def _intercepting(functions: Mapping[str, Callable[..., Any]], module: Any) -> Iterator[None]:
    """Intercept functions and methods of a module, by their names in it."""
    with ExitStack() as stack:
        for path, by in functions.items():
            kind, _, name = path.rpartition(".")
            stack.enter_context(intercepted(vars(getattr(module, kind) if kind else module)[name], by))
        yield


def _line_search(
    search: Any,
    objective: Any,
    x: Any,
    step: Any,
    direction: Any,
    loss: Any,
    gradient: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[Any, torch.Tensor, Any, int]:
    """That of torch.optim.LBFGS, whose length depends on numbers: two evaluations that are counted as one, the second
    of them with the gradients at both ends of the interval."""
    ends = [gradient.clone(), objective(x, step, direction)[1].clone()]
    loss, gradient = objective(x, step, direction)
    del ends
    return loss, gradient, step, 1


class _BytesAtOnce:
    """The bytes of tensors that are alive, and the most of them at once."""

    def __init__(self) -> None:
        self.most = self._now = 0

    def add(self, tensor: torch.Tensor) -> None:
        self._now += tensor.nbytes
        self.most = max(self.most, self._now)
        weakref.finalize(tensor, self._forget, tensor.nbytes)

    def _forget(self, count: int) -> None:
        self._now -= count


def _located(map_location: Any, storage: Any, location: str) -> Any:
    """Where torch.load puts a storage: on the program's device one without data."""
    if callable(map_location):
        return map_location(storage, location)
    if isinstance(map_location, Mapping):
        location = map_location.get(location, location)
    elif map_location is not None:
        location = str(torch.device(map_location))
    if location.startswith("cuda"):
        return torch.UntypedStorage(storage.nbytes(), device="meta")  # type: ignore[no-untyped-call]
    return storage


def _rebuilt(rebuild: Any, storage: Any, *args: Any) -> Any:
    """A tensor of a file, or of another process, that has data keeps it, where a program's own have none too."""
    device = torch._C.StorageBase.device.__get__(storage._untyped_storage)  # type: ignore[attr-defined]
    if device == META:
        return rebuild(storage, *args)
    with torch._C.DisableTorchFunction():
        return rebuild(storage, *args)
