# A recipe for Spack, to be put into a repository of one's own as packages/ironrail/package.py. SPDX-License-Identifier: Apache-2.0
import os

from spack.package import *


class Ironrail(Package):
    """A network plugin for NCCL over libfabric rails, and the command that checks, explains and measures such plugins."""

    homepage = "file:///path/to/ironrail"
    git = "file:///path/to/ironrail"

    license("Apache-2.0")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("rust@1.89:", type="build")
    # Loaded at run time: any from 1.17 on serves the same build.
    depends_on("libfabric@1.17:", type="run")

    def describe_sources(self):
        """What `ironrail --version` and the plugin's log show, as scripts/build names it; none without a repository in the stage itself."""
        git = which("git")
        if git is None or not os.path.exists(".git"):
            return None
        said = git("describe", "--always", "--abbrev=12", "--dirty", "--exclude=*", output=str, error=os.devnull, fail_on_error=False)
        return said.strip() if git.returncode == 0 else None

    def install(self, spec, prefix):
        commit = self.describe_sources()
        if commit:
            os.environ["IRONRAIL_COMMIT"] = commit
        cargo = which("cargo")
        cargo("build", "--release", "--package", "ironrail", "--package", "ironrail-cli")
        mkdirp(prefix.bin, prefix.lib.ironrail, prefix.include)
        install("target/release/ironrail", prefix.bin.ironrail)
        install(
            "target/release/libnccl_net_ironrail.so",
            join_path(prefix.lib.ironrail, "libnccl-net-ironrail.so"),
        )
        install("include/ironrail.h", prefix.include)
        ironrail = Executable(prefix.bin.ironrail)
        ironrail("man", "--folder", prefix.share.man.man1)

    def setup_run_environment(self, env):
        env.set("NCCL_NET_PLUGIN", "ironrail")
        env.set("NCCL_NET", "Ironrail")
        env.prepend_path("LD_LIBRARY_PATH", self.prefix.lib.ironrail)
        env.set("IRONRAIL_LIBFABRIC", join_path(self.spec["libfabric"].prefix.lib, "libfabric.so.1"))
