"""`CacheKeeper`: prefix caches of served models <-> files of one folder (`weft serve --keep DIR`).

    keeper = CacheKeeper(Path("caches"))
    keeper.add(served)      load DIR/NAME.cache, before the model's first request
    keeper.mark_used()      a request is about to run: the files will be older than the caches
    keeper.start()          a thread that saves after 10 minutes without a request
    keeper.finish()         after the drain: end the thread, save what the files lack

Files are those of engine/cache_file.py: mode 0600 and replaced atomically, so a killed process
leaves the last complete one. Cached prefixes keep their namespaces, which are derived from the API
keys, so after a restart a key finds only its own prefixes. A file that cannot be read or written is
only a warning. A save runs in the engine thread between two steps, at a time without requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from weft.checkpoint.atomic import make_folder
from weft.core.errors import UsageError, WeftError
from weft.serve.served_model import ServedModel

log = logging.getLogger(__name__)

IDLE_SECONDS = 600.0
CHECK_SECONDS = 5.0
PROBLEMS = (WeftError, OSError, RuntimeError, MemoryError)
"""What a damaged file, a full disk or an engine that has stopped may raise."""


class CacheKeeper:
    """Keeps the caches of one server. Tests pass their own clock."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Raises a UsageError if the folder cannot be made."""
        try:
            make_folder(folder)
        except OSError as error:
            raise UsageError(
                f"keep is {folder}, where no folder can be made ({error.strerror}). Name another "
                "folder."
            ) from None
        self.folder, self.now = folder, now
        self.models: list[ServedModel] = []
        self.last_use = now()
        self.is_changed = False
        """Whether a request has begun since the last save."""
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, name="weft-keep", daemon=True)

    def path_of(self, served: ServedModel) -> Path:
        """The file of a model; names may contain slashes."""
        return self.folder / f"{quote(served.name, safe='')}.cache"

    def add(self, served: ServedModel) -> None:
        """Load the file of a model that has served no request yet, if there is one."""
        if served.kind == "encoder":  # nothing is cached between its requests
            return
        path = self.path_of(served)
        try:
            if path.exists():
                loaded = served.engine.call(lambda engine: engine.load_cache(path)).result()
                log.info("model=%s cache=loaded content='%s'", served.name, loaded)
        except PROBLEMS as error:
            log.warning("model=%s cache=empty reason='%s'", served.name, error)
        self.models.append(served)

    def mark_used(self) -> None:
        """A request begins whose keys and values may be cached: every one but those for vectors of
        texts, which leave nothing. Called before its answer, so a save after it sees the mark."""
        self.last_use, self.is_changed = self.now(), True

    def start(self) -> None:
        self.thread.start()

    def run(self) -> None:
        while not self.stopped.wait(CHECK_SECONDS):
            self.check()

    def check(self) -> None:
        """Save if no request has begun for a while and none is running."""
        is_idle = all(served.engine.engine.is_idle for served in list(self.models))
        if is_idle and self.now() - self.last_use >= IDLE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the files, unless no request has run since they were written."""
        with self.lock:
            if not self.is_changed:
                return
            self.is_changed = False
            for served in list(self.models):
                self.save_model(served)

    def save_model(self, served: ServedModel) -> None:
        path = self.path_of(served)
        try:
            saved = served.engine.call(lambda engine: engine.save_cache(path)).result()
            log.info("model=%s cache=saved content='%s'", served.name, saved)
        except PROBLEMS as error:
            log.warning("model=%s cache=not_saved reason='%s'", served.name, error)

    def finish(self) -> None:
        """End the thread and save; before the engines are closed."""
        self.stopped.set()
        self.save()
