"""The command line: fit, validate, test, predict (LightningCLI), analyze and report (afterwards)."""
