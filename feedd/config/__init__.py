"""Configuration from flags, environment, TOML file and defaults, with all problems and the origin of each value."""

from feedd.config.loading import ConfigProblems, Effective, Problem, find_file, load
from feedd.config.models import Config
from feedd.config.option_list import Option, options, render

__all__ = ["Config", "ConfigProblems", "Effective", "Option", "Problem", "find_file", "load", "options", "render"]
