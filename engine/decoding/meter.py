"""The speed of generating."""

import time

from engine.common import hardware


class Meter:
    """Tokens per second.

    The first token of each text waits for the prompt, and with torch.compile the next two for the
    compiler: not counted.
    """

    def __init__(self):
        self.first_token_seconds = 0.0
        self.seconds = 0.0
        self.uncounted = 0

    def timed(self, session, tokens):
        """Yield the same (ids, logits), timed."""
        last = time.perf_counter()
        warm_up = 3 if session.compiled else 1
        for n, (ids, logits) in enumerate(tokens):
            hardware.synchronize(ids.device)
            now = time.perf_counter()
            self.first_token_seconds = self.first_token_seconds or now - last
            if n < warm_up:
                self.uncounted += len(ids)
            else:
                self.seconds += now - last
            last = now
            yield ids, logits

    def summary(self, texts):
        """Return one line about all texts."""
        tokens = sum(len(text.tokens) for text in texts) - self.uncounted
        line = f"first token after {self.first_token_seconds:.2f} s"
        if self.seconds and tokens > 0:
            line += f", then {tokens / self.seconds:.1f} tokens/s"
        return line
