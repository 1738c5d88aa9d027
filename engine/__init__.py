"""What the lecture and the scripts stand on. Nothing in here imports a file above it.

Import it before torch: OpenMP's threads then sleep soon after they have nothing to do. By default they spin for
milliseconds at the end of each of the hundred parallel sections of a step, and where another program needs one of the
cores, each then waits for a thread that has none: a step takes three to ten times as long.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # libgomp reads it once, when torch is imported
