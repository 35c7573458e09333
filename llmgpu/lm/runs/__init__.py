"""Training runs from first to last step: settings, run folder, log and chart of the losses."""
