"""The settings with which a tool finds the model that it reads."""

from dataclasses import dataclass

from engine.weights import pretrained
from model import GPT


@dataclass(kw_only=True)
class ModelSettings:
    """Which model a tool reads."""

    out_dir: str = "out"
    """A folder that train.py wrote, or one checkpoint in it."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best, or a name such as step_002000."""
    init_from: str = ""
    """In place of it: a published model, as a folder or by its name."""

    def load(self):
        """Return the folder of the model, the GPT and its tokenizer; ValueError without one."""
        folder = pretrained.folder_in(self)
        model = GPT.from_pretrained(folder)
        return folder, model, pretrained.load_tokenizer(folder, model.config.vocab_size)
