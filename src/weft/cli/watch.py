"""`weft generate --watch`: run a generation step by step and show it: tokens with alternatives, the
page pool and the radix tree.

The engine has no thread here: this loop runs one step, reads the state of the cache, draws, and
looks for a key, so that what is shown belongs to the tokens beside it. On a terminal the view is
redrawn, and its last state stays above the text; otherwise each token is one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.cli.live_screen import LiveScreen, can_redraw
from weft.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.engine.loaded_model import LoadedModel
    from weft.engine.request import RequestOutput
    from weft.engine.request_builder import GenerationOptions
    from weft.look.watch_state import CacheState, WatchLog

MAX_SAMPLES = 256
FRAME_SECONDS = 1 / 25
"""Time between two drawings; every step is drawn while it is paused."""
WAIT_SECONDS = 0.2
"""While it is paused: time after which a changed size of the terminal is noticed."""


def check_watch(json: bool, prompts: Sequence[str], n: int) -> None:
    """Raise a UsageError for options that --watch cannot be used with."""
    if json:
        raise UsageError("--watch and --json are both set: choose one of them.")
    number = len(prompts) * n
    if number > MAX_SAMPLES:
        raise UsageError(
            f"--watch has {number} texts to show: at most {MAX_SAMPLES} are allowed. Use fewer "
            "prompts or a smaller --n."
        )


def watched(options: GenerationOptions) -> GenerationOptions:
    """The options with the log-probabilities that the view shows."""
    from weft.look.watch_state import NUM_ALTERNATIVES

    sampling = options.sampling.model_copy(update={"logprobs": NUM_ALTERNATIVES + 1})
    return replace(options, sampling=sampling)


def watch(
    loaded: LoadedModel,
    title: str,
    prompts: Sequence[str],
    options: GenerationOptions,
    encode: Callable[[str], list[int]],
) -> WatchLog:
    """Generate the texts of all prompts, of which `encode` makes ids, and show how. Returns the
    samples, unfinished ones if it was ended with `q`; `loaded` must have been loaded without a
    thread."""
    run = WatchRun(loaded, title)
    try:
        run.submit(prompts, watched(options), encode)
        if can_redraw():
            with LiveScreen() as screen:
                run.show(screen)
            print("\n".join(run.view(run.size)[:-1]), end="\n\n")
        else:
            run.print_log()
    finally:
        run.abort()
    return run.log


class WatchRun:
    """The requests of one watched generation, and what is known of them."""

    def __init__(
        self, loaded: LoadedModel, title: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        from weft.look.terminal import is_ascii_only
        from weft.look.watch_state import WatchLog, read_cache

        assert not loaded.is_threaded, "a thread steps this engine while it is read"
        self.loaded, self.title, self.now = loaded, title, now
        self.engine = loaded.client.engine
        self.log = WatchLog(loaded.tokenizer, is_ascii_only())
        self.ids: list[str] = []
        self.cache: CacheState = read_cache(self.engine)
        self.size = (80, 24)
        self.started_at = now()
        self.paused_seconds = 0.0
        self.is_paused = False

    def submit(
        self,
        prompts: Sequence[str],
        options: GenerationOptions,
        encode: Callable[[str], list[int]],
    ) -> None:
        """Submit all prompts; the first step sees all of them."""
        for prompt in prompts:
            request = self.loaded.request_builder.completion(encode(prompt), options)
            request_id = self.engine.submit(replace(request, is_streamed=True))
            self.ids.append(request_id)
            self.log.add_request(request_id, prompt, options.n)
        self.started_at = self.now()

    def abort(self) -> None:
        """Free the pages of what has not finished."""
        for request_id in self.ids:
            self.engine.abort(request_id)

    def step(self) -> list[RequestOutput]:
        """One engine step; raises a DataError for a request that failed."""
        outputs = self.engine.step()
        step = self.engine.kv_cache.pool.step
        for output in outputs:
            self.log.add(step, output)
            if output.error is not None:
                raise DataError(output.error)
        return outputs

    def read(self) -> CacheState:
        from weft.look.watch_state import read_cache

        self.cache = read_cache(self.engine)
        return self.cache

    def view(self, size: tuple[int, int]) -> list[str]:
        """The lines of the view for a terminal of this size."""
        from weft.look.watch_view import ViewSize, watch_view

        self.size = size
        seconds = self.now() - self.started_at - self.paused_seconds
        return watch_view(
            self.log, self.cache, self.title, seconds, ViewSize(*size), self.is_paused
        )

    def show(self, screen: LiveScreen) -> None:
        """Step and draw until everything is generated or `q` is pressed."""
        drawn_at = -FRAME_SECONDS
        while not self.engine.is_idle:
            if not self.read_keys(screen):
                break
            self.step()
            if self.is_paused or self.now() - drawn_at >= FRAME_SECONDS:
                self.read()
                screen.draw(self.view(screen.size))
                drawn_at = self.now()
        self.read()

    def read_keys(self, screen: LiveScreen) -> bool:
        """Handle the keys that were pressed; waits while it is paused. False: `q` was pressed."""
        began, key = self.now(), screen.key()
        while True:
            if key == " ":
                self.is_paused = not self.is_paused
            elif key == "n" and self.is_paused:
                break
            elif key in ("q", "Q", "\x04"):
                return False
            if not key and not self.is_paused:
                break
            if self.is_paused:
                self.read()
                screen.draw(self.view(screen.size))
            key = screen.key(WAIT_SECONDS if self.is_paused else 0.0)
        self.paused_seconds += self.now() - began
        return True

    def print_log(self) -> None:
        """A line for each token as it is chosen, then the pages and the tree."""
        from weft.look.watch_view import log_line, page_lines, tree_lines

        has_samples = len(self.log.samples) > 1
        while not self.engine.is_idle:
            before = len(self.log.tokens)
            self.step()
            cache = self.read()
            for token in self.log.tokens[before:]:
                print(log_line(token, cache, has_samples), flush=True)
        print("\n".join(page_lines(self.cache, 80, 64, self.log.is_ascii)))
        print("\n".join(tree_lines(self.cache, self.log, 80, 64)))
