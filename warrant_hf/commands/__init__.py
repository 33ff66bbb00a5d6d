"""What each command does, one module a command; the options are declared in `warrant_hf_cli`."""
