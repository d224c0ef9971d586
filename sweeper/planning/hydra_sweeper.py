"""Hydra's Sweeper plugin, which gives us the loader that composes configurations."""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from sweeper.cards import CONF
from sweeper.planning import config_files
from sweeper.planning.composer import Composer
from sweeper.planning.hydra_errors import explained
from sweeper.planning.schema import Keys


class DesignSweeper(Sweeper):
    """Hands Hydra's loader to the task function. No job is launched through Hydra.

    Hydra's own composition sees none of the user's keys: it would leave swept groups at their defaults, and refuse
    `model=mlp,small model.width=64` because the default model has no width.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.task_function, self.loader, self.composed = task_function, hydra_context.config_loader, config

    def sweep(self, arguments: list[str]) -> Any:
        return self.task_function(Composer(self.loader, self.composed))


def _register() -> None:
    """Hydra 1.3.8 imports even a registered plugin by name, and only from a module below `hydra_plugins`.

    A package of that name in our wheel would be found in checkouts and wheels but not in editable installs, so the
    module is created here. From 1.4 on `register` alone is enough.
    """
    module = types.ModuleType("hydra_plugins.sweeper_designs")
    module.DesignSweeper = DesignSweeper  # type: ignore[attr-defined]
    DesignSweeper.__module__ = module.__name__
    plugins = Plugins.instance()  # first: it searches the real package for other plugins
    sys.modules.setdefault("hydra_plugins", types.ModuleType("hydra_plugins"))
    sys.modules[module.__name__] = module
    sys.modules["hydra_plugins"].sweeper_designs = module  # type: ignore[attr-defined]
    plugins.register(DesignSweeper)
    config_files.register()
    ConfigStore.instance().store(name="keys", node=Keys)


def composer_of(arguments: Sequence[str]) -> Composer:
    """The composer of a command line with these flags and overrides of Hydra's own. Raises Mistake."""
    found: list[Composer] = []
    run_hydra(["--multirun", *arguments], found.append)
    return found[0]


def run_hydra(arguments: Sequence[str], task: Callable[[Composer], None]) -> None:
    """Call Hydra with these arguments. sys.argv and the environment, through which it takes them, are restored."""
    _register()
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["sweeper", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise exceptions instead of printing a page on stderr
    try:
        with explained(), warnings.catch_warnings():
            warnings.filterwarnings("error", "provider=", UserWarning)  # of a missing folder
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    finally:
        HydraConfig.instance().cfg = None  # --info sets it, and ${hydra:...} has no value in a sweep
        sys.argv = argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if full is not None:
            os.environ["HYDRA_FULL_ERROR"] = full


def never(composer: Composer) -> None:
    """The task of a call in which Hydra only shows something."""
    raise AssertionError("Hydra was called to show something, and ran a sweep")
