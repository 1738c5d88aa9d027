"""The settings with which a tool finds the model that it reads."""

from dataclasses import dataclass

from engine.weights import checkpoint, pretrained


@dataclass(kw_only=True)
class ModelSettings:
    """Which model a tool reads."""

    out_dir: str = "out"
    """A folder that train.py wrote."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best, or a name such as step_002000."""
    init_from: str = ""
    """In place of it: a published model, as a folder or by its name."""

    def folder(self):
        """Return the folder of the model; ValueError if there is none."""
        if self.init_from:
            return pretrained.folder_of(self.init_from, self.checkpoint)
        return checkpoint.find_checkpoint(self.out_dir, self.checkpoint)
