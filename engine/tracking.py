"""Logs for others to look at."""

from dataclasses import asdict


def start_wandb(config):
    """A wandb run, with wandb's own settings; ValueError if it is not installed."""
    try:
        import wandb

        return wandb.init(project=config.wandb_project, name=config.wandb_run_name or None, config=asdict(config))
    except ImportError:
        raise ValueError("wandb_log=True needs wandb: pip install wandb, or leave it out") from None
    except wandb.errors.Error as error:
        raise ValueError(f"wandb: {error} (or set WANDB_MODE=offline)") from None
