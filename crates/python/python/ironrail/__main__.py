"""`python -m ironrail --path` prints the folder of the plugin, for LD_LIBRARY_PATH."""

import argparse

from . import path

arguments = argparse.ArgumentParser(prog="python -m ironrail")
arguments.add_argument(
    "--path",
    action="store_true",
    required=True,
    help="prints the folder of Ironrail's plugin: export LD_LIBRARY_PATH=$(python -m ironrail --path) NCCL_NET_PLUGIN=ironrail",
)
arguments.parse_args()
print(path())
